"""Several replicas in a process (`tf.distribute`).

A strategy runs the step once for each replica, and sums their gradients when they are applied. A wrapped
optimizer sums them in the same way first, and then reduces the sum over the ranks, once. A wrapped tape does
not know how its gradients are applied: it reduces those of each replica over the ranks. The results are the
same for sums and means.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from rdmacoll.errors import ConfigError
from rdmacoll.ops._library import not_converted
from rdmacoll.ops._names import replica_count
from rdmacoll.optimizer import single_reduction
from rdmacoll.optimizer.reduce import is_overwritten

if TYPE_CHECKING:
    from rdmacoll.optimizer.reduce import GradientReducer


@not_converted
def reduced(reducer: GradientReducer, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Returns the gradients, summed over the replicas of this process and reduced over the ranks, once."""
    if replica_count() == 1:
        return single_reduction.reduced(reducer, gradients, variables)
    origins = single_reduction.states(gradients, variables, reducer.process_set)

    def step(strategy: Any, totals: list[Any]) -> list[Any]:
        return single_reduction.reduced(reducer, totals, variables, origins)

    return list(merged(step, gradients, variables))


def merged(
    step: Callable[[Any, list[Any]], Any],
    gradients: Sequence[Any],
    variables: Sequence[Any],
    *,
    is_summed: bool = False,
) -> Any:
    """Call it in each replica of this process. It runs `step` once for all of them, outside of replicas,
    and returns the result. step: takes the strategy, and the sums of the replicas' gradients, or the greatest
    ones if gradients are next values. is_summed: the gradients are equal sums already."""
    present = [index for index, gradient in enumerate(gradients) if gradient is not None]

    def call(strategy: Any, pairs: Any) -> Any:
        totals: list[Any] = [None] * len(gradients)
        sums = [gradient for gradient, _ in pairs]
        others = [place for place, index in enumerate(present) if not is_overwritten(variables[index])]
        if others and not is_summed:
            kind = tf.distribute.ReduceOp.SUM
            added = strategy.extended.batch_reduce_to(kind, [pairs[place] for place in others])
            for place, total in zip(others, added):
                sums[place] = total
        for index, total in zip(present, sums):
            of_replicas = strategy.experimental_local_results(total)
            is_next_value = is_overwritten(variables[index])
            totals[index] = functools.reduce(tf.maximum, of_replicas) if is_next_value else of_replicas[0]
        return step(strategy, totals)

    pairs = [(gradients[index], getattr(variables[index], "_value", variables[index])) for index in present]
    return tf.distribute.get_replica_context().merge_call(call, args=(pairs,))


def refuse_accumulation(option: str, cure: str = "accumulate in a loop of your own") -> None:
    """Raises ConfigError if several replicas would accumulate. A strategy cannot apply gradients under the
    condition that a step is complete."""
    if replica_count() > 1:
        raise ConfigError(
            f"{option} cannot be used with {replica_count()} replicas in a process "
            f"({type(tf.distribute.get_strategy()).__name__}), since TensorFlow cannot apply gradients "
            f"conditionally there: {cure}, or give each rank one replica."
        )


@contextlib.contextmanager
def summed(optimizers: Iterable[Any], count: int = 0) -> Iterator[None]:
    """Keeps these optimizers of Keras 3 from summing gradients over replicas meanwhile. count: the number
    of replicas, if the caller is in none of them."""
    name = "_all_reduce_sum_gradients"
    optimizers = list(optimizers)
    for optimizer in optimizers if (count or replica_count()) > 1 else ():
        object.__setattr__(optimizer, name, lambda pairs: pairs)
    try:
        yield
    finally:
        # All replicas have applied their gradients when the first one comes here.
        for optimizer in optimizers:
            vars(optimizer).pop(name, None)
