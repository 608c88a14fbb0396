"""DeviceArray: an array in GPU memory with both protocols, over a CUDA driver. It stands in for cupy.

`cupy_of(library)` makes a module with the part of cupy that rdmacoll uses, and enters it as `cupy`. Its
current stream is a stream of its own, so work on another one is not ordered with it by chance. All copies are
asynchronous on the current stream.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

import numpy as np
from cuda_calls import Address, Cuda, Handle, size_of

from rdmacoll._abi import dlpack


class _Gpu:
    """A driver's GPU: its primary context, and the stream that is current at first."""

    def __init__(self, library: str, number: int) -> None:
        self.cuda = Cuda(library, number)
        self.cuda("cuCtxPopCurrent_v2", ctypes.byref(Handle()))
        with self.current():
            self.stream = Stream(int(self.cuda.stream().value or 0))

    @contextmanager
    def current(self) -> Iterator[Cuda]:
        """Makes the context current, and afterwards the one of before."""
        self.cuda("cuCtxPushCurrent_v2", self.cuda.context)
        try:
            yield self.cuda
        finally:
            self.cuda("cuCtxPopCurrent_v2", ctypes.byref(Handle()))


class _State(threading.local):
    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.gpus: list[int] = []


_gpus: dict[int, _Gpu] = {}
_state = _State()
_library = ""
_lend: Callable[[int, int], Any] | None = None


class Stream:
    """A stream by its handle. Within a `with` block it is the current one."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    def __enter__(self) -> Stream:
        _state.streams.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _state.streams.pop()

    def synchronize(self, gpu: int = 0) -> None:
        """Waits for the stream's work."""
        with _gpu(gpu).current() as cuda:
            cuda.synchronize(Handle(self.ptr))


class Device:
    """A GPU by its number."""

    def __init__(self, number: int) -> None:
        self.id = number

    def __enter__(self) -> Device:
        _state.gpus.append(self.id)
        return self

    def __exit__(self, *_: object) -> None:
        _state.gpus.pop()


def _gpu(number: int) -> _Gpu:
    if number not in _gpus:
        _gpus[number] = _Gpu(_library, number)
    return _gpus[number]


def get_current_stream(gpu: int | None = None) -> Stream:
    """The innermost stream of this thread's `with` blocks, or the first one of the GPU."""
    if _state.streams:
        return _state.streams[-1]
    return _gpu((_state.gpus or [0])[-1] if gpu is None else gpu).stream


def new_stream(gpu: int = 0) -> Stream:
    """Another stream of the GPU, which is never destroyed."""
    with _gpu(gpu).current() as cuda:
        return Stream(int(cuda.stream().value or 0))


class _Memory:
    """An allocation. Its end waits for the work of the streams that have used it."""

    def __init__(self, gpu: int, size: int) -> None:
        self.gpu, self.size = gpu, size
        self.streams: set[int] = set()
        self._lender = None if _lend is None else _lend(size, gpu)
        if self._lender is not None:
            self.address = self._lender.address
            return
        with _gpu(gpu).current() as cuda:
            self.address = cuda.allocate(max(size, 1))

    def __del__(self) -> None:
        with _gpu(self.gpu).current() as cuda:
            for stream in self.streams:
                cuda.synchronize(Handle(stream))
            if self._lender is None:
                cuda.free(self.address)


def take_memory_from(lend: Callable[[int, int], Any] | None) -> None:
    """From now on memory of arrays is that of an object with an `address`: lend(bytes, number of the GPU).

    None: memory of the driver.
    """
    global _lend
    _lend = lend


def keep_memory() -> None:
    """From now on the memory of arrays stays allocated, as with a library that keeps it for later arrays."""
    _Memory.__del__ = lambda _: None  # type: ignore[method-assign]


