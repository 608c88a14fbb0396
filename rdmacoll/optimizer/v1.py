"""Optimizers of TensorFlow 1, `tf.compat.v1.train`: in sessions, and eagerly with a loss that is a function.

As in Horovod, `compute_gradients` returns reduced gradients. So the reduction comes before all that a program
does with its gradients (clipping, accumulating). It also comes before `MixedPrecisionLossScaleOptimizer`
checks whether they are finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from rdmacoll.errors import ConfigError
from rdmacoll.optimizer import single_reduction
from rdmacoll.optimizer.accumulation import Accumulation, Pair, awaited, keys_of, together
from rdmacoll.optimizer.gradient_origin import Origin
from rdmacoll.optimizer.loss_scaling import patch_v1
from rdmacoll.optimizer.reduce import GradientReducer
from rdmacoll.optimizer.replicas import refuse_accumulation
from rdmacoll.optimizer.session_check import counted
from rdmacoll.optimizer.subclass import reduced_pairs, split, subclass
from rdmacoll.optimizer.wrapped_copies import WrappedCopies


@dataclass
class Computed:
    """The last `compute_gradients` for a set of variables. count: the calls for this set, in this graph,
    since the last `apply_gradients` for it."""

    keys: frozenset[Any]
    sums: Accumulation
    is_last: Any
    graph: Any
    count: int


class Distributed(WrappedCopies):
    """Mixed in before the optimizer's own class."""

    _rdmacoll_reduce: GradientReducer
    _rdmacoll_has_computed = False
    _rdmacoll_sums: Accumulation | None = None  # for all sets of variables
    _rdmacoll_computed: dict[frozenset[Any], Computed] | None = None  # by set of variables

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
        sums = self._rdmacoll_sums.of(pairs)
        pairs, is_last = sums.add(pairs)
        self._rdmacoll_note(keys_of(pairs), sums, is_last)
        present = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        local = [gradient for gradient, _ in present]
        reduced = tf.cond(
            is_last, lambda: [g for g, _ in reduced_pairs(reducer, present, is_early=True)], lambda: local
        )
        found = iter([reduced] if len(present) == 1 and tf.is_tensor(reduced) else reduced)
        return [(None if gradient is None else next(found), variable) for gradient, variable in pairs]

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Like the plain optimizer's method. The gradients come reduced, from us or from a wrapped tape."""
        pairs = list(grads_and_vars)
        states = single_reduction.states(*split(pairs), self._rdmacoll_reduce.process_set)
        has_passes = self._rdmacoll_reduce.backward_passes_per_step > 1
        taken = self._rdmacoll_taken(pairs) if has_passes else []
        if (has_passes and not taken) or (not self._rdmacoll_has_computed and Origin.LOCAL in states):
            raise ConfigError(
                f"apply_gradients of a wrapped {type(self).__name__} whose compute_gradients was never "
                "called for these variables: each rank would apply its own gradients. Call minimize or "
                "compute_gradients of this optimizer, or take the gradients from a DistributedGradientTape."
            )
        if not has_passes:
            return self._rdmacoll_apply(pairs, args, kwargs)
        refuse_accumulation(f"backward_passes_per_step={self._rdmacoll_reduce.backward_passes_per_step}")
        first, *others = taken
        global_step = kwargs.get("global_step", args[0] if args else None)

        def skip() -> Any:
            if not self._rdmacoll_reduce.counts_passes or global_step is None:
                return None
            return tf.identity(global_step.assign_add(tf.ones((), global_step.dtype.base_dtype)))

        is_last = together([one.is_last for one in taken])

        def apply() -> Any:
            with tf.control_dependencies(awaited(self._rdmacoll_apply(pairs, args, kwargs))):
                return tf.group([other.sums.clear() for other in others])

        step = first.sums.when(is_last, apply, skip)
        return None if tf.executing_eagerly() else step.op

    def _rdmacoll_note(self, keys: frozenset[Any], sums: Accumulation, is_last: Any) -> None:
        """Records a call of `compute_gradients`, as the last one."""
        if self._rdmacoll_computed is None:
            self._rdmacoll_computed = {}
        graph, before = tf.compat.v1.get_default_graph(), self._rdmacoll_computed.pop(keys, None)
        count = before.count if before is not None and before.graph is graph else 0
        self._rdmacoll_computed[keys] = Computed(keys, sums, is_last, graph, count + 1)

    def _rdmacoll_taken(self, pairs: Sequence[Pair]) -> list[Computed]:
        """The calls of `compute_gradients` for these variables, of which `apply_gradients` takes the passes.
        Raises ConfigError if two of them were for the same variable."""
        keys = keys_of(pairs)
        known = [one for one in (self._rdmacoll_computed or {}).values() if one.keys & keys]
        found = [one for one in known if one.count > 0]
        found = [one for one in found if one.keys == keys] or found or known[-1:]  # applied a second time
        variables = {key for one in found for key in one.keys}
        if sum(one.count * len(one.keys) for one in found) > len(variables):
            raise ConfigError(
                "compute_gradients was called more than once for a variable before apply_gradients, and with "
                f"backward_passes_per_step={self._rdmacoll_reduce.backward_passes_per_step} each call counts "
                "as a pass: call compute_gradients once, with the mean of the losses."
            )
        for one in found:
            one.count = 0
        return found

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
