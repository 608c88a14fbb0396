"""broadcast: every rank gets the root's tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from rdmacoll.engine import world
from rdmacoll.engine.errors import ConfigError
from rdmacoll.engine.operators import ReduceOp
from rdmacoll.ops._arguments import by_dtype, check_movable, check_root, tensor as as_tensor
from rdmacoll.ops._gradients import filled, zeros_that_wait
from rdmacoll.ops._library import must_run, not_converted, op_scope, ops, typed_errors
from rdmacoll.ops._names import op_name


@not_converted
def broadcast(tensor: Any, root_rank: int, name: str | None = None) -> Any:
    """Returns rank `root_rank`'s tensor on every rank.

    tensor: equal shape and dtype on all ranks, of every fixed-size dtype (those of `allgather`).
    The gradient (of floats; complex has none), at the root, is the sum of all ranks' gradients; elsewhere
    zero. `name` and errors as for `allreduce`.
    """
    return send_group([as_tensor(tensor)], root_rank=root_rank, name=name)[0]


@not_converted
def broadcast_variables(variables: Iterable[Any], root_rank: int = 0) -> None:
    """Assigns rank `root_rank`'s values to the variables of all ranks, as one operation for each dtype.

    variables: `tf.Variable` or `keras.Variable` objects, the same list on all ranks, of any fixed-size
    dtype (booleans, counters and the states of seed generators too). Raises ConfigError for what is no
    variable, and the errors of `allreduce`.
    """
    targets = list(variables)
    for position, variable in enumerate(targets):
        if not hasattr(variable, "assign"):
            raise ConfigError(
                f"variables[{position}] is a {type(variable).__name__}, which cannot be assigned to: pass "
                "variables, or use broadcast() for tensors."
            )
    values = [as_tensor(variable) for variable in targets]
    for indices in by_dtype(values).values():
        copies = send_group(
            [values[index] for index in indices],
            root_rank=root_rank,
            name=None,
            labels=[str(getattr(targets[index], "name", "")) for index in indices],
        )
        for index, copy in zip(indices, copies):
            targets[index].assign(copy)


def send_group(
    tensors: Sequence[Any], *, root_rank: int, name: str | None, labels: Sequence[str] = ()
) -> list[Any]:
    """One op for tensors of one dtype."""
    check_movable(tensors[0].dtype)
    functions = ops()
    root = check_root(root_rank)
    with op_scope(), typed_errors():
        results = list(
            functions.rdmacoll_broadcast(
                tensors=tensors,
                root_rank=root,
                tensor_name=op_name(name),
                labels=list(labels),
            )
        )
    return must_run(results)


@tf.RegisterGradient("RdmacollBroadcast")
def _gradient(op: Any, *grads: Any) -> list[Any]:
    from rdmacoll.ops.allreduce import reduce_group

    if not op.inputs[0].dtype.is_floating:
        return [None] * len(op.inputs)
    totals = reduce_group(filled(grads, op.outputs), op=ReduceOp.SUM, name=None)
    if world.rank() == op.get_attr("root_rank"):
        return totals
    return [zeros_that_wait(total) for total in totals]
