"""Libraries of arrays in GPU memory: their current streams, and new arrays of theirs.

A library is found by the module of an array's type, so nothing is imported that the caller does not use.

New arrays that a call can allocate before it begins come from the library itself, if it lets callers write to
its arrays (cupy, PyTorch). They are allocated on the stream of the call. The library's own cache then reuses
their memory in the order of that stream, which no other owner could know.
All other results are memory of the engine, which the library adopts.
"""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from rdmacoll._calls import device_arrays
from rdmacoll._calls.device_arrays import DeviceArray
from rdmacoll.errors import ConfigError

# DLPack's numbers of the streams that have no handle.
LEGACY_STREAM, PER_THREAD_STREAM = 1, 2


class Order(NamedTuple):
    """The stream that orders a call. owner: keeps the stream."""

    stream: int
    owner: object = None


def given_order(stream: Any) -> Order:
    """The order of a call with `stream=`. Raises ConfigError for a value that is no stream."""
    handle: Any = stream
    if hasattr(stream, "__cuda_stream__"):
        handle = stream.__cuda_stream__()[1] or LEGACY_STREAM
    else:
        for name in ("cuda_stream", "ptr"):  # PyTorch, cupy
            if hasattr(stream, name):
                handle = getattr(stream, name) or LEGACY_STREAM
                break
    try:
        number = -1 if isinstance(handle, (bool, np.bool_)) else operator.index(handle)
    except TypeError:
        number = -1
    if number == 0:
        raise ConfigError(
            "stream=0 is ambiguous: use 1 for the legacy default stream, 2 for the default stream of this "
            "thread, or the handle of another one."
        )
    if not 0 < number < 1 << 64:
        raise ConfigError(
            f"stream={stream!r} is no CUDA stream: give a stream of cupy or PyTorch, or a number as in "
            "DLPack: 1, 2, or a handle."
        )
    return Order(number, stream)


class ArrayLibrary:
    """A library of which only the protocols are known."""

    # Why callers may not write to the library's arrays, and what they do instead. None: they may.
    refusal_to_write: str | None = None
    # Whether `contiguous` and `assign` work.
    can_copy = False

    def __init__(self, module: Any) -> None:
        """module: the library's top module, or None."""
        self._module = module

    def order(self, array: Any) -> Order:
        """The library's current stream, or the one that the array's protocol names."""
        return Order(device_arrays.interface_stream(array) or LEGACY_STREAM)

    def read(self, array: Any, stream: int) -> DeviceArray:
        """The array's memory. Raises ConfigError."""
        return device_arrays.read(array, stream)

    def contiguous(self, array: Any, order: Order) -> Any:
        """A C-contiguous copy of the array, made on the stream."""
        raise NotImplementedError

    def assign(self, out: Any, result: Any, order: Order) -> None:
        """Copies `result` to `out` on the stream."""
        raise NotImplementedError

    def empty_like(self, array: Any, order: Order) -> Any:
        """A new C-contiguous array, allocated on the stream. None: the library does not offer that."""
        return None

    def adopt(self, memory: Any) -> Any:
        """An array over memory of the engine. The memory itself if the library cannot adopt it."""
        from_dlpack = getattr(self._module, "from_dlpack", None)
        return memory if from_dlpack is None else from_dlpack(memory)


class _Cupy(ArrayLibrary):
    can_copy = True

    def order(self, array: Any) -> Order:
        with array.device:
            current = self._module.cuda.get_current_stream()
        return Order(current.ptr or LEGACY_STREAM, current)

    def read(self, array: Any, stream: int) -> DeviceArray:
        try:  # some releases export bool through DLPack as uint8
            found = device_arrays.read_interface(array)
        except ConfigError:
            return device_arrays.read(array, device_arrays.NO_ORDER)
        return found._replace(gpu=int(array.device.id))

    @contextmanager
    def _current(self, array: Any, order: Order) -> Iterator[None]:
        # Another stream may be current when the call is waited for.
        with array.device, self._stream(order.stream):
            yield

    def _stream(self, stream: int) -> Any:
        cuda = self._module.cuda
        if stream == LEGACY_STREAM:
            return cuda.Stream.null
        return cuda.Stream.ptds if stream == PER_THREAD_STREAM else cuda.ExternalStream(stream)

    def contiguous(self, array: Any, order: Order) -> Any:
        with self._current(array, order):
            return self._module.ascontiguousarray(array)

    def assign(self, out: Any, result: Any, order: Order) -> None:
        with self._current(out, order):
            out[...] = result

    def empty_like(self, array: Any, order: Order) -> Any:
        with self._current(array, order):
            return self._module.empty(array.shape, array.dtype)


class _Torch(ArrayLibrary):
    can_copy = True

    def order(self, array: Any) -> Order:
        current = self._module.cuda.current_stream(array.device)
        return Order(current.cuda_stream or LEGACY_STREAM, current)

    def read(self, array: Any, stream: int) -> DeviceArray:
        if array.requires_grad:
            raise ConfigError(
                "the tensor requires gradients, which do not flow through a collective: pass tensor.detach()."
            )
        # The tensor is ordered by its library's current stream or by `stream`, so no stream has to wait.
        return device_arrays.read(array, device_arrays.NO_ORDER)

    @contextmanager
    def _current(self, array: Any, order: Order) -> Iterator[None]:
        # Another stream may be current when the call is waited for.
        cuda = self._module.cuda
        if order.stream == LEGACY_STREAM:
            stream = cuda.default_stream(array.device)
        else:
            stream = cuda.ExternalStream(order.stream, device=array.device)
        with cuda.device(array.device), cuda.stream(stream):
            yield

    def contiguous(self, array: Any, order: Order) -> Any:
        with self._current(array, order):
            return array.contiguous()

    def assign(self, out: Any, result: Any, order: Order) -> None:
        with self._current(out, order):
            out.copy_(result)

    def empty_like(self, array: Any, order: Order) -> Any:
        with self._current(array, order):
            return self._module.empty(array.shape, dtype=array.dtype, device=array.device)


class _Jax(ArrayLibrary):
    refusal_to_write = "JAX arrays are immutable: leave out= away, and use the array that the call returns."

    def adopt(self, memory: Any) -> Any:
        # A copy, since XLA lets go of foreign memory while its streams may still read it.
        foreign = importlib.import_module("jax.dlpack").from_dlpack(memory)
        return self._module.numpy.array(foreign, copy=True).block_until_ready()


class _Numba(ArrayLibrary):
    def adopt(self, memory: Any) -> Any:
        # Later work of the call's stream finds the result complete, so the host need not wait.
        return self._module.cuda.as_cuda_array(memory, sync=False)


# Classes and top modules by the first part of the module of the array's type.
_KNOWN: dict[str, tuple[type[ArrayLibrary], str]] = {
    "cupy": (_Cupy, "cupy"),
    "torch": (_Torch, "torch"),
    "jax": (_Jax, "jax"),
    "jaxlib": (_Jax, "jax"),
    "numba": (_Numba, "numba"),
    "numba_cuda": (_Numba, "numba"),
}


def library_of(array: Any) -> ArrayLibrary:
    """The library of an array, also of a subclass that a program derives from the library's type."""
    roots = [base.__module__.partition(".")[0] for base in type(array).__mro__]
    for root in roots:
        if root in _KNOWN:
            kind, module = _KNOWN[root]
            return kind(sys.modules.get(module))
    return ArrayLibrary(sys.modules.get(roots[0]))
