"""DLPack in ctypes: arrays that other libraries lend, and memory of the engine that they borrow.

A producer puts a managed tensor into a capsule. The consumer renames the capsule, and then owes the tensor
one call of its deleter. A capsule that is not renamed calls the deleter itself when it goes.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

from rdmacoll._abi import fast_calls
from rdmacoll._abi.library import DIMS_MAX
from rdmacoll.errors import ConfigError

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
BFLOAT = 4
# Names of dtypes by code and bits.
DTYPES = {
    **{(0, bits): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"float{bits}" for bits in (16, 32, 64)},
    (BFLOAT, 16): "bfloat16",
    **{(5, bits): f"complex{bits}" for bits in (64, 128)},
    (6, 8): "bool",
}
# The newest version whose structs this module knows. Minor versions only add codes and flags.
VERSION = (1, 1)

_READ_ONLY = 1
_NAME, _USED_NAME = b"dltensor", b"used_dltensor"
_VERSIONED_NAME, _USED_VERSIONED_NAME = b"dltensor_versioned", b"used_dltensor_versioned"

# Deleters may be Python code or C code that expects the GIL, so calls keep it.
_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


class _VersionedManaged(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


def _capsule_function(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_is_valid = _capsule_function("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer = _capsule_function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_rename = _capsule_function("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_new = _capsule_function("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_clear_error = _capsule_function("PyErr_Clear", None)
# The same functions in a destructor. A `py_object` would revive the capsule there.
_is_valid_at = _capsule_function("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer_at = _capsule_function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)


class TensorFields(NamedTuple):
    """A tensor as its producer describes it, checked. Strides count elements; None: C-contiguous."""

    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    device_type: int
    device_id: int
    is_read_only: bool


class Loan:
    """The memory of a consumed tensor. It goes back to its producer with this object."""

    def __init__(self, deleter: Any, managed: int) -> None:
        self._deleter = deleter
        self._managed = managed

    def __del__(self) -> None:
        deleter, self._deleter = self._deleter, None
        if deleter:  # a null function is False
            deleter(self._managed)


class Capsule:
    """A capsule that was not consumed yet. Raises ConfigError for a tensor that cannot be read.

    Such a capsule stays unconsumed, so its own destructor returns the memory.
    """

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule
        if _is_valid(capsule, _VERSIONED_NAME):
            self._used_name = _USED_VERSIONED_NAME
            self._address = _pointer(capsule, _VERSIONED_NAME)
            managed: Any = _VersionedManaged.from_address(self._address)
            if managed.major != VERSION[0]:  # the fields behind the deleter may be others
                raise ConfigError(
                    f"the array comes as DLPack {managed.major}.{managed.minor}, and rdmacoll reads "
                    f"{VERSION[0]}.x: use a release of the array's library that offers that."
                )
            is_read_only = bool(managed.flags & _READ_ONLY)
        elif _is_valid(capsule, _NAME):
            self._used_name = _USED_NAME
            self._address = _pointer(capsule, _NAME)
            managed, is_read_only = _Managed.from_address(self._address), False
        else:
            raise ConfigError(
                f"__dlpack__() gave {capsule!r}, which is no DLPack capsule, or one that was consumed before."
            )
        self._deleter = managed.deleter
        self.fields = _fields_of(managed.tensor, is_read_only)

    def consume(self) -> Loan:
        """Takes the memory. Call it once."""
        loan = Loan(None, self._address)
        if _rename(self._capsule, self._used_name):
            raise ConfigError("the DLPack capsule cannot be renamed.")
        loan._deleter = self._deleter
        return loan


def _fields_of(tensor: _Tensor, is_read_only: bool) -> TensorFields:
    ndim = tensor.ndim
    if not 0 <= ndim <= DIMS_MAX:
        raise ConfigError(f"the array has {ndim} dimensions: collectives take at most {DIMS_MAX}.")
    if ndim and not tensor.shape:
        raise ConfigError(f"the DLPack tensor has {ndim} dimensions and no shape.")
    dims = tuple(tensor.shape[:ndim]) if ndim else ()
    dtype = DTYPES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise ConfigError(
            f"the DLPack dtype with code {tensor.code}, {tensor.bits} bits and {tensor.lanes} lanes is none "
            f"that collectives take: {', '.join(DTYPES.values())}."
        )
    if any(dim < 0 for dim in dims) or math.prod(dims) * tensor.bits // 8 >= 1 << 63:
        raise ConfigError(f"the DLPack tensor has the impossible shape {dims}.")
    address = tensor.data or 0
    if not address and math.prod(dims):
        raise ConfigError(f"the DLPack tensor of shape {dims} has no memory.")
    return TensorFields(
        address=address + tensor.byte_offset,
        dims=dims,
        strides=tuple(tensor.strides[:ndim]) if ndim and tensor.strides else None,
        dtype=dtype,
        device_type=tensor.device_type,
        device_id=tensor.device_id,
        is_read_only=is_read_only,
    )


# Exported tensors by the addresses of their structs: the struct, its arrays, and the owner of the memory.
_exported: dict[int, tuple[Any, ...]] = {}


def _return_export(managed: int) -> None:
    _exported.pop(managed, None)


def _return_unused(capsule: int) -> None:
    _clear_error()  # a consumer's refusal, which would fail the calls below; code in C can keep it
    for name in (_NAME, _VERSIONED_NAME):
        if _is_valid_at(capsule, name):
            _return_export(_pointer_at(capsule, name))


_delete, _destroy = _Deleter(_return_export), _Deleter(_return_unused)
_own_destructor = ctypes.cast(_destroy, ctypes.c_void_p)
_destructor = ctypes.c_void_p(fast_calls.CAPSULE_DESTRUCTOR or _own_destructor.value)

# Capsules keep the addresses of names, and consumers those of functions. They may outlive this module.
for _kept in (_NAME, _USED_NAME, _VERSIONED_NAME, _USED_VERSIONED_NAME, _delete, _destroy):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))


def export(
    owner: object, address: int, dims: tuple[int, ...], dtype: str, gpu: int, *, is_versioned: bool
) -> object:
    """A capsule over memory of a GPU. It keeps `owner` until the consumer returns the memory."""
    code, bits = next(key for key, name in DTYPES.items() if name == dtype)
    shape = (ctypes.c_int64 * max(1, len(dims)))(*dims)
    tensor = _Tensor(address or None, CUDA, gpu, len(dims), code, bits, 1)
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    # Some consumers of the versioned struct expect strides.
    strides = (ctypes.c_int64 * max(1, len(dims)))(*strides_of(dims))
    tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    managed: Any
    if is_versioned:
        managed = _VersionedManaged(VERSION[0], 0, None, _delete, 0, tensor)
    else:
        managed = _Managed(tensor, None, _delete)
    managed_address = ctypes.addressof(managed)
    _exported[managed_address] = (managed, shape, strides, owner)
    name = _VERSIONED_NAME if is_versioned else _NAME
    try:
        return _new(managed_address, name, _destructor)
    except BaseException:
        _return_export(managed_address)
        raise


def strides_of(dims: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of C-contiguous memory, in elements.

    >>> strides_of((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(math.prod(dims[axis + 1 :]) for axis in range(len(dims)))


def is_contiguous(dims: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Whether memory with these strides, in elements, is C-contiguous. Strides of dimensions of 1 are free.

    >>> is_contiguous((2, 1, 3), (3, 99, 1)), is_contiguous((2, 3), (1, 2)), is_contiguous((0, 3), (-5, 7))
    (True, False, True)
    """
    if strides is None or 0 in dims:
        return True
    return all(
        dim == 1 or stride == expected for dim, stride, expected in zip(dims, strides, strides_of(dims))
    )
