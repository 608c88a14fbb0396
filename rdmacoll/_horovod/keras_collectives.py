"""Horovod's collectives of its Keras modules: of any value, evaluated at once in a graph of TensorFlow 1."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from rdmacoll._horovod import collectives
from rdmacoll._horovod.calls import operator_of
from rdmacoll.operators import Average
from rdmacoll.ops import Compression


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Any = None,
    compression: Any = Compression.none,
) -> Any:
    """`rdmacoll.tensorflow.allreduce` of a value; the name is this function's second argument."""
    return _evaluated(
        collectives.allreduce(
            _tensor(value),
            name=name,
            op=operator_of(op, average),
            compression=compression,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
    )


def allreduce_with_average(
    value: Any,
    name: str | None = None,
    average: bool = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Any = None,
    compression: Any = Compression.none,
) -> Any:
    """Like `allreduce`, for `horovod.keras`, where `average` is True by default. `op` replaces it."""
    if op is not None and average is not True:
        return allreduce(value, name, average, prescale_factor, postscale_factor, op, compression)
    older = average if op is None else None
    return allreduce(value, name, older, prescale_factor, postscale_factor, op, compression)


def allgather(value: Any, name: str | None = None) -> Any:
    """`rdmacoll.tensorflow.allgather` of a value."""
    return _evaluated(collectives.allgather(_tensor(value), name=name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """`rdmacoll.tensorflow.broadcast` of a value."""
    return _evaluated(collectives.broadcast(_tensor(value), root_rank, name=name))


def reducescatter(value: Any, name: str | None = None, op: Any = Average) -> Any:
    """`rdmacoll.tensorflow.reducescatter` of a value."""
    return _evaluated(collectives.reducescatter(_tensor(value), name=name, op=op))


def broadcast_global_variables(root_rank: int) -> Any:
    """Broadcasts all variables of a graph of TensorFlow 1, in Keras's session. Raises RuntimeError
    elsewhere."""
    return _evaluated(collectives.broadcast_global_variables(root_rank))


def _tensor(value: Any) -> Any:
    return value if isinstance(value, (tf.Tensor, tf.IndexedSlices)) else tf.convert_to_tensor(value)


def _evaluated(result: Any) -> Any:
    """The value of a tensor in a graph of TensorFlow 1; otherwise the tensor itself."""
    if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function:
        return result
    return graph_session().run(result)


def graph_session() -> Any:
    """The session of a graph of TensorFlow 1: the default one, or that of Keras 2, if there is none."""
    session = tf.compat.v1.get_default_session()
    if session is not None:
        return session
    for package in ("tf_keras", "keras"):
        found = getattr(sys.modules.get(f"{package}.src.backend"), "get_session", None)
        if found is not None:
            return found()
    return tf.compat.v1.keras.backend.get_session()
