"""Arrays of a call in host memory, or in memory of a GPU: as the engine takes them, and as callers get them.

numpy arrays are told apart by their type. Everything else of them is in `arguments`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rdmacoll._abi import arguments, dlpack
from rdmacoll._abi.arguments import Array
from rdmacoll._calls import device_arrays
from rdmacoll._calls.array_libraries import LEGACY_STREAM, ArrayLibrary, Order, given_order, library_of
from rdmacoll._calls.device_arrays import UNKNOWN_GPU, DeviceArray
from rdmacoll._calls.gpu_array import GpuArray
from rdmacoll._calls.submission import Operand
from rdmacoll._world.world import current
from rdmacoll.errors import ConfigError


def source(array: Any, stream: Any = None) -> Operand:
    """The array as the engine takes it: C-contiguous and in the machine's byte order.

    stream: the caller's `stream=`. None: the current one of the array's library. Raises ConfigError.
    """
    if type(array) is np.ndarray and stream is None:
        return arguments.source(array)
    if device_arrays.is_on_device(array):
        return _contiguous(read(array, stream))
    return arguments.source(_on_host(array, stream))


def _on_host(array: Any, stream: Any) -> Any:
    """The array as numpy takes it. Raises ConfigError for a stream."""
    if stream is not None:
        raise ConfigError(
            f"stream={stream!r} orders work of a GPU, and the array is in host memory: leave it out."
        )
    is_pinned = device_arrays.dlpack_kind(array) == dlpack.CUDA_HOST
    return np.from_dlpack(array) if is_pinned and not hasattr(array, "__array__") else array


def read(array: Any, stream: Any) -> DeviceArray:
    """The memory of an array on a GPU as it is, also if it is not contiguous. stream: as in `source`."""
    library = library_of(array)
    if stream is not None:
        order = given_order(stream)
    elif isinstance(array, GpuArray):
        # Its protocol names a stream for a while only. The stream of this call waits for that one.
        order = Order(LEGACY_STREAM)
    else:
        order = library.order(array)
    return _read_on(array, library, order)


def _read_on(array: Any, library: ArrayLibrary, order: Order) -> DeviceArray:
    found = library.read(array, order.stream)
    if isinstance(array, GpuArray):
        array.use_on(order)
    gpu = found.gpu
    if gpu == UNKNOWN_GPU:
        with current().held() as engine:
            gpu = current().library.gpu_of(engine, found.address)
    return found._replace(gpu=gpu, order=order, library=library)


def _contiguous(found: DeviceArray) -> DeviceArray:
    if found.is_contiguous:
        return found
    library: ArrayLibrary = found.library
    _check_copies(found, "the array is not C-contiguous")
    return _read_on(library.contiguous(found.array, found.order), library, found.order)


def _check_copies(found: DeviceArray, cause: str) -> None:
    if not found.library.can_copy:
        kind = type(found.array)
        raise ConfigError(
            f"{cause}, and rdmacoll cannot copy a {kind.__module__}.{kind.__qualname__}: pass a contiguous "
            "one that is apart."
        )


def source_and_target(array: Any, out: Any, stream: Any = None) -> tuple[Operand, Operand]:
    """The array that the engine reads, and the one that it writes. Both are one array in place."""
    if type(array) is not np.ndarray and device_arrays.is_on_device(array):
        found = _contiguous(read(array, stream))
        return found, _target(found, array, out)
    if out is not None and not isinstance(out, np.ndarray) and device_arrays.is_on_device(out):
        raise ConfigError("the array is in host memory, and out in memory of a GPU: give both in one.")
    is_plain = type(array) is np.ndarray and stream is None
    return arguments.source_and_target(array if is_plain else _on_host(array, stream), out)


def _target(read: DeviceArray, array: Any, out: Any) -> DeviceArray:
    if out is None:
        return new_like(read)
    if out is array:
        target = read if read.array is array else _read_on(array, library_of(array), read.order)
    elif not device_arrays.is_on_device(out):
        raise ConfigError(
            f"the array is in memory of a GPU, and out is a {type(out).__name__} in host memory: give both "
            "in one."
        )
    else:
        target = _read_on(out, library_of(out), read.order)
    _check_target(read, target)
    is_overlapping = (
        read.address != target.address
        and read.address < target.address + target.nbytes
        and target.address < read.address + read.nbytes
    )
    if target.is_contiguous and not is_overlapping:
        return target
    cause = "overlaps the array without being the same memory" if is_overlapping else "is not C-contiguous"
    _check_copies(target, f"out {cause}")
    return new_like(read)


def _check_target(read: DeviceArray, target: DeviceArray) -> None:
    if target.library.refusal_to_write is not None:
        raise ConfigError(target.library.refusal_to_write)
    if target.shape != read.shape or target.dtype != read.dtype:
        raise ConfigError(
            f"out has shape {target.shape} and dtype {target.dtype}, the result {read.shape} and "
            f"{read.dtype}."
        )
    if target.is_read_only:
        raise ConfigError("out is read-only.")
    _check_one_gpu([read, target], ["the array", "out"])


def new_like(read: DeviceArray) -> DeviceArray:
    """A new array of the library of `read`, the caller's array, or memory that `deliver` gives to it."""
    library: ArrayLibrary = read.library
    array = library.empty_like(read.array, read.order)
    if array is None:
        if read.gpu == UNKNOWN_GPU:  # an array without elements and memory, and so is the result
            memory = GpuArray(None, 0, read.shape, read.dtype, 0)
        else:
            memory = GpuArray.allocate(current(), read.shape, read.dtype, read.gpu, read.order)
        return read._replace(address=memory.address, array=memory, owner=memory)
    return _read_on(array, library, read.order)


