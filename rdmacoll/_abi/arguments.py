"""Arguments of the collectives: as the engine takes them, or a ConfigError that names value and cure.

A correct argument costs only a type check. Error messages are made on the slow path.
"""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from rdmacoll.errors import ConfigError

Array = np.ndarray[Any, Any]
_byte_at: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer
_address_of = ctypes.addressof
SPLITS = np.dtype(np.int64)


def source(array: Any) -> Array:
    """The array as the engine takes it: C-contiguous and in the machine's byte order."""
    if type(array) is not np.ndarray:
        array = _as_array(array)
    if not array.flags.c_contiguous:
        array = np.array(array, order="C")  # ascontiguousarray would make a scalar an array
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array  # type: ignore[no-any-return]


def _as_array(value: Any) -> Array:
    refuse_mask(value, "the array")
    if value is None:
        raise ConfigError(
            "the array is None: give an array on every rank. If its values do not count on this rank, its "
            "dtype and the shape of a row still do, so np.empty((0, 3)) is enough for scatter."
        )
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"numpy cannot make an array of a {type(value).__name__}: {error}.") from None


def refuse_mask(value: Any, label: str) -> None:
    """Raises ConfigError, with the label, for a masked array: collectives take no masks."""
    if isinstance(value, np.ma.MaskedArray):
        raise ConfigError(
            f"{label} is a masked array, and the mask would be lost: pass array.filled(value), or array.data."
        )


def is_plain(array: Any) -> bool:
    """Whether the engine can work in place on this array. The common case, decided with few look-ups."""
    if type(array) is not np.ndarray:
        return False
    flags = array.flags
    return bool(flags.c_contiguous and flags.writeable and array.dtype.isnative)


def target(source_array: Array, out: Array | None, *, array: Any) -> Array:
    """The array that the engine writes.

    This is `out` itself if possible. Otherwise it is new memory, which `deliver` copies to `out`.
    """
    if out is None:
        return np.empty(source_array.shape, source_array.dtype)
    if not isinstance(out, np.ndarray):
        raise ConfigError(f"out must be a numpy array, not {type(out).__name__}.")
    if type(out) is not np.ndarray:
        refuse_mask(out, "out")
    if out.shape != source_array.shape or out.dtype.newbyteorder("=") != source_array.dtype:
        raise ConfigError(
            f"out has shape {out.shape} and dtype {out.dtype}, the result {source_array.shape} and "
            f"{source_array.dtype}."
        )
    if not out.flags.writeable:
        raise ConfigError("out is read-only.")
    if not out.flags.c_contiguous or not out.dtype.isnative:
        return np.empty(source_array.shape, source_array.dtype)
    if out is not array and np.may_share_memory(out, source_array) and not _is_same(out, source_array):
        return np.empty(source_array.shape, source_array.dtype)  # overlapping, but not in place
    return out


def source_and_target(array: Any, out: Array | None) -> tuple[Array, Array]:
    """The array that the engine reads, and the one that it writes.

    Both are one array if the call is in place.
    """
    source_array = source(array)
    target_array = target(source_array, out, array=array)
    return (target_array if target_array is array else source_array), target_array


def _is_same(a: Array, b: Array) -> bool:
    return bool(a.__array_interface__["data"][0] == b.__array_interface__["data"][0])


def deliver(result: Array, out: Array | None) -> Array:
    """The result in the caller's `out`, or itself if there is none."""
    if out is None or out is result:
        return result
    out[...] = result
    return out


def address_of(array: Array) -> int:
    """The address of a C-contiguous array's bytes. The buffer interface is the cheapest way to get it."""
    try:
        return _address_of(_byte_at(array))
    except (TypeError, ValueError):  # read-only, empty, or a dtype without a buffer format
        address: int = array.__array_interface__["data"][0]
        return address


def check_apart(arrays: Sequence[Any], outs: Sequence[Array]) -> None:
    """Raises ConfigError when an `out` of a group shares memory with another member.

    The engine would write a result over values that it has not read yet, or over another result.
    """
    if _are_apart([*outs, *[array for array, out in zip(arrays, outs) if array is not out]]):
        return
    members = [(True, i, out) for i, out in enumerate(outs) if isinstance(out, np.ndarray)]
    members += [
        (False, i, array)
        for i, array in enumerate(arrays)
        if array is not outs[i] and isinstance(array, np.ndarray)
    ]
    spans = sorted([(*_span(array), number) for number, (_, _, array) in enumerate(members)])
    active: list[tuple[int, int]] = []  # (end, member) of spans that begin before this one and reach into it
    for begin, end, number in spans:
        if begin == end:
            continue
        if active:
            active = [entry for entry in active if entry[0] > begin]
            for _, other in active:
                _check_pair(members[min(number, other)], members[max(number, other)])
        active.append((end, number))


def _are_apart(arrays: Sequence[Any]) -> bool:
    """Whether all arrays are contiguous and none begins inside another. The common case, decided fast."""
    try:
        spans = sorted([(_address_of(_byte_at(array)), array.nbytes) for array in arrays])
    except (AttributeError, TypeError, ValueError):
        return False  # not contiguous, empty, read-only, or no array: `check_apart` compares them in detail
    last = 0
    for begin, size in spans:
        if begin < last:
            return False
        last = begin + size
    return True


