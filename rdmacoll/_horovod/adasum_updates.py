"""Optimizers of TensorFlow 1 whose updates are combined by Adasum.

Each rank applies its own gradients. Then the ranks combine the changes of their weights, so slots differ
between ranks, and weights do not. With several passes in a step, ranks train alone until its last pass.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll._horovod.adasum_reducer import AdasumReducer
from rdmacoll._horovod.overflow import finite_on_all
from rdmacoll.optimizer import single_reduction
from rdmacoll.optimizer.compared_values import declare_local
from rdmacoll.optimizer.loss_scaling import patch_v1
from rdmacoll.optimizer.session_check import counted
from rdmacoll.optimizer.subclass import split, subclass
from rdmacoll.optimizer.wrapped_copies import WrappedCopies


class UpdateReducer(AdasumReducer):
    """Combines changes of weights."""

    reads_loss_scale = True

    @staticmethod
    def family_of(optimizer: Any) -> Any:
        """This module."""
        return sys.modules[__name__]

    def methods(self, plain: type) -> dict[str, Any]:
        """None."""
        return {}


class AdasumUpdates(WrappedCopies):
    """Mixed in before the optimizer's own class."""

    _rdmacoll_reduce: UpdateReducer
    _rdmacoll_variables: dict[Any, Any] | None = None  # weights before the step, and counts of passes

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The plain optimizer's pairs, of this rank. Inside of loss scaling the ranks agree whether all
        gradients are finite, since it leaves out the step of a rank with others."""
        pairs = super().compute_gradients(*args, **kwargs)  # type: ignore[misc]
        reducer = self._rdmacoll_reduce
        if isinstance(reducer.loss_scale, float):
            return list(pairs)
        gradients, variables = split(pairs)
        return list(zip(finite_on_all(gradients, reducer.process_set), variables))

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies this rank's gradients. In the last pass of a step it combines the changes since the step
        before."""
        pairs = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
        _, variables = split(pairs)
        count, starts = self._rdmacoll_made(variables)
        passes = self._rdmacoll_reduce.backward_passes_per_step

        def keep() -> Any:
            # Without the copies, variables of TensorFlow 1 would share their memory.
            copies = [tf.raw_ops.DeepCopy(x=one.read_value()) for one in variables]
            kept = [start.assign(one) for start, one in zip(starts, copies)]
            with tf.control_dependencies([tf.identity(one) for one in kept]):
                return tf.constant(True)

        def combine() -> Any:
            with counted(self, variables):
                changes = [one.read_value() - start for one, start in zip(variables, starts)]
                changes = self._rdmacoll_reduce(changes, variables)
                assigned = [
                    one.assign(start + change) for one, start, change in zip(variables, starts, changes)
                ]
            with tf.control_dependencies([tf.identity(one) for one in assigned]):
                return tf.constant(True)

        is_first = tf.equal(count.read_value() % passes, 0)
        with tf.control_dependencies([_if(is_first, keep, passes)]):
            done = super().apply_gradients(pairs, *args, **kwargs)  # type: ignore[misc]
        declare_local(self._rdmacoll_slots(variables))
        with tf.control_dependencies([done] if isinstance(done, tf.Operation) else []):
            number = tf.identity(count.assign_add(1))
        with tf.control_dependencies([number]):
            combined = _if(tf.equal(number % passes, 0), combine, passes)
        single_reduction.forget(variables, self._rdmacoll_reduce.process_set)
        return None if tf.executing_eagerly() else combined.op

    def _rdmacoll_made(self, variables: Sequence[Any]) -> tuple[Any, list[Any]]:
        """The count of passes of this set of variables, and a place for the weights before a step. Programs
        initialise both with their global variables."""
        if self._rdmacoll_variables is None:
            self._rdmacoll_variables = {}
        made = self._rdmacoll_variables
        keys = [one.ref() for one in variables]
        with tf.init_scope():
            for key, one in zip(keys, variables):
                if key not in made:
                    made[key] = _variable(tf.zeros(one.shape, one.dtype.base_dtype), "start")
            if frozenset(keys) not in made:
                made[frozenset(keys)] = _variable(tf.zeros((), tf.int64), "passes")
        return made[frozenset(keys)], [made[key] for key in keys]

    def _rdmacoll_slots(self, variables: Sequence[Any]) -> list[Any]:
        found = [
            self.get_slot(variable, name)  # type: ignore[attr-defined]
            for name in self.get_slot_names()  # type: ignore[attr-defined]
            for variable in variables
        ]
        return [one for one in found if one is not None]


def _variable(initial: Any, name: str) -> Any:
    return tf.compat.v1.Variable(initial, trainable=False, name=f"rdmacoll_{name}", use_resource=True)


def _if(condition: Any, call: Any, passes: int) -> Any:
    """Calls it under the condition, which always holds for steps of one pass."""
    return call() if passes == 1 else tf.cond(condition, call, lambda: tf.constant(False))


def wrap(optimizer: Any, reducer: UpdateReducer) -> None:
    """Changes the class of `optimizer`."""
    patch_v1()
    optimizer.__class__ = subclass(type(optimizer), AdasumUpdates, reducer)
