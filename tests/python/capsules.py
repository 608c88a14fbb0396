"""DLPack capsules made by hand, right and wrong ones, and producers that offer them."""

from __future__ import annotations

import ctypes

from rdmacoll._abi import dlpack

_destructor_type = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class Made:
    """One managed tensor, and how often its deleter was called."""

    def __init__(
        self,
        dims=(2, 3),
        *,
        address=0x7000_0000,
        strides=None,
        code=2,
        bits=32,
        lanes=1,
        device=(dlpack.CUDA, 0),
        byte_offset=0,
        ndim=None,
        has_shape=True,
        version=None,
        flags=0,
        name=None,
        has_deleter=True,
    ):
        self.deletions = 0
        self._delete = dlpack._Deleter(self._count)
        self._shape = (ctypes.c_int64 * max(1, len(dims)))(*dims)
        tensor = dlpack._Tensor(address, *device, len(dims) if ndim is None else ndim, code, bits, lanes)
        if has_shape:
            tensor.shape = ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64))
        if strides is not None:
            self._strides = (ctypes.c_int64 * max(1, len(strides)))(*strides)
            tensor.strides = ctypes.cast(self._strides, ctypes.POINTER(ctypes.c_int64))
        tensor.byte_offset = byte_offset
        deleter = self._delete if has_deleter else dlpack._Deleter()
        if version is None:
            self._managed = dlpack._Managed(tensor, None, deleter)
        else:
            self._managed = dlpack._VersionedManaged(*version, None, deleter, flags, tensor)
        self._name = name or (b"dltensor" if version is None else b"dltensor_versioned")
        self._destroy = _destructor_type(self._destroyed)

    def capsule(self):
        address = ctypes.addressof(self._managed)
        return dlpack._new(address, self._name, ctypes.cast(self._destroy, ctypes.c_void_p))

    def _count(self, _):
        self.deletions += 1

    def _destroyed(self, capsule):
        if dlpack._is_valid_at(capsule, self._name):
            self.deletions += 1


class Producer:
    """An array of a library without a name, with DLPack alone."""

    def __init__(self, made, *, takes_version=True, error=None):
        self.made, self.error = made, error
        self.asked = []
        self._takes_version = takes_version

    def __dlpack_device__(self):
        tensor = self.made._managed.tensor
        return tensor.device_type, tensor.device_id

    def __dlpack__(self, **options):
        if not self._takes_version and "max_version" in options:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        if self.error is not None:
            raise self.error
        self.asked.append(options)
        return self.made.capsule()


class Interface:
    """An array with `__cuda_array_interface__` alone."""

    def __init__(self, **fields):
        self.__cuda_array_interface__ = {
            "shape": (2, 3),
            "typestr": "<f4",
            "data": (0x7000_0000, False),
            "strides": None,
            "stream": None,
            "version": 3,
            **fields,
        }
