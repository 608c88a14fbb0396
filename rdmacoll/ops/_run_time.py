"""Numbers that Python computes whenever a graph runs, as those of the world if the graph may outlive it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from rdmacoll._world import places
from rdmacoll.errors import ConfigError
from rdmacoll.ops._interrupts import waiting
from rdmacoll.ops._process_sets import current_set
from rdmacoll.process_set import ProcessSet


def at_run_time(value: Callable[[], int], name: str | None = None) -> Any:
    """An int32 scalar. In a graph `value` is called in each run, and may wait for other ranks."""
    if tf.executing_eagerly():
        return tf.constant(value(), tf.int32)

    def run() -> Any:
        with waiting():
            return np.int32(value())

    return tf.ensure_shape(tf.numpy_function(run, [], tf.int32, stateful=True, name=name), ())


def _outlives_world() -> bool:
    """Whether a graph is built in an elastic job, so that it may run in another world."""
    return places.is_elastic() and not tf.executing_eagerly()


def size_as(dtype: Any, process_set: ProcessSet | None = None) -> Any:
    """The number of ranks in the set, for arithmetic with tensors of `dtype`. Default: the set of the ops
    being built. In an elastic job a graph has that of the world in which it runs."""
    members = process_set or current_set()
    return tf.cast(at_run_time(members.size) if _outlives_world() else members.size(), dtype)


def own_rank(process_set: ProcessSet) -> Any:
    """This rank's number in the set: a number, or in a graph of an elastic job an int32 tensor."""
    return at_run_time(process_set.rank) if _outlives_world() else process_set.rank()


def fixed_size(what: str) -> int:
    """The number of ranks in the set of the ops being built, on which the structure of a graph depends.

    Raises ConfigError in a graph of an elastic job. what: the operation, for this error.
    """
    if _outlives_world():
        raise ConfigError(
            f"{what} in a tf.function of an elastic job: its graph has a part for each rank, and ranks may "
            "change. Combine gradients in another way, or leave out --min-np."
        )
    return int(current_set().size())
