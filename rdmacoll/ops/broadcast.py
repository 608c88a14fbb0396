"""broadcast: every rank gets the root's tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from rdmacoll.errors import ConfigError
from rdmacoll.operators import CODES, ReduceOp
from rdmacoll.ops import _baselines
from rdmacoll.ops._arguments import check_movable, check_root, in_groups, tensor as as_tensor
from rdmacoll.ops._gradient_kind import has_horovod_gradient
from rdmacoll.ops._gradients import dependent_zeros, with_zeros
from rdmacoll.ops._labels import label_of
from rdmacoll.ops._library import not_converted
from rdmacoll.ops._op_calls import reduce_group, send_group
from rdmacoll.ops._process_set_argument import takes_process_set
from rdmacoll.ops._process_sets import gradient_of_same_kind
from rdmacoll.ops._run_time import own_rank
from rdmacoll.process_set import global_process_set


@not_converted
@takes_process_set
def broadcast(tensor: Any, root_rank: int, name: str | None = None) -> Any:
    """Returns rank `root_rank`'s tensor on every rank.

    tensor: equal shape and dtype on all ranks, of every fixed-size dtype (those of `allgather`).
    The gradient (of floats; complex has none), at the root, is the sum of all ranks' gradients; elsewhere
    zero. `name` and errors as for `allreduce`.
    """
    return send_group([as_tensor(tensor)], root_rank=root_rank, name=name)[0]


@not_converted
@takes_process_set
def grouped_broadcast(tensors: Sequence[Any], root_rank: int, name: str | None = None) -> list[Any]:
    """`broadcast` of several tensors as one operation for each dtype: cheaper than one by one."""
    check_root(root_rank)
    return in_groups(
        "broadcast",
        [as_tensor(value) for value in tensors],
        name,
        lambda inputs: check_movable(inputs[0].dtype),
        lambda inputs, name, group: send_group(inputs, root_rank=root_rank, name=name, group=group),
    )


@not_converted
@takes_process_set
def broadcast_(variables: Iterable[Any], root_rank: int, name: str | None = None) -> list[Any]:
    """Broadcasts in place: assigns rank `root_rank`'s values to the variables of all ranks, as one operation
    for each dtype, and returns their values after that.

    variables: `tf.Variable` or `keras.Variable` objects, the same list on all ranks, of any fixed-size dtype
    (booleans, counters and the states of seed generators too). In a graph of TensorFlow 1 it happens when a
    returned value is fetched. Raises ConfigError for objects that are not variables, and the errors of
    `allreduce`.
    """
    targets = list(variables)
    for position, variable in enumerate(targets):
        if not hasattr(variable, "assign"):
            raise ConfigError(
                f"variables[{position}] is a {type(variable).__name__}, which cannot be assigned to: pass "
                "variables, or use broadcast() for tensors."
            )
        _check_movable(variable, position)
    values = [as_tensor(variable) for variable in targets]
    labels = {id(value): label_of(variable) for value, variable in zip(values, targets)}

    def send(inputs: list[Any], name: str | None, group: str) -> list[Any]:
        names = [labels[id(value)] for value in inputs]
        return send_group(inputs, root_rank=root_rank, name=name, labels=names, group=group)

    copies = in_groups("broadcast", values, name, lambda _: check_root(root_rank), send)
    assigned = [variable.assign(copy) for variable, copy in zip(targets, copies)]
    if tf.executing_eagerly():
        _baselines.record_baselines(targets)
    _baselines.note_broadcast(targets)
    with tf.control_dependencies([] if tf.executing_eagerly() else [a for a in assigned if a is not None]):
        return [tf.identity(copy) for copy in copies]


def _check_movable(variable: Any, position: int) -> None:
    """Raises ConfigError for a variable whose values cannot be sent, with its name."""
    kind = tf.as_dtype(variable.dtype).base_dtype.name
    if kind not in CODES:
        raise ConfigError(
            f"variable {getattr(variable, 'name', '')!r} (number {position} of the list) is of dtype {kind}, "
            f"which cannot be sent: leave it out of the list. Variables of {', '.join(CODES)} can be sent."
        )


@not_converted
@takes_process_set
def broadcast_variables(variables: Iterable[Any], root_rank: int = 0) -> Any:
    """`broadcast_` for the variables of a model and its optimizer.

    In a graph of TensorFlow 1 this returns the op that broadcasts. Run it after the variables are
    initialised. Otherwise this broadcasts, and returns None.
    """
    values = broadcast_(variables, root_rank)
    if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function:
        return None
    return tf.group(*values)


@takes_process_set
def broadcast_global_variables(root_rank: int = 0) -> Any:
    """In a graph of TensorFlow 1: an op that gives rank `root_rank`'s values to all current global
    variables. Run it in a session, after the initialisation; `BroadcastGlobalVariablesHook` does that in a
    MonitoredTrainingSession. Raises ConfigError elsewhere, since nothing keeps a list of all variables
    there."""
    if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function:
        raise ConfigError(
            "broadcast_global_variables() needs a graph of TensorFlow 1, since only that has a list of all "
            "variables. Use broadcast_variables(model.variables), or in fit "
            "keras.callbacks.BroadcastGlobalVariablesCallback."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


@tf.RegisterGradient("RdmacollBroadcast")
@gradient_of_same_kind
def _gradient(op: Any, *grads: Any) -> list[Any]:
    if not op.inputs[0].dtype.is_floating:
        return [None] * len(op.inputs)
    reduce_op = ReduceOp.AVERAGE if has_horovod_gradient(op) else ReduceOp.SUM
    totals = reduce_group(with_zeros(grads, op.outputs), op=reduce_op, name=None)
    is_root = own_rank(global_process_set) == op.get_attr("root_rank")
    if tf.is_tensor(is_root):
        return [tf.where(is_root, total, dependent_zeros(total)) for total in totals]
    return totals if is_root else [dependent_zeros(total) for total in totals]
