"""Keras 2 (`tf.keras` until TensorFlow 2.15, `tf_keras` later), new and legacy optimizers."""

from __future__ import annotations

from typing import Any

from rdmacoll.optimizer import once
from rdmacoll.optimizer.accumulation import Accumulation
from rdmacoll.optimizer.copies import Copied
from rdmacoll.optimizer.reduce import GradientReducer
from rdmacoll.optimizer.subclass import reduced_pairs, split, subclass


class Distributed(Copied):
    """Takes the place where `tf.distribute` strategies aggregate. Keras's loss scaling aggregates there
    before it asks whether gradients are finite, and the optimizers before they clip."""

    _rdmacoll_reduce: GradientReducer
    _rdmacoll_accumulation: Accumulation | None

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """The plain optimizer's pairs, reduced, so that a program clips gradients of all ranks. With several
        passes to a step they are those of this rank: the last pass's `apply_gradients` reduces their sums."""
        return self._rdmacoll_computed(super().compute_gradients(*args, **kwargs))  # type: ignore[misc]

    def _compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        # Legacy optimizers.
        return self._rdmacoll_computed(super()._compute_gradients(*args, **kwargs))  # type: ignore[misc]

    def _rdmacoll_computed(self, pairs: Any) -> Any:
        if self._rdmacoll_accumulation is not None:
            return pairs
        return reduced_pairs(self._rdmacoll_reduce, pairs, is_early=True)

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """As of the plain optimizer; with several passes to a step, with the last one. Gradients that are not
        to be aggregated have to be reduced: by `compute_gradients`, a wrapped tape, or the program."""
        pairs, accumulation = list(grads_and_vars), self._rdmacoll_accumulation
        if accumulation is None:
            return self._rdmacoll_apply(pairs, args, kwargs)
        sums, is_last = accumulation.add(pairs)
        accumulation.when(is_last, lambda: self._rdmacoll_apply(sums, args, kwargs))
        return self.iterations  # type: ignore[attr-defined]

    def _rdmacoll_apply(self, pairs: Any, args: Any, kwargs: Any) -> Any:
        reducer, (gradients, variables) = self._rdmacoll_reduce, split(pairs)
        call = self._rdmacoll_skips(args, kwargs)
        if call is not None:
            cure = (
                "leave the argument out, or take them from compute_gradients of this optimizer, or from a "
                "DistributedGradientTape"
            )
            call = f"apply_gradients({call}) of a wrapped {type(self).__name__}"
            gradients = once.required(reducer, gradients, variables, call, cure)
        done = super().apply_gradients(list(zip(gradients, variables)), *args, **kwargs)  # type: ignore[misc]
        once.forget(variables, reducer.process_set)
        return done

    def _rdmacoll_skips(self, args: Any, kwargs: Any) -> str | None:
        """The argument by which a program says that gradients are aggregated already."""
        is_new = hasattr(self, "_create_iteration_variable")
        third = args[1] if len(args) > 1 else not is_new
        if kwargs.get("skip_gradients_aggregation", third if is_new else False):
            return "skip_gradients_aggregation=True"
        if not kwargs.get("experimental_aggregate_gradients", True if is_new else third):
            return "experimental_aggregate_gradients=False"
        return None

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        """New optimizers."""
        return reduced_pairs(self._rdmacoll_reduce, grads_and_vars, is_early=False)

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
        # Legacy optimizers.
        return reduced_pairs(self._rdmacoll_reduce, grads_and_vars, is_early=False)


def wrap(optimizer: Any, reducer: GradientReducer) -> None:
    """Swaps the class of `optimizer`, or of what Keras's loss scaling has inside: that is what it asks to
    aggregate."""
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    distributed = subclass(type(optimizer), Distributed, reducer)
    # Of the class, since Keras tracks what an optimizer has.
    distributed._rdmacoll_accumulation = reducer.accumulation()  # type: ignore[attr-defined]
    optimizer.__class__ = distributed
