"""Arrays of other libraries whose memory is a GPU's, as their two protocols describe them.

DLPack comes first, since it has every dtype and the GPU. `__cuda_array_interface__` serves libraries without
DLPack. This module calls neither the engine nor a driver.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rdmacoll._abi import dlpack
from rdmacoll._abi.library import DIMS_MAX
from rdmacoll.errors import ConfigError
from rdmacoll.operators import CODES

# The GPU of an array whose protocol does not tell it. The engine finds it from the address.
UNKNOWN_GPU = -1
# DLPack's value for "no order is needed". The producer makes no stream wait then.
NO_ORDER = -1


class Bfloat16:
    """The dtype bfloat16, which numpy itself does not have."""

    name = "bfloat16"
    itemsize = 2
    byteorder = "="
    isnative = True

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return getattr(other, "name", other) == self.name

    def __hash__(self) -> int:
        return hash(self.name)


BFLOAT16 = Bfloat16()


def dtype_named(name: str) -> Any:
    """The dtype with this name in `CODES`."""
    return BFLOAT16 if name == BFLOAT16.name else np.dtype(name)


class DeviceArray(NamedTuple):
    """Memory of a GPU, as an operation takes it.

    gpu: the number that CUDA gives it in this process. array: the caller's object. owner: keeps the memory,
    beside `array`. order, library: set by `operands`, the stream of the call and the array's library.
    """

    address: int
    shape: tuple[int, ...]
    dtype: Any
    gpu: int
    is_contiguous: bool
    is_read_only: bool
    array: Any
    owner: object
    order: Any = None
    library: Any = None

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes of the elements."""
        return math.prod(self.shape) * int(self.dtype.itemsize)

    def reshape(self, *shape: int) -> DeviceArray:
        """The same contiguous memory in another shape of the same size."""
        return self._replace(shape=shape)


def is_on_device(value: Any) -> bool:
    """Whether the value is an array of another library in memory of a GPU.

    TensorFlow's tensors are not: they name no stream, so numpy copies them to the host.
    """
    if isinstance(value, (np.ndarray, np.generic, int, float, list, tuple)):
        return False
    kind = dlpack_kind(value)
    if kind:
        is_ordered = not type(value).__module__.startswith("tensorflow")
        return kind in (dlpack.CUDA, dlpack.CUDA_MANAGED) and is_ordered
    return _has_interface(value)


def _has_interface(value: Any) -> bool:
    try:
        return getattr(value, "__cuda_array_interface__", None) is not None
    except Exception:  # a library's refusal: numpy says then why it cannot take the array either
        return False


def dlpack_kind(value: Any) -> int:
    """DLPack's number for the kind of memory. 0: the value has no DLPack, or refuses to tell."""
    try:
        return int(value.__dlpack_device__()[0])
    except Exception:  # no such method, or an array without memory
        return 0


def read(array: Any, stream: int) -> DeviceArray:
    """The array as its protocol describes it. Raises ConfigError with the cure.

    stream: the stream on which the array must be ready. A producer that knows of a write on another stream
    makes this one wait for it. NO_ORDER: the caller takes care.
    """
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _from_dlpack(array, stream)
    return read_interface(array)


def interface_stream(array: Any) -> int | None:
    """The stream that `__cuda_array_interface__` names. None: it names none, or there is no interface."""
    try:
        interface = array.__cuda_array_interface__
    except Exception:  # libraries refuse some of their own arrays with errors of several classes
        return None
    stream = interface.get("stream") if isinstance(interface, Mapping) else None
    return stream if type(stream) is int and stream > 0 else None


