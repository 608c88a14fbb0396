"""GpuArray: memory of a GPU that belongs to the engine, for every library that knows a protocol."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

from rdmacoll._abi import dlpack
from rdmacoll._calls import device_arrays
from rdmacoll._calls.array_libraries import LEGACY_STREAM, PER_THREAD_STREAM, Order
from rdmacoll._world.running_engine import Engine
from rdmacoll.errors import ConfigError, NotInitializedError


class GpuMemory:
    """Memory of the engine on a GPU, freed when this object goes. Make one only while holding the engine.

    The engine uses the memory again after the work that the order's stream has by then.
    """

    def __init__(self, engine: Engine, result: int, order: Order | None) -> None:
        """result: the library's reference to the memory. order: also keeps the stream."""
        self._engine = engine
        self._result = result
        self._order = order
        self._last_order = order  # the order of the last call that has used the memory
        self._is_used_repeatedly = False
        engine.share(id(self))

    @property
    def stream(self) -> int | None:
        """The stream whose later work finds the memory complete. None: all work finds it so."""
        if self._last_order is None or not self._engine.is_open:
            return None
        is_complete = not self._is_used_repeatedly and self._engine.keeper.is_done()
        if is_complete:
            return None
        # Another thread may ask, and has its own stream 2. The legacy stream waits for all of these.
        return LEGACY_STREAM if self._last_order.stream == PER_THREAD_STREAM else self._last_order.stream

    def use_on(self, order: Order, *, repeatedly: bool) -> None:
        """Notes that a call with this order uses the memory. repeatedly: its runs do so from now on."""
        self._last_order = order
        self._is_used_repeatedly = self._is_used_repeatedly or repeatedly

    def let_follow(self, follower: int, gpu: int) -> None:
        """Lets a stream of a consumer wait until the memory is complete."""
        stream = self.stream
        if stream is not None and stream != follower:
            with contextlib.suppress(NotInitializedError), self._engine.held() as address:
                self._engine.library.gpu_follow(address, gpu, stream, follower)

    def __del__(self) -> None:
        engine = self._engine
        if not engine.is_forked:
            stream = 0 if self._order is None else self._order.stream
            engine.library.gpu_free(engine.address, self._result, stream)
            engine.release(id(self))


class GpuArray:
    """An array in memory of a GPU, which the engine owns.

    Other libraries take it without a copy: `cupy.asarray(array)`, `torch.from_dlpack(array)`,
    `jax.dlpack.from_dlpack(array)`, `numba.cuda.as_cuda_array(array)`. The memory is freed once, with the
    last of these arrays. By then, all work on it must be done, or lie on the stream of the call that made it.
    Attributes: shape, dtype, address, gpu (CUDA's number).
    """

    def __init__(self, owner: object, address: int, shape: tuple[int, ...], dtype: Any, gpu: int) -> None:
        """owner: keeps the memory."""
        self._owner = owner
        self.address = address
        self.shape = shape
        self.dtype = dtype
        self.gpu = gpu

    @classmethod
    def allocate(
        cls, engine: Engine, shape: tuple[int, ...], dtype: Any, gpu: int, order: Order | None = None
    ) -> GpuArray:
        """A new array. Raises RdmacollError if there is no such GPU, or no memory."""
        size = math.prod(shape) * int(dtype.itemsize)
        with engine.held() as held:
            result, address = engine.library.gpu_allocate(held, gpu, size)
            return cls(GpuMemory(engine, result, order), address, shape, dtype, gpu)

    def use_on(self, order: Order, *, repeatedly: bool = False) -> None:
        """Notes that a call with this order uses the memory. repeatedly: its runs do so from now on."""
        if isinstance(self._owner, GpuMemory):
            self._owner.use_on(order, repeatedly=repeatedly)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes of the elements."""
        return self.size * int(self.dtype.itemsize)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.name == "bfloat16":  # the protocol has no word for it
            raise AttributeError(f"{self.dtype} has no typestr: use DLPack.")
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "stream": self._owner.stream if isinstance(self._owner, GpuMemory) else None,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.gpu

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: Sequence[int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """stream: the consumer's, which waits for the array. -1: none waits. Raises RdmacollError."""
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the memory is on cuda:{self.gpu}, and cannot be exported to another device.")
        if copy:
            raise BufferError("the memory is exported without a copy only: leave copy=True out.")
        if isinstance(self._owner, GpuMemory) and stream != device_arrays.NO_ORDER:
            self._owner.let_follow(stream or LEGACY_STREAM, self.gpu)
        is_versioned = max_version is not None and max_version[0] >= 1
        return dlpack.export(
            self._owner, self.address, self.shape, self.dtype.name, self.gpu, is_versioned=is_versioned
        )

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            "the array is in memory of a GPU, which numpy cannot read: copy it, for example with "
            "cupy.asarray(array).get()."
        )

    def __repr__(self) -> str:
        return f"GpuArray(shape={self.shape}, dtype={self.dtype}, device='cuda:{self.gpu}')"


def gpu_of(device: Any) -> int:
    """CUDA's number of a device: "cuda" (0), "cuda:1", or the number itself. Raises ConfigError.

    >>> gpu_of("cuda:1"), gpu_of("cuda"), gpu_of(2)
    (1, 0, 2)
    """
    kind, _, number = str(device).partition(":")
    if type(device) is int and device >= 0:
        return device
    if kind == "cuda" and (number.isdecimal() or str(device) == "cuda"):
        return int(number or 0)
    raise ConfigError(f'device={device!r}: give "cuda:0" or another GPU\'s number, or None for host memory.')
