"""Names that programs import from `horovod.tensorflow.mpi_ops`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import rdmacoll.tensorflow as _own
from horovod.common.util import num_rank_is_power_2 as check_num_rank_power_of_2
from rdmacoll._horovod.calls import operator_of as handle_average_backwards_compatibility
from rdmacoll.tensorflow import *  # noqa: F403

__all__ = ["check_num_rank_power_of_2", "handle_average_backwards_compatibility", *_own.__all__]


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: Any = _own.Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: _own.ProcessSet = _own.global_process_set,
) -> Any:
    """`allreduce` with the sum as its default, as for the three functions below. Slices become dense."""
    options = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    return _own.allreduce(_dense(tensor), op=op, name=name, process_set=process_set, **options)


def _grouped_allreduce(
    tensors: Any,
    name: str | None = None,
    op: Any = _own.Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: _own.ProcessSet = _own.global_process_set,
) -> Any:
    options = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    values = [_dense(one) for one in tensors]
    return _own.grouped_allreduce(values, op=op, name=name, process_set=process_set, **options)


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: Any = _own.Sum,
    ignore_name_scope: bool = False,
    process_set: _own.ProcessSet = _own.global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    options = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    return _own.reducescatter(tensor, op=op, name=name, process_set=process_set, **options)


def _grouped_reducescatter(
    tensors: Any,
    name: str | None = None,
    op: Any = _own.Sum,
    ignore_name_scope: bool = False,
    process_set: _own.ProcessSet = _own.global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """The name has no effect."""
    options = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    return _own.grouped_reducescatter(tensors, op=op, process_set=process_set, **options)


def _dense(tensor: Any) -> Any:
    return tf.convert_to_tensor(tensor) if isinstance(tensor, tf.IndexedSlices) else tensor


class _Basics:
    """The world, as Horovod's object for it: `rank()`, `size()` and the other functions are its methods."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_own, name)

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return {number: list(one.ranks) for number, one in _own.process_sets().items()}


_basics = _Basics()