def _from_dlpack(array: Any, stream: int) -> DeviceArray:
    capsule = dlpack.Capsule(_capsule_of(array, stream))
    fields = capsule.fields
    if fields.device_type not in (dlpack.CUDA, dlpack.CUDA_MANAGED):
        raise ConfigError(
            f"the array lies on a device of DLPack's type {fields.device_type}: collectives take host memory "
            "and memory of CUDA GPUs."
        )
    return DeviceArray(
        address=fields.address,
        shape=fields.dims,
        dtype=dtype_named(fields.dtype),
        gpu=fields.device_id,
        is_contiguous=dlpack.is_contiguous(fields.dims, fields.strides),
        is_read_only=fields.is_read_only,
        array=array,
        owner=capsule.consume(),
    )


def _capsule_of(array: Any, stream: int) -> object:
    try:
        try:
            return array.__dlpack__(stream=stream, max_version=dlpack.VERSION)
        except TypeError:  # a producer of DLPack 0
            return array.__dlpack__(stream=stream)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"{_type_of(array)} gives no DLPack capsule: {error}") from None


def _type_of(array: Any) -> str:
    return f"{type(array).__module__}.{type(array).__qualname__}"


def read_interface(array: Any) -> DeviceArray:
    """The array as `__cuda_array_interface__` describes it. Raises ConfigError with the cure."""
    interface = array.__cuda_array_interface__
    try:
        version = int(interface["version"])
        dims = tuple(int(dim) for dim in interface["shape"])
        typestr = str(interface["typestr"])
        address, is_read_only = interface["data"]
        strides, stream = interface.get("strides"), interface.get("stream")
        address = int(address or 0)
        strides = None if strides is None else tuple(int(stride) for stride in strides)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the __cuda_array_interface__ of {_type_of(array)} is incomplete: {type(error).__name__}: "
            f"{error}."
        ) from None
    if version < 2:
        raise ConfigError(f"__cuda_array_interface__ has version {version}: collectives take 2 and 3.")
    if interface.get("mask") is not None:
        raise ConfigError(
            "the array is masked, and the mask would be lost: pass its data, with values filled in."
        )
    if stream is not None and (type(stream) is not int or stream <= 0):
        raise ConfigError(
            f"__cuda_array_interface__ names the stream {stream!r}: streams are numbers from 1 on, or None."
        )
    dtype = _dtype_of(typestr)
    _check_shape(dims, strides, dtype, address)
    elements = None if strides is None else tuple(stride // dtype.itemsize for stride in strides)
    is_whole = strides is None or not any(stride % dtype.itemsize for stride in strides)
    return DeviceArray(
        address=address,
        shape=dims,
        dtype=dtype,
        gpu=UNKNOWN_GPU,
        is_contiguous=is_whole and dlpack.is_contiguous(dims, elements),
        is_read_only=bool(is_read_only),
        array=array,
        owner=None,
    )


def _dtype_of(typestr: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(typestr)
    except TypeError:
        raise ConfigError(f"typestr={typestr!r} is no dtype.") from None
    if not dtype.isnative:
        raise ConfigError(f"typestr={typestr!r} has another byte order than this machine: convert the array.")
    if dtype.name not in CODES:
        raise ConfigError(
            f"typestr={typestr!r} is none that collectives take: {', '.join(CODES)}. bfloat16 comes through "
            "__dlpack__ only, since typestr has no word for it."
        )
    return dtype


def _check_shape(dims: tuple[int, ...], strides: tuple[int, ...] | None, dtype: Any, address: int) -> None:
    if len(dims) > DIMS_MAX:
        raise ConfigError(f"the array has {len(dims)} dimensions: collectives take at most {DIMS_MAX}.")
    size = math.prod(dims)
    if any(dim < 0 for dim in dims) or size * dtype.itemsize >= 1 << 63:
        raise ConfigError(f"__cuda_array_interface__ has the impossible shape {dims}.")
    if strides is not None and len(strides) != len(dims):
        raise ConfigError(f"__cuda_array_interface__ has shape {dims} and strides {strides}.")
    if not address and size:
        raise ConfigError(f"__cuda_array_interface__ of shape {dims} has no memory.")