class DeviceArray:
    """An array in memory of a GPU. Strides and offset count bytes, as in numpy."""

    def __init__(
        self,
        memory: Any,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        strides: tuple[int, ...] | None = None,
        gpu: int = 0,
    ) -> None:
        self._memory = memory
        self._address = address
        self.shape, self.dtype = shape, dtype
        self.strides = strides or tuple(stride * dtype.itemsize for stride in dlpack.strides_of(shape))
        self.device = Device(gpu)
        self._sources: list[Any] = []  # read by copies that may be on their way

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def is_contiguous(self) -> bool:
        steps = tuple(stride // self.dtype.itemsize for stride in self.strides)
        return dlpack.is_contiguous(self.shape, steps)

    def set(self, values: Any) -> DeviceArray:
        """Copies values from the host, on the current stream."""
        assert self.is_contiguous()
        values = np.ascontiguousarray(values, self.dtype)
        assert values.size == math.prod(self.shape)
        stream = self._use()
        self._sources.append(values)
        if self.nbytes:
            with _gpu(self.device.id).current() as cuda:
                source = ctypes.c_void_p(values.__array_interface__["data"][0])
                cuda("cuMemcpyHtoDAsync_v2", Address(self._address), source, size_of(self.nbytes), stream)
        return self

    def get(self) -> np.ndarray[Any, Any]:
        """Copies the values to the host on the current stream, and waits for them."""
        return self._reach()[1].copy()

    def _reach(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The bytes from the first element to the last one, on the host, and the array over them."""
        size = 0
        if 0 not in self.shape:
            size = sum((dim - 1) * stride for dim, stride in zip(self.shape, self.strides))
            size += self.dtype.itemsize
        found = np.zeros(max(size, self.dtype.itemsize), np.uint8)
        stream = self._use()
        with _gpu(self.device.id).current() as cuda:
            if size:
                target = ctypes.c_void_p(found.__array_interface__["data"][0])
                cuda("cuMemcpyDtoHAsync_v2", target, Address(self._address), size_of(size), stream)
            cuda.synchronize(stream)
        first = np.ndarray((1,), self.dtype, found)
        return found[:size], np.lib.stride_tricks.as_strided(first, self.shape, self.strides)

    def _use(self) -> Handle:
        stream = get_current_stream(self.device.id).ptr
        if isinstance(self._memory, _Memory):
            self._memory.streams.add(stream)
        return Handle(stream)

    def __getitem__(self, index: Any) -> DeviceArray:
        """A view, as numpy makes one."""
        whole = np.lib.stride_tricks.as_strided(
            np.zeros(1, self.dtype), self.shape, self.strides, writeable=False
        )
        index = index if isinstance(index, tuple) else (index,)
        part = whole[index if any(one is Ellipsis for one in index) else (*index, ...)]
        offset = part.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        view = (part.shape, self.dtype, part.strides, self.device.id)
        return DeviceArray(self._memory, self._address + offset, *view)

    def __setitem__(self, index: Any, values: DeviceArray | np.ndarray[Any, Any]) -> None:
        assert index is Ellipsis
        host = values.get() if isinstance(values, DeviceArray) else values
        memory, whole = self._reach()
        whole[...] = host
        flat = DeviceArray(self._memory, self._address, memory.shape, memory.dtype, gpu=self.device.id)
        self._sources.append(flat.set(memory)._sources)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._address, False),
            "strides": None if self.is_contiguous() else self.strides,
            "stream": get_current_stream(self.device.id).ptr,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device.id

    def __dlpack__(self, stream: Any = None) -> object:
        if stream == 0:
            raise ValueError("stream 0 is ambiguous")
        assert self.is_contiguous()
        code, number = dlpack.DTYPES, self.device.id
        assert self.dtype.name in code.values()
        return dlpack.export(self, self._address, self.shape, self.dtype.name, number, is_versioned=False)


def empty(shape: Any, dtype: Any = np.float32, gpu: int | None = None) -> DeviceArray:
    """A new array, full of what was there."""
    gpu = (_state.gpus or [0])[-1] if gpu is None else gpu
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    kind = np.dtype(dtype)
    memory = _Memory(gpu, math.prod(dims) * kind.itemsize)
    return DeviceArray(memory, memory.address, dims, kind, gpu=gpu)


def array(values: Any, gpu: int | None = None) -> DeviceArray:
    """The values in new memory of the current GPU, copied there on the current stream."""
    host = np.asarray(values)
    return empty(host.shape, host.dtype, gpu).set(host)


def ascontiguousarray(source: DeviceArray) -> DeviceArray:
    """The array itself, or a contiguous copy."""
    return source if source.is_contiguous() else array(source.get(), source.device.id)


def from_dlpack(source: Any) -> DeviceArray:
    """An array over memory of another library."""
    gpu = source.__dlpack_device__()[1]
    capsule = dlpack.Capsule(source.__dlpack__(stream=get_current_stream(gpu).ptr))
    fields = capsule.fields
    kind: Any = fields.dtype
    if kind == "bfloat16":
        import ml_dtypes

        kind = ml_dtypes.bfloat16
    return DeviceArray(capsule.consume(), fields.address, fields.dims, np.dtype(kind), gpu=fields.device_id)


def cupy_of(library: Any) -> types.ModuleType:
    """Enters this module as cupy, on the driver at this path."""
    global _library
    _library = str(library)
    DeviceArray.__module__ = "cupy"
    cuda = types.SimpleNamespace(
        get_current_stream=get_current_stream,
        ExternalStream=Stream,
        Stream=types.SimpleNamespace(null=Stream(1), ptds=Stream(2)),
        Device=Device,
    )
    module = types.ModuleType("cupy")
    vars(module).update(
        cuda=cuda,
        ndarray=DeviceArray,
        empty=empty,
        array=array,
        ascontiguousarray=ascontiguousarray,
        from_dlpack=from_dlpack,
    )
    sys.modules["cupy"] = module
    return module
