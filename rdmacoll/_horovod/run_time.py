"""Tensors of numbers that Python computes whenever a graph runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from rdmacoll.ops._interrupts import waiting


def at_run_time(value: Callable[[], int], name: str | None = None) -> Any:
    """An int32 scalar. In a graph `value` is called in each run, and may wait for other ranks."""
    if tf.executing_eagerly():
        return tf.constant(value(), tf.int32)

    def run() -> Any:
        with waiting():
            return np.int32(value())

    return tf.ensure_shape(tf.numpy_function(run, [], tf.int32, stateful=True, name=name), ())
