"""Imitations of array libraries: their names, streams and peculiarities, with memory by numbers only."""

from __future__ import annotations

import sys
import types
from contextlib import contextmanager

import numpy as np
from capsules import Made

from rdmacoll._abi import dlpack

DTYPES = {name: key for key, name in dlpack.DTYPES.items()}


class Library:
    """The common part of all imitations: memory by numbers, current streams, and a log of calls."""

    def __init__(self, monkeypatch, root):
        self.log = []
        self.module = types.ModuleType(root)
        self.current = []
        self.first_stream = types.SimpleNamespace(ptr=0, cuda_stream=0)
        self.next_address = 0x7000_0000
        monkeypatch.setitem(sys.modules, root, self.module)

    def stream(self):
        return self.current[-1] if self.current else self.first_stream

    def address(self, size):
        self.next_address += 1 << 20
        return self.next_address - (1 << 20)

    @contextmanager
    def using(self, stream):
        self.current.append(stream)
        yield
        self.current.pop()


class Array:
    """An array of such a library, with DLPack."""

    library: Library
    requires_grad = False

    def __init__(self, dims=(2, 3), dtype="float32", *, address=None, strides=None, gpu=0):
        self.shape, self.dtype, self.strides, self.gpu = dims, dtype, strides, gpu
        self.at = self.library.address(0) if address is None else address
        self.device = self.made_device()

    def made_device(self):
        return types.SimpleNamespace(
            id=self.gpu, __enter__=lambda _: None, __exit__=lambda *_: None, type="cuda", index=self.gpu
        )

    def __dlpack_device__(self):
        return dlpack.CUDA, self.gpu

    def __dlpack__(self, stream=None):
        self.library.log.append(("dlpack", stream))
        if stream == 0:
            raise BufferError("stream 0 is not supported")
        code, bits = DTYPES[self.dtype]
        made = Made(
            self.shape,
            address=self.at,
            strides=self.strides,
            code=code,
            bits=bits,
            device=(dlpack.CUDA, self.gpu),
        )
        self.kept = made
        return made.capsule()


class _Device:
    def __init__(self, number):
        self.id = number

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def cupy(monkeypatch):
    """Enters an imitation as `cupy`, and returns it."""
    library = Library(monkeypatch, "cupy")

    class ndarray(Array):  # noqa: N801
        __module__ = "cupy"

        def made_device(self):
            return _Device(self.gpu)

        @property
        def __cuda_array_interface__(self):
            typestr = "<V2" if self.dtype == "bfloat16" else np.dtype(self.dtype).str
            size = 2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize
            strides = None if self.strides is None else tuple(size * stride for stride in self.strides)
            return {
                "shape": self.shape,
                "typestr": typestr,
                "data": (self.at, False),
                "strides": strides,
                "version": 3,
                "stream": 1,
            }

        def __setitem__(self, index, value):
            library.log.append(("assign", library.stream().ptr, value))

    ndarray.library = library

    class Stream:
        def __init__(self, ptr):
            self.ptr = ptr

        def __enter__(self):
            library.current.append(self)

        def __exit__(self, *_):
            library.current.pop()

    def empty(shape, dtype):
        library.log.append(("empty", library.stream().ptr))
        return ndarray(shape, dtype)

    def ascontiguousarray(array):
        library.log.append(("copy", library.stream().ptr))
        return ndarray(array.shape, array.dtype)

    library.module.cuda = types.SimpleNamespace(
        get_current_stream=library.stream,
        ExternalStream=Stream,
        Stream=types.SimpleNamespace(null=Stream(0), ptds=Stream(2)),
    )
    library.module.empty, library.module.ascontiguousarray = empty, ascontiguousarray
    library.array = ndarray
    return library


def torch(monkeypatch):
    """Enters an imitation as `torch`, and returns it."""
    library = Library(monkeypatch, "torch")

    class Tensor(Array):
        __module__ = "torch"

        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("not for this tensor")

        def __dlpack__(self, stream=None, **options):
            if stream == 2:
                raise BufferError("per-thread default stream is not supported")
            if self.requires_grad:
                raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
            return super().__dlpack__(stream, **options)

        def contiguous(self):
            library.log.append(("copy", library.stream().cuda_stream))
            return Tensor(self.shape, self.dtype)

        def copy_(self, value):
            library.log.append(("assign", library.stream().cuda_stream, value))

    Tensor.library = library

    def empty(shape, *, dtype, device):
        library.log.append(("empty", library.stream().cuda_stream))
        return Tensor(shape, dtype, gpu=device.index)

    def stream_of(handle, device):
        assert device.type == "cuda"
        return types.SimpleNamespace(cuda_stream=handle)

    library.module.cuda = types.SimpleNamespace(
        current_stream=lambda device: library.stream(),
        default_stream=lambda device: types.SimpleNamespace(cuda_stream=0),
        ExternalStream=stream_of,
        device=lambda device: _Device(device.index),
        stream=library.using,
    )
    library.module.empty = empty
    library.array = Tensor
    return library


def jax(monkeypatch):
    """Enters an imitation as `jax`, and returns it."""
    library = Library(monkeypatch, "jax")
    library.adopted = []

    class ArrayImpl(Array):
        __module__ = "jaxlib._jax"
        is_ready = False

        def block_until_ready(self):
            self.is_ready = True
            return self

    def copied(foreign, *, copy):
        assert copy
        return ArrayImpl(foreign.shape)

    ArrayImpl.library = library
    library.module.numpy = types.SimpleNamespace(array=copied)
    library.array = ArrayImpl
    adopting = types.ModuleType("jax.dlpack")
    adopting.from_dlpack = lambda memory: library.adopted.append(memory) or ArrayImpl(memory.shape)
    monkeypatch.setitem(sys.modules, "jax.dlpack", adopting)
    return library
