"""Optimizers of TensorFlow 1, `tf.compat.v1.train`: in sessions, and eagerly with a loss that is a function.

As in Horovod, `compute_gradients` returns reduced gradients. So the reduction comes before all that a program
does with its gradients (clipping, accumulating). It also comes before `MixedPrecisionLossScaleOptimizer`
checks whether they are finite.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from rdmacoll.engine.errors import ConfigError
from rdmacoll.optimizer import single_reduction
from rdmacoll.optimizer.accumulation import Accumulation
from rdmacoll.optimizer.gradient_origin import Origin
from rdmacoll.optimizer.loss_scaling import patch_v1
from rdmacoll.optimizer.reduce import GradientReducer
from rdmacoll.optimizer.replicas import refuse_accumulation
from rdmacoll.optimizer.session_check import counted
from rdmacoll.optimizer.subclass import reduced_pairs, split, subclass
from rdmacoll.optimizer.wrapped_copies import WrappedCopies


class Distributed(WrappedCopies):
    """Mixed in before the optimizer's own class."""

    _rdmacoll_reduce: GradientReducer
    _rdmacoll_has_computed = False
    _rdmacoll_sums: Accumulation | None = None  # for all sets of variables
    _rdmacoll_accumulation: Accumulation | None = None  # for those of the last compute_gradients
    _rdmacoll_is_last: Any = None

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The plain optimizer's pairs, reduced. `minimize` calls this."""
        self._rdmacoll_has_computed = True
        pairs = super().compute_gradients(*args, **kwargs)  # type: ignore[misc]
        reducer = self._rdmacoll_reduce
        # Eager calls and functions go on with the existing sums. In a graph of TensorFlow 1 each call has its
        # own.
        is_graph = not tf.executing_eagerly() and not tf.compat.v1.get_default_graph().building_function
        if is_graph or self._rdmacoll_sums is None:
            self._rdmacoll_sums = reducer.accumulation()
        if self._rdmacoll_sums is None:
            return reduced_pairs(reducer, pairs, is_early=True)
        self._rdmacoll_accumulation = self._rdmacoll_sums.of(pairs)
        pairs, is_last = self._rdmacoll_accumulation.add(pairs)
        self._rdmacoll_is_last = is_last
        present = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        sums = [gradient for gradient, _ in present]
        reduced = tf.cond(
            is_last, lambda: [g for g, _ in reduced_pairs(reducer, present, is_early=True)], lambda: sums
        )
        found = iter([reduced] if len(present) == 1 and tf.is_tensor(reduced) else reduced)
        return [(None if gradient is None else next(found), variable) for gradient, variable in pairs]

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Like the plain optimizer's method. The gradients come reduced, from us or from a wrapped tape."""
        pairs = list(grads_and_vars)
        states = single_reduction.states(*split(pairs), self._rdmacoll_reduce.process_set)
        has_passes = self._rdmacoll_reduce.backward_passes_per_step > 1
        if not self._rdmacoll_has_computed and (has_passes or Origin.LOCAL in states):
            raise ConfigError(
                f"apply_gradients of a wrapped {type(self).__name__} whose compute_gradients was never "
                "called: each rank would apply its own gradients. Call minimize or compute_gradients of this "
                "optimizer, or take the gradients from a DistributedGradientTape."
            )
        if self._rdmacoll_accumulation is None:
            return self._rdmacoll_apply(pairs, args, kwargs)
        refuse_accumulation(f"backward_passes_per_step={self._rdmacoll_accumulation.passes}")
        global_step = kwargs.get("global_step", args[0] if args else None)

        def skip() -> Any:
            if not self._rdmacoll_reduce.counts_passes or global_step is None:
                return None
            return tf.identity(global_step.assign_add(tf.ones((), global_step.dtype.base_dtype)))

        step = self._rdmacoll_accumulation.when(
            self._rdmacoll_is_last, lambda: self._rdmacoll_apply(pairs, args, kwargs), skip
        )
        return None if tf.executing_eagerly() else step.op

    def _rdmacoll_apply(self, pairs: Any, args: Any, kwargs: Any) -> Any:
        reducer, (gradients, variables) = self._rdmacoll_reduce, split(pairs)
        call = f"apply_gradients of a wrapped {type(self).__name__}"
        cure = "take them from its compute_gradients, or from a DistributedGradientTape"
        gradients = single_reduction.required(reducer, gradients, variables, call, cure)
        with counted(self, variables):
            done = super().apply_gradients(  # type: ignore[misc]
                list(zip(gradients, variables)), *args, **kwargs
            )
        single_reduction.forget(variables, reducer.process_set)
        return done


def wrap(optimizer: Any, reducer: GradientReducer) -> None:
    """Changes the class of `optimizer`."""
    if reducer.lossy is not None:
        patch_v1()
    optimizer.__class__ = subclass(type(optimizer), Distributed, reducer)
