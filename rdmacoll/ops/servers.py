"""Pushes to asynchronous parameter servers, and pulls from them, as TensorFlow ops.

The ops are stateful: within a function TensorFlow runs them in the order of the program. No thread of
TensorFlow waits for a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll.errors import ConfigError
from rdmacoll.ops._arguments import by_dtype, tensor as as_tensor
from rdmacoll.ops._library import not_converted, op_scope, ops
from rdmacoll.ops._typed_errors import typed_errors
from rdmacoll.ps.calls import current


@not_converted
def push(tensor: Any, name: str, learning_rate: Any = None) -> Any:
    """Lets the servers update variable `name` by the gradient `tensor`, of its shape and dtype. A
    `tf.IndexedSlices` updates its rows. learning_rate: of this update, a scalar tensor or a number; None: the
    rule's. Returns the operation in a graph of TensorFlow 1, elsewhere None.

    Raises ConfigError if the tensor does not fit, NotInitializedError, and RankFailedError after a server has
    died. In a graph it raises TensorFlow's classes (`rdmacoll.error_from` gives the typed one).
    """
    if isinstance(tensor, tf.IndexedSlices):
        gradients, rows = _slices(tensor, name)
        with op_scope(), typed_errors():
            rate = _rate(learning_rate)
            return _to_run(
                ops().rdmacoll_ps_push_rows(
                    gradients=gradients, rows=rows, learning_rate=rate, variables=[name]
                )
            )
    with op_scope(), typed_errors():
        fitting = [_checked_gradient(as_tensor(tensor), name)]
        rate = _rate(learning_rate)
        return _to_run(ops().rdmacoll_ps_push(gradients=fitting, learning_rate=rate, variables=[name]))


@not_converted
def pull(name: str) -> Any:
    """The value of variable `name` when the op runs: a tensor. Errors as of `push`."""
    variable = current().variable(name)
    with op_scope(), typed_errors():
        value = ops().rdmacoll_ps_pull(
            dims=list(variable.shape), T=tf.as_dtype(variable.dtype), variables=[name]
        )
    value.set_shape(variable.shape)
    return value


@not_converted
def pull_rows(rows: Any, name: str) -> Any:
    """The values of some rows of variable `name`. rows: n integers. The tensor has shape (n, ...). Errors
    as of `push`."""
    variable = current().variable(name)
    rows = tf.cast(tf.reshape(rows, (-1,)), tf.int64)
    dims = tf.concat([tf.shape(rows, tf.int64), tf.constant(variable.shape[1:], tf.int64)], 0)
    with op_scope(), typed_errors():
        values = ops().rdmacoll_ps_pull_rows(
            rows=rows, dims=dims, T=tf.as_dtype(variable.dtype), variables=[name]
        )
    values.set_shape([rows.shape[0], *variable.shape[1:]])
    return values


@not_converted
def exchange(gradients: Sequence[Any], names: Sequence[str], learning_rate: Any = None) -> list[Any]:
    """One step: pushes gradients of these variables and returns their fresh values. It takes one request
    to each server for each dtype. For a `tf.IndexedSlices` its rows are pushed and pulled, and the values
    are slices of the same indices. learning_rate and errors are those of `push`."""
    fitting = [
        tf.IndexedSlices(*_slices(gradient, name), gradient.dense_shape)
        if isinstance(gradient, tf.IndexedSlices)
        else _checked_gradient(as_tensor(gradient), name)
        for gradient, name in zip(gradients, names)
    ]
    return exchange_undeclared(fitting, names, learning_rate)


def exchange_undeclared(
    gradients: Sequence[Any], names: Sequence[str], learning_rate: Any = None
) -> list[Any]:
    """Like `exchange`, for variables that may be declared after the ops are built, but before they run."""
    results: list[Any] = list(gradients)
    with op_scope():
        rate = _rate(learning_rate)
    dense = []
    for index, (gradient, name) in enumerate(zip(gradients, names)):
        if isinstance(gradient, tf.IndexedSlices):
            indices = tf.cast(gradient.indices, tf.int64)
            with op_scope(), typed_errors():
                values = ops().rdmacoll_ps_exchange_rows(
                    gradients=gradient.values, rows=indices, learning_rate=rate, variables=[name]
                )
            results[index] = tf.IndexedSlices(values, indices, gradient.dense_shape)
        else:
            dense.append(index)
    for positions in by_dtype([results[index] for index in dense]).values():
        group = [dense[position] for position in positions]
        with op_scope(), typed_errors():
            values = ops().rdmacoll_ps_exchange(
                gradients=[results[index] for index in group],
                learning_rate=rate,
                variables=[names[index] for index in group],
            )
        for index, value in zip(group, values):
            results[index] = value
    return results


def _rate(learning_rate: Any) -> Any:
    """The learning rate as the ops take it: a scalar, or empty for None."""
    if learning_rate is None:
        return tf.zeros((0,), tf.float64)
    if isinstance(learning_rate, (int, float)):
        return tf.constant(learning_rate, tf.float64)
    return tf.cast(tf.reshape(learning_rate, ()), tf.float64)


def _to_run(operation: Any) -> Any:
    """The result for a program: the operation, or None in functions, where it runs by itself."""
    return None if operation is None or operation.graph.building_function else operation


def _slices(slices: Any, name: str) -> tuple[Any, Any]:
    """The rows of a gradient, and their numbers. Raises ConfigError if they do not fit the variable."""
    variable = current().variable(name)
    values = as_tensor(slices.values)
    if values.dtype != variable.dtype or not values.shape[1:].is_compatible_with(variable.shape[1:]):
        raise ConfigError(
            f"variable {name!r} has rows of {variable.dtype}{list(variable.shape[1:])}, and the gradient has "
            f"rows of {values.dtype.name}{values.shape[1:].as_list()}: both must be equal."
        )
    return values, tf.cast(slices.indices, tf.int64)


def _checked_gradient(tensor: Any, name: str) -> Any:
    variable = current().variable(name)
    if tensor.dtype != variable.dtype or not tensor.shape.is_compatible_with(variable.shape):
        shape = tensor.shape.as_list() if tensor.shape.rank is not None else "of unknown shape"
        raise ConfigError(
            f"variable {name!r} is {variable.dtype}{list(variable.shape)}, and its gradient is "
            f"{tensor.dtype.name}{shape}: both must be equal. tf.cast and tf.reshape change the gradient."
        )
    return tensor