def deliver(result: Operand, out: Any) -> Array:
    """The result as the caller gets it: in `out`, or as a new array of the array's library."""
    if not isinstance(result, DeviceArray):
        return arguments.deliver(result, out)
    if out is None and isinstance(result.array, GpuArray):
        return result.library.adopt(result.array)  # type: ignore[no-any-return]
    array: Array = result.array if out is None else out
    if array is not result.array:
        library_of(out).assign(out, result.array, result.order)
    return array


def check_prepared_array(value: Any, label: str, operation: str, stream: Any) -> None:
    """Raises ConfigError for an array whose memory a prepared call of this operation cannot use directly."""
    if not device_arrays.is_on_device(value):
        if not isinstance(value, np.ndarray) or not value.flags.c_contiguous or not value.dtype.isnative:
            raise ConfigError(
                f"prepare_{operation} keeps the memory of {label}: it must be a C-contiguous numpy array."
            )
        return
    found = read(value, stream)
    if not found.is_contiguous:
        raise ConfigError(f"prepare_{operation} keeps the memory of {label}: it must be C-contiguous.")
    if found.library.refusal_to_write is not None:
        raise ConfigError(
            f"prepare_{operation} writes its result anew in each run, and arrays of this library are "
            f"immutable: call {operation} instead."
        )


def check_group(sources: Sequence[Operand]) -> None:
    """Raises ConfigError for a group in several memories, or on several streams."""
    if DeviceArray not in set(map(type, sources)):
        return
    on_gpu = [one for one in sources if isinstance(one, DeviceArray)]
    if len(on_gpu) < len(sources):
        host = next(i for i, one in enumerate(sources) if not isinstance(one, DeviceArray))
        gpu = next(i for i, one in enumerate(sources) if isinstance(one, DeviceArray))
        raise ConfigError(
            f"array {host} of the group is in host memory, and array {gpu} in memory of a GPU: make a group "
            "of each."
        )
    _check_one_gpu(on_gpu, [f"array {i}" for i in range(len(on_gpu))])
    streams = [one.order.stream for one in on_gpu]
    if len(set(streams)) > 1:
        other = next(i for i, stream in enumerate(streams) if stream != streams[0])
        raise ConfigError(
            f"array 0 of the group is ordered by the stream {streams[0]:#x}, and array {other} by "
            f"{streams[other]:#x}: name one of them with stream=, after it has waited for the others."
        )


def _check_one_gpu(arrays: Sequence[DeviceArray], labels: Sequence[str]) -> None:
    # Empty arrays may have no memory, so their GPU is unknown.
    known = [(one.gpu, label) for one, label in zip(arrays, labels) if one.gpu != UNKNOWN_GPU]
    for gpu, label in known:
        if gpu != known[0][0]:
            raise ConfigError(
                f"{known[0][1]} is in memory of cuda:{known[0][0]}, and {label} in memory of cuda:{gpu}: "
                "make a call for each GPU."
            )


def check_apart(sources: Sequence[Operand], targets: Sequence[Operand]) -> None:
    """Raises ConfigError when a target of a group on a GPU shares memory with another member."""
    spans = []
    for position, (read, target) in enumerate(zip(sources, targets)):
        if not isinstance(read, DeviceArray) or not isinstance(target, DeviceArray):
            return  # host memory: `arguments.check_apart`
        spans.append((target.address, target.address + target.nbytes, position, True))
        if read.address != target.address:
            spans.append((read.address, read.address + read.nbytes, position, False))
    active: list[tuple[int, int, int, bool]] = []  # spans that begin before this one and reach into it
    for span in sorted(spans):
        begin, end, position, is_target = span
        active = [other for other in active if other[1] > begin]
        for _, _, other, is_other_target in active:
            if begin < end and position != other and (is_target or is_other_target):
                first, second = (position, other) if is_target else (other, position)
                label = "array"
                if is_target and is_other_target:
                    first, second, label = min(first, second), max(first, second), "out"
                raise ConfigError(
                    f"out[{first}] and {label}[{second}] share memory: the out of a group may be the array "
                    "of its own position, and must be apart from all others."
                )
        active.append(span)
