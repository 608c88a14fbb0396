"""Checks of arguments, before anything is submitted."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Callable

import tensorflow as tf

from rdmacoll._abi.arguments import refuse_mask, root, scales as scales
from rdmacoll._world import world
from rdmacoll.errors import ConfigError
from rdmacoll.operators import CODES, reduction as reduction
from rdmacoll.ops._names import names_used, op_name
from rdmacoll.ops._refusals import announce_empty_group, note_refused


def bits(value: float) -> int:
    """A double as the integer with the same bits: TensorFlow's float attributes have 32 only.

    >>> hex(bits(1.0))
    '0x3ff0000000000000'
    """
    return int(struct.unpack("<q", struct.pack("<d", float(value)))[0])


def from_bits(pattern: int) -> float:
    """The double with these bits.

    >>> from_bits(bits(0.1))
    0.1
    """
    return float(struct.unpack("<d", struct.pack("<q", pattern))[0])


def check_movable(dtype: Any) -> None:
    """Raises ConfigError when collectives that move values do not take this dtype."""
    if dtype.name not in CODES:
        raise ConfigError(
            f"{dtype.name} cannot be sent: collectives that move values take {', '.join(CODES)}."
        )


def sparse_as_dense(value: Any) -> bool | str:
    """Checks how slices are to be reduced. Raises ConfigError for any other value."""
    if type(value) is not bool and value != "auto":
        raise ConfigError(f'sparse_as_dense={value!r}: False, True and "auto" are allowed.')
    return value  # type: ignore[no-any-return]


def check_root(root_rank: int) -> int:
    """Returns the root. Raises ConfigError if there is no such rank."""
    return root(root_rank, world.size())


def by_dtype(tensors: Sequence[Any]) -> dict[Any, list[int]]:
    """The positions of each dtype, in order of first appearance: an op takes one dtype."""
    groups: dict[Any, list[int]] = {}
    for index, tensor in enumerate(tensors):
        groups.setdefault(tensor.dtype.base_dtype, []).append(index)
    return groups


def in_groups(
    kind: str,
    tensors: Sequence[Any],
    name: str | None,
    check: Callable[[list[Any]], Any],
    call: Callable[[list[Any], str | None, str], list[Any]],
) -> list[Any]:
    """Runs one op for each dtype, and returns the results in the order of `tensors`.

    call: takes the tensors of a dtype, the op's name, and a text with all dtypes. Only the first op of
    several gets this text, otherwise it is empty. The other ops begin after the success of the first one, so
    that ranks agree on the group before they differ. In a graph the group has one name, whatever its dtypes,
    so that later names stay the same on all ranks. check: takes the tensors of a dtype. It raises ConfigError
    for tensors that are refused, before any op begins.
    """
    outputs: list[Any] = [None] * len(tensors)
    # In an order that all ranks share.
    groups = dict(sorted(by_dtype(tensors).items(), key=lambda item: str(item[0].name)))
    if not groups:
        announce_empty_group(kind, name)
    for indices in groups.values():
        check([tensors[index] for index in indices])
    if len(groups) > 1 and name is None and not tf.executing_eagerly():
        name = op_name(None)
    dtype_names = ", ".join(dtype.name for dtype in groups) if len(groups) > 1 else ""
    awaited: list[Any] = []
    for position, (dtype, indices) in enumerate(groups.items()):
        title = name if name is None or position == 0 else f"{name}/{dtype.name}"
        before = names_used()
        try:
            with tf.control_dependencies(awaited):
                results = call([tensors[index] for index in indices], title, "" if position else dtype_names)
        except Exception as error:
            if names_used() == before:
                note_refused(error, title)
            raise
        awaited = awaited or results
        for index, result in zip(indices, results):
            outputs[index] = result
    return outputs


def check_has_rows(value: Any, operation: str) -> None:
    """Raises ConfigError when a tensor is known to have no first dimension."""
    if value.shape.rank == 0:
        raise ConfigError(
            f"{operation} cuts tensors along the first dimension, and a scalar has none: reshape it to (1,)."
        )


def rows_of(value: Any) -> Any:
    """The size of the first dimension as int64; 1 for a scalar."""
    return tf.constant(1, tf.int64) if value.shape.rank == 0 else tf.shape(value, out_type=tf.int64)[0]


def as_splits(splits: Any) -> Any:
    """Numbers of rows as the ops take them; empty: equal parts. Raises ConfigError."""
    if splits is None:
        return tf.zeros((0,), tf.int64)
    numbers = tf.convert_to_tensor(splits)
    if (
        not numbers.dtype.is_integer
        or numbers.shape.rank not in (None, 1)
        or numbers.shape.num_elements() == 0
    ):
        raise ConfigError(
            f"splits={splits!r} is no list of whole numbers: give one number of rows for each rank, or None."
        )
    return tf.cast(numbers, tf.int64)


def tensor(value: Any) -> Any:
    """The value as a dense tensor. Raises ConfigError for ragged and sparse ones, and for masked arrays."""
    refuse_mask(value, "the array")
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        cure = "to_tensor()" if isinstance(value, tf.RaggedTensor) else "tf.sparse.to_dense()"
        raise ConfigError(f"a {type(value).__name__} has no single shape: make it dense first, with {cure}.")
    return tf.convert_to_tensor(value)
