"""Horovod's helpers of `backward_passes_per_step`, for programs that write an optimizer of their own.

The optimizers of rdmacoll do not need them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rdmacoll._base.external_values import shown
from rdmacoll.errors import ConfigError
from rdmacoll.ops._run_time import size_as
from rdmacoll.optimizer.accumulation import Accumulation, checked_passes, together
from rdmacoll.process_set import ProcessSet, global_process_set


def apply_op_to_not_none_tensors(
    tensor_op: Callable[..., Any], tensors: Sequence[Any], *args: Any
) -> list[Any]:
    """`tensor_op(tensor, *args)` of each tensor. None stays None."""
    return [None if one is None else tensor_op(one, *args) for one in tensors]


def get_not_none_from_list(tensor_list: Sequence[Any]) -> list[Any]:
    """The tensors that are not None."""
    return [one for one in tensor_list if one is not None]


class _Helper:
    """Adds up the gradients of several passes. The last pass of a step reduces the sums by `allreduce_func`,
    a function of gradients and variables. Each set of variables counts its own passes."""

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], list[Any]], Sequence[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        self.backward_passes_per_step = checked_passes(backward_passes_per_step)
        if not callable(allreduce_func):
            raise ConfigError(
                f"allreduce_func={shown(allreduce_func)}: give a function of gradients and variables."
            )
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self._allreduce = allreduce_func
        self._local: set[Any] = set()
        self._sums = Accumulation(self.backward_passes_per_step, is_mean=False)

    def register_local_var(self, var: Any) -> None:
        """Declares that each rank has its own values of a variable: its gradient is not reduced."""
        self._local.add(var.ref())

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:  # noqa: A002
        """Adds the gradients. Returns the reduced sums in the last pass of a step. None stays None.

        Raises ConfigError for `tf.IndexedSlices` without `sparse_as_dense`.
        """
        dense = [self._dense(one) for one in grads]
        pairs = list(zip(dense, vars))
        own = self._sums.of(pairs)
        sums, is_last = own.add(pairs)
        places = [place for place, one in enumerate(dense) if one is not None]
        variables = [vars[place] for place in places]
        others = self._of_other_passes(
            [dense[place] for place in places], [sums[place][0] for place in places]
        )

        def last() -> list[Any]:
            reduced = self._reduced([sums[place][0] for place in places], variables)
            with tf.control_dependencies(reduced):
                zeroed = own.clear()
            with tf.control_dependencies(zeroed):
                return [tf.identity(one) for one in reduced]

        found = tf.cond(is_last, last, lambda: [tf.identity(one) for one in others]) if places else []
        results: list[Any] = [None] * len(dense)
        for place, one in zip(places, found if isinstance(found, (list, tuple)) else [found]):
            results[place] = one
        return results

    def apply_gradients(
        self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Calls `apply_grads_closure` in the last pass of a step. In other passes it counts the optimizer's
        `iterations`, and the argument `global_step`, up. Returns a tensor: whether this was the last pass.

        args: the pairs of gradient and variable come first. Without them the passes are those of the set of
        variables that `compute_gradients` has had last.
        """
        pairs = list(args[0]) if args else []
        gradients = [one for one, *_ in pairs if one is not None]
        sets = self._sums.sets_of(variable for _, *others in pairs for variable in others[:1])
        steps = [getattr(optimizer, "iterations", None), kwargs.get("global_step")]

        def other() -> Any:
            return [tf.identity(one.assign_add(tf.ones((), one.dtype))) for one in steps if one is not None]

        with tf.control_dependencies([tf.convert_to_tensor(one) for one in gradients]):
            is_last = together([tf.equal(own.counter(), 0) for own in sets])
            return tf.cond(
                is_last, lambda: _after(apply_grads_closure(), is_last), lambda: _after(other(), is_last)
            )

    def _of_other_passes(self, gradients: list[Any], sums: list[Any]) -> list[Any]:
        raise NotImplementedError

    def _reduced(self, sums: list[Any], variables: list[Any]) -> list[Any]:
        results = list(sums)
        places = [place for place, one in enumerate(variables) if one.ref() not in self._local]
        reduced = self._allreduce([sums[place] for place in places], [variables[place] for place in places])
        for place, one in zip(places, reduced):
            results[place] = one
        if self.scale_local_gradients:
            for place in range(len(results)):
                if place not in places:
                    results[place] /= size_as(results[place].dtype, self.process_set)
        divisor = self.backward_passes_per_step if self.average_aggregated_gradients else 1
        return [one if divisor == 1 else one / divisor for one in results]

    def _dense(self, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not self.sparse_as_dense:
            raise ConfigError("tf.IndexedSlices with several passes in a step: give sparse_as_dense=True.")
        return tf.convert_to_tensor(gradient)


def _after(done: Any, value: Any) -> Any:
    """`value` after these tensors or operations."""
    awaited = [one for one in tf.nest.flatten(done) if isinstance(one, (tf.Tensor, tf.Operation))]
    with tf.control_dependencies(awaited):
        return tf.identity(value)


class LocalGradientAggregationHelper(_Helper):
    """The helper for graphs. In passes that are not the last one of a step `compute_gradients` returns its
    gradients as they are. rank, optimizer_type, name: without effect, since its variables need no names."""

    _OPTIMIZER_TYPE_KERAS = "optimizer_type_keras"
    _OPTIMIZER_TYPE_LEGACY = "optimizer_type_legacy"

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], list[Any]], Sequence[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,
        optimizer_type: str,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        super().__init__(
            backward_passes_per_step,
            allreduce_func,
            sparse_as_dense,
            average_aggregated_gradients,
            process_set,
            scale_local_gradients,
        )

    @property
    def counter(self) -> Any:
        """The number of passes since the last complete step, a tensor. None before `compute_gradients`."""
        return self._sums.counter() if self._sums.has_begun() else None

    def _of_other_passes(self, gradients: list[Any], sums: list[Any]) -> list[Any]:
        return gradients


class LocalGradientAggregationHelperEager(_Helper):
    """The helper for eager execution. `compute_gradients` returns the sums so far in each pass."""

    @property
    def counter(self) -> Any:
        """The number of passes since the last complete step, a tensor."""
        return self._sums.counter()

    def _of_other_passes(self, gradients: list[Any], sums: list[Any]) -> list[Any]:
        return sums
