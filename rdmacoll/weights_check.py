"""`check_weights`, for custom training loops: whether all ranks train the same model."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from rdmacoll._world import world
from rdmacoll.errors import ConfigError, MismatchError
from rdmacoll.ops._library import not_converted
from rdmacoll.optimizer import compared_values, reducer_of, update_check, with_inner
from rdmacoll.optimizer.compared_values import declare_local
from rdmacoll.optimizer.comparison import Comparison
from rdmacoll.process_set import ProcessSet, global_process_set
from rdmacoll.ps.calls import has_servers

__all__ = ["check_weights", "declare_local"]


@not_converted
def check_weights(model: Any, optimizer: Any = None, *, process_set: ProcessSet | None = None) -> None:
    """Compares the weights of `model`, and the slots, counts and learning rates of `optimizer`, between all
    ranks.

    All ranks call it at the same step. Call it between steps, from Python.

    model: a Keras model, a `tf.Module`, or a list of variables. optimizer: an optimizer of Keras or
    `tf.compat.v1.train`, wrapped or not; None: the model's optimizer, if it has one. process_set: the ranks
    that compare; None: the ranks of the wrapped optimizer, else all. Ranks that have joined take no part. In
    a graph of TensorFlow 1 it needs a default session.

    It leaves out gradient accumulators, states of seed generators, metrics, and variables of `declare_local`.
    It also leaves out non-trainable variables (statistics of batch normalisation) that a rank has changed
    since their last broadcast, or since the first check if there was none.

    Raises MismatchError on all ranks if a value differs by more than RDMACOLL_CHECK_WEIGHTS_TOLERANCE,
    relative to the largest value of its variable. A smaller difference is logged. Raises ConfigError with
    asynchronous parameter servers, since each worker has other values there, inside a `tf.function`, and for
    other objects.
    """
    world.current()
    if has_servers():
        raise ConfigError(
            "check_weights() with asynchronous parameter servers, where each worker has pulled its values at "
            "another moment: there is nothing to compare. Leave it out, or use sync=True."
        )
    if tf.inside_function():
        raise ConfigError(
            "check_weights() inside a tf.function would be called once, while it is traced: call it from "
            "Python, between steps."
        )
    optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
    if optimizer is not None and not hasattr(optimizer, "apply_gradients"):
        raise ConfigError(
            f"check_weights(optimizer={optimizer!r}): give an optimizer of Keras or tf.compat.v1.train, or "
            "leave it out for the model's."
        )
    one, title = _set_and_title(optimizer, process_set)
    if one.size() == 1:
        return
    comparison = Comparison(title, one)
    # Each call finds out which states have changed on one rank since the last broadcast.
    left_out: set[int] = set()
    comparison.read(lambda: _entries(model, optimizer), _session(), left_out)
    comparison.exchange()
    if comparison.is_equal():
        return
    found = comparison.difference(update_check.tolerance(), left_out)
    if found is None:
        return
    text = f"in check_weights(), {found.sentence()}"
    if found.is_beyond:
        raise MismatchError(update_check.exceeded_text(text, found))
    if one.rank() == comparison.live[0]:
        update_check.log().notice(f"{text}: {update_check.tolerated_text(found)}")


def _entries(model: Any, optimizer: Any) -> tuple[list[compared_values.Entry], list[compared_values.Entry]]:
    weights = compared_values.entries_of(compared_values.weights_of(model), optimizer)
    return weights, compared_values.variable_entries(compared_values.states_of(model))


def _set_and_title(optimizer: Any, process_set: ProcessSet | None) -> tuple[ProcessSet, str]:
    parts = [] if optimizer is None else with_inner(optimizer)
    reducers = [one for one in map(reducer_of, parts) if one is not None]
    title = f"check_weights of {reducers[0].name}" if reducers else "check_weights"
    if process_set is not None:
        return process_set, title
    return (reducers[0].process_set if reducers else global_process_set), title


def _session() -> Any:
    """The default session in a graph of TensorFlow 1, whose variables have values only there; else None."""
    if tf.executing_eagerly():
        return None
    session = tf.compat.v1.get_default_session()
    if session is None:
        raise ConfigError(
            "check_weights() in a graph of TensorFlow 1 reads variables in a session: call it within "
            "`with session.as_default():`."
        )
    return session