def _check_pair(first: tuple[bool, int, Array], second: tuple[bool, int, Array]) -> None:
    is_same_position = first[1] == second[1]
    if not first[0] or is_same_position or not np.shares_memory(first[2], second[2]):
        return
    other = f"out[{second[1]}]" if second[0] else f"array {second[1]}"
    raise ConfigError(
        f"out[{first[1]}] and {other} share memory: the out of a group may be the array of its own position, "
        "and must be apart from all others."
    )


def _span(array: Array) -> tuple[int, int]:
    if array.flags.c_contiguous:
        begin = address_of(array)
        return begin, begin + array.nbytes
    begin = end = int(array.__array_interface__["data"][0])
    for length, stride in zip(array.shape, array.strides):
        reach = (length - 1) * stride
        begin, end = (begin + reach, end) if reach < 0 else (begin, end + reach)
    return begin, end + array.itemsize if array.size else begin


def scale(value: Any, label: str) -> float:
    """A factor. Raises ConfigError for a value that is no finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{label}={value!r} is not a finite number: use 1.0 for no scaling.")
    return number


def check_exact(dtype: str, factor: float, label: str) -> None:
    """Raises ConfigError when an integer times `factor` would have to round, and for bool."""
    if factor != 1.0 and dtype == "bool":
        raise ConfigError(f"{label}={factor}: bool values cannot be scaled. Leave it out.")
    if not factor.is_integer() and dtype.startswith(("int", "uint")):
        raise ConfigError(
            f"{label}={factor} would round values of {dtype}: scale after the reduction, or use a float "
            "dtype."
        )


def scales(dtype: Any, prescale: Any, postscale: Any) -> tuple[float, float]:
    """Both factors. Raises ConfigError for a factor that is not finite, or would make integers round."""
    factors = scale(prescale, "prescale_factor"), scale(postscale, "postscale_factor")
    check_exact(dtype.name, factors[0], "prescale_factor")
    check_exact(dtype.name, factors[1], "postscale_factor")
    return factors


def root(root_rank: Any, size: int) -> int:
    """The root as a rank of this world. Raises ConfigError."""
    if type(root_rank) is int and 0 <= root_rank < size:
        return root_rank
    number = _integer(root_rank)
    if number is None or not 0 <= number < size:
        raise ConfigError(f"root_rank={root_rank!r} is no rank of this world: ranks are 0 to {size - 1}.")
    return number


def check_has_rows(array: Any, operation: str) -> None:
    """Raises ConfigError when there is no first dimension."""
    if array.ndim == 0:
        raise ConfigError(
            f"{operation} cuts arrays along the first dimension, and a scalar has none: reshape it to (1,)."
        )


def splits(value: Any, size: int) -> Array:
    """The number of rows for each rank, as the engine takes them.

    The engine checks that they fit the array.
    """
    try:
        numbers = [_integer(item) for item in value]
    except TypeError:
        numbers = [None]
    if None in numbers or any(not -(1 << 63) <= int(number or 0) < 1 << 63 for number in numbers):
        raise ConfigError(
            f"splits={value!r} is no list of whole numbers: give one number of rows for each rank, or None."
        )
    if len(numbers) != size:
        raise ConfigError(f"splits={value!r} has {len(numbers)} numbers, but there are {size} ranks.")
    return np.array(numbers, SPLITS)


def name(value: Any) -> str:
    """An operation's name, checked for the library, which ends names at a NUL. Raises ConfigError."""
    if not isinstance(value, str):
        raise ConfigError(f"name={value!r} is a {type(value).__name__}: a name is a str, or None.")
    if "\0" in value:
        raise ConfigError(f"name={value!r} holds a NUL character: leave it out.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"name={value!r} cannot be written in UTF-8: leave the surrogates out.") from None
    return value


def timeout(value: Any) -> float | None:
    """Seconds, or None for no limit. Raises ConfigError."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if math.isnan(seconds):
        raise ConfigError(f"timeout_s={value!r} is no number of seconds: use None for no limit.")
    return None if seconds == math.inf else seconds


def shape(value: Any) -> tuple[int, ...]:
    """Dimensions, from a number or a sequence of numbers. Raises ConfigError."""
    single = _integer(value)
    try:
        items = list(value) if single is None else [single]
    except TypeError:
        items = [None]
    dims = [_integer(item) for item in items]
    if any(dim is None or dim < 0 for dim in dims):
        raise ConfigError(f"shape={value!r}: a shape is a whole number from 0, or a sequence of them.")
    return tuple(dim for dim in dims if dim is not None)


def dtype(value: Any) -> np.dtype[Any]:
    """A dtype whose values lie in the array itself. Raises ConfigError."""
    try:
        kind: np.dtype[Any] = np.dtype(value)
    except TypeError:
        raise ConfigError(f"dtype={value!r} is no dtype of numpy.") from None
    if kind.hasobject:
        raise ConfigError(f"dtype={value!r} holds references to objects: use a dtype of fixed size.")
    return kind


def _integer(value: Any) -> int | None:
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
