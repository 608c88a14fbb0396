"""Keras 2 (`tf.keras` until TensorFlow 2.15, `tf_keras` later), new and legacy optimizers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from rdmacoll.errors import ConfigError
from rdmacoll.ops._names import replica_count
from rdmacoll.optimizer import fit_patches, single_reduction
from rdmacoll.optimizer.accumulation import Accumulation
from rdmacoll.optimizer.loss_scaling import patch_keras_2
from rdmacoll.optimizer.reduce import GradientReducer
from rdmacoll.optimizer.replicas import merged, refuse_accumulation
from rdmacoll.optimizer.subclass import reduced_pairs, split, subclass
from rdmacoll.optimizer.update_check import applied
from rdmacoll.optimizer.wrapped_copies import WrappedCopies

# Arguments of `apply_gradients` by which a program says that gradients are aggregated already.
_FLAGS = ("skip_gradients_aggregation", "experimental_aggregate_gradients")
_CURE = (
    "leave the argument out, or take them from compute_gradients of this optimizer, or from a "
    "DistributedGradientTape"
)


class Distributed(WrappedCopies):
    """Reduces at the place where `tf.distribute` strategies aggregate. Keras's loss scaling aggregates
    there before it checks whether gradients are finite, and the optimizers before they clip."""

    _rdmacoll_reduce: GradientReducer
    _rdmacoll_accumulation: Accumulation | None

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """The plain optimizer's pairs, reduced, so that a program clips gradients of all ranks. If
        `apply_gradients` adds up several passes, or the replicas of this process, the pairs stay those of
        this rank: `apply_gradients` reduces the sums."""
        return self._rdmacoll_computed(super().compute_gradients(*args, **kwargs))  # type: ignore[misc]

    def _compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        # Legacy optimizers.
        return self._rdmacoll_computed(super()._compute_gradients(*args, **kwargs))  # type: ignore[misc]

    def _rdmacoll_computed(self, pairs: Any) -> Any:
        if self._rdmacoll_accumulation is not None:
            self._rdmacoll_accumulation.has_computed = True
        if self._rdmacoll_accumulation is not None or replica_count() > 1:
            return pairs
        replaced = vars(self).get("_allreduce")  # Horovod's method, which a program may replace
        if replaced is not None:
            gradients, variables = split(pairs)
            return list(zip(replaced(gradients, variables), variables))
        return reduced_pairs(self._rdmacoll_reduce, pairs, is_early=True)

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Like the plain optimizer's method. With several passes in a step, the last one applies. Gradients
        that the caller excludes from the aggregation have to be reduced already: by `compute_gradients`, a
        wrapped tape, or the program."""
        pairs, accumulation = list(grads_and_vars), self._rdmacoll_accumulation
        self._rdmacoll_reduce.check_clipping(self, [variable for _, variable in pairs])
        if accumulation is None:
            return self._rdmacoll_apply(pairs, args, kwargs)
        if accumulation.has_computed and replica_count() == 1:  # those of this rank, whatever flags say
            accumulation.has_computed = False
            args, kwargs = args[:1], _without_flags(kwargs)
        if replica_count() > 1:
            return self._rdmacoll_pass(accumulation, pairs, args, kwargs)
        if tf.compat.v1.executing_eagerly_outside_functions():
            accumulation = accumulation.of(pairs)
        else:
            accumulation = accumulation.fresh()  # each call is a step of its own, and of its own graph
        sums, is_last = accumulation.add(pairs)
        with tf.init_scope():
            iterations = self.iterations  # type: ignore[attr-defined]

        def skip() -> Any:
            return tf.identity(iterations.assign_add(1)) if self._rdmacoll_reduce.counts_passes else None

        step = accumulation.when(is_last, lambda: self._rdmacoll_apply(sums, args, kwargs), skip)
        return self._rdmacoll_done(step)

    def _rdmacoll_done(self, step: Any) -> Any:
        """The plain optimizer's kind of result. Loss scaling puts the call into one branch, and an
        operation into the other."""
        is_operation = is_legacy(self) and not tf.executing_eagerly()
        return step.op if is_operation else self.iterations  # type: ignore[attr-defined]

    def _rdmacoll_apply(self, pairs: Any, args: Any, kwargs: Any) -> Any:
        reducer, (gradients, variables) = self._rdmacoll_reduce, split(pairs)
        call = self._rdmacoll_skips(args, kwargs)
        if call is not None:
            gradients = single_reduction.required(
                reducer, gradients, variables, self._rdmacoll_call(call), _CURE
            )
        done = super().apply_gradients(list(zip(gradients, variables)), *args, **kwargs)  # type: ignore[misc]
        single_reduction.forget(variables, reducer.process_set)
        applied(self, variables)
        return done

    def _rdmacoll_pass(self, accumulation: Accumulation, pairs: Any, args: Any, kwargs: Any) -> Any:
        """Adds up a pass of several replicas in this process, and applies the sums in the last pass.

        A replica cannot be left within a branch (merge_call within tf.cond). So this leaves the replicas
        first, decides there whether the pass is the last one, and enters the replicas again to apply."""
        if not tf.compat.v1.executing_eagerly_outside_functions():
            refuse_accumulation(f"backward_passes_per_step={accumulation.passes}")
        reducer, (gradients, variables) = self._rdmacoll_reduce, split(pairs)
        accumulation = accumulation.of(pairs)
        call = self._rdmacoll_skips(args, kwargs)
        plain = super().apply_gradients  # type: ignore[misc]
        kwargs = {**_without_flags(kwargs), _FLAGS[is_legacy(self)]: not is_legacy(self)}

        def apply(found: list[Any]) -> None:
            plain(list(zip(found, variables)), *args[:1], **kwargs)
            applied(self, variables)

        def step(strategy: Any, totals: list[Any]) -> Any:
            sums, is_last = accumulation.add(list(zip(totals, variables)))

            def last() -> None:
                found = [total for total, _ in sums]
                if call is None:
                    found = single_reduction.reduced(reducer, found, variables)
                else:
                    found = single_reduction.required(
                        reducer, found, variables, self._rdmacoll_call(call), _CURE
                    )
                strategy.extended.call_for_each_replica(apply, args=(found,))
                single_reduction.forget(variables, reducer.process_set)

            return accumulation.when(is_last, last)

        return self._rdmacoll_done(merged(step, gradients, variables, is_summed=call is not None))

    def _rdmacoll_call(self, argument: str) -> str:
        return f"apply_gradients({argument}) of a wrapped {type(self).__name__}"

    def _rdmacoll_skips(self, args: Any, kwargs: Any) -> str | None:
        """The argument by which a program says that gradients are aggregated already, or None."""
        is_new = not is_legacy(self)
        third = args[1] if len(args) > 1 else not is_new
        if kwargs.get("skip_gradients_aggregation", third if is_new else False):
            return "skip_gradients_aggregation=True"
        if not kwargs.get("experimental_aggregate_gradients", True if is_new else third):
            return "experimental_aggregate_gradients=False"
        return None

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        """Reduces the gradients of a new optimizer."""
        return reduced_pairs(self._rdmacoll_reduce, grads_and_vars, is_early=False)

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
        # Legacy optimizers.
        return reduced_pairs(self._rdmacoll_reduce, grads_and_vars, is_early=False)


