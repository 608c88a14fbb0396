"""Several replicas in a process (`tf.distribute`).

A strategy runs the step once for each replica, and sums their gradients when they are applied. A wrapped
optimizer sums them so first, and reduces that sum over the ranks once. A wrapped tape does not know how its
gradients are applied: it reduces those of each replica over the ranks. Sums and means come to the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from rdmacoll.engine.errors import ConfigError
from rdmacoll.ops._library import not_converted
from rdmacoll.ops._names import replica_count
from rdmacoll.optimizer import once

if TYPE_CHECKING:
    from rdmacoll.optimizer.reduce import GradientReducer


@not_converted
def reduced(reducer: GradientReducer, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """The gradients, summed over the replicas of this process and reduced over the ranks, once."""
    if replica_count() == 1:
        return once.reduced(reducer, gradients, variables)
    known = once.states(gradients, variables, reducer.process_set)

    def step(strategy: Any, totals: list[Any]) -> list[Any]:
        return once.reduced(reducer, totals, variables, known)

    return list(merged(step, gradients, variables))


def merged(
    step: Callable[[Any, list[Any]], Any],
    gradients: Sequence[Any],
    variables: Sequence[Any],
    *,
    is_summed: bool = False,
) -> Any:
    """Called in each replica of this process: runs `step` once for all of them, outside of replicas, with the
    strategy and the sums of their gradients. is_summed: they are sums already, and equal. The result of the
    step."""
    present = [index for index, gradient in enumerate(gradients) if gradient is not None]

    def call(strategy: Any, pairs: Any) -> Any:
        totals: list[Any] = [None] * len(gradients)
        sums = [gradient for gradient, _ in pairs]
        if pairs and not is_summed:
            sums = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)
        for index, total in zip(present, sums):
            totals[index] = strategy.experimental_local_results(total)[0]
        return step(strategy, totals)

    pairs = [(gradients[index], getattr(variables[index], "_value", variables[index])) for index in present]
    return tf.distribute.get_replica_context().merge_call(call, args=(pairs,))


def refuse_accumulation(option: str, cure: str = "accumulate in a loop of your own") -> None:
    """Raises ConfigError where several replicas would accumulate, and a strategy can't apply gradients under
    the condition that a step is complete."""
    if replica_count() > 1:
        raise ConfigError(
            f"{option} with {replica_count()} replicas in a process "
            f"({type(tf.distribute.get_strategy()).__name__}), where TensorFlow cannot apply gradients "
            f"conditionally here: {cure}, or give each rank one replica."
        )


@contextlib.contextmanager
def summed(optimizers: Iterable[Any], count: int = 0) -> Iterator[None]:
    """Meanwhile these optimizers of Keras 3 do not sum gradients over replicas. count: of the replicas, where
    it is not called in one of them."""
    name = "_all_reduce_sum_gradients"
    optimizers = list(optimizers)
    for optimizer in optimizers if (count or replica_count()) > 1 else ():
        object.__setattr__(optimizer, name, lambda pairs: pairs)
    try:
        yield
    finally:
        # Replicas leave together: each has applied its gradients when the first is here.
        for optimizer in optimizers:
            vars(optimizer).pop(name, None)