def _without_flags(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in _FLAGS}


class DistributedNew(Distributed):
    """An optimizer that is not legacy. It does not support graphs of TensorFlow 1: running its result
    there does not run the update."""

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Like the plain optimizer's method. Raises ConfigError in a graph of TensorFlow 1."""
        refuse_graphs(self)
        return super().apply_gradients(*args, **kwargs)

    def get_updates(self, loss: Any, params: Any) -> Any:
        """Keras calls it in such a graph. Raises ConfigError."""
        raise _not_in_graphs(self)


def is_legacy(optimizer: Any) -> bool:
    """Whether the optimizer is one of `keras.optimizers.legacy`."""
    return not hasattr(optimizer, "_create_iteration_variable")


def refuse_graphs(optimizer: Any) -> None:
    """Raises ConfigError in a graph of TensorFlow 1. optimizer: one that is not legacy."""
    if not tf.compat.v1.executing_eagerly_outside_functions():
        raise _not_in_graphs(optimizer)


def _not_in_graphs(optimizer: Any) -> ConfigError:
    return ConfigError(
        f"the {type(optimizer).__name__} of Keras 2 cannot train without eager execution "
        "(tf.compat.v1.disable_eager_execution(), or a graph of TensorFlow 1): take an optimizer of "
        "keras.optimizers.legacy, or leave eager execution on."
    )


def wrap(optimizer: Any, reducer: GradientReducer) -> None:
    """Changes the class of `optimizer`, or of the optimizer inside of Keras's loss scaling, which
    aggregates through it."""
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    is_new = not is_legacy(optimizer)
    if is_new:
        refuse_graphs(optimizer)
    package = next(name for name in ("tf_keras", "keras") if _is_of(type(optimizer), name))
    fit_patches.install(package, 2)
    if reducer.lossy is not None:
        patch_keras_2(package)
    distributed = subclass(type(optimizer), DistributedNew if is_new else Distributed, reducer)
    # An attribute of the class, since Keras tracks attributes of an optimizer itself.
    distributed._rdmacoll_accumulation = reducer.accumulation()  # type: ignore[attr-defined]
    optimizer.__class__ = distributed


def _is_of(kind: type, package: str) -> bool:
    return any(base.__module__.partition(".")[0] == package for base in kind.__mro__)
