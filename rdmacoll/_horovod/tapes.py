"""Gradient tapes with Horovod's arguments, and with sources whose gradients stay this rank's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from rdmacoll._horovod.adasum import is_adasum
from rdmacoll._horovod.adasum_reducer import AdasumReducer
from rdmacoll._horovod.optimizers import reducing_options
from rdmacoll._horovod.reducer import HorovodReducer, layers_of
from rdmacoll.operators import Average
from rdmacoll.ops import Compression, _own_reductions as own_reductions
from rdmacoll.ops._library import not_converted
from rdmacoll.optimizer import tape as tapes
from rdmacoll.process_set import ProcessSet, global_process_set


class HorovodTape(tapes.DistributedTape):
    """A wrapped tape that knows local sources. Their gradients are not reduced."""

    _rdmacoll_reduce: HorovodReducer

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        """Like that of `rdmacoll.DistributedGradientTape`. use_generic_names: without effect, also as the
        fourth argument, which it is in Horovod."""
        if isinstance(unconnected_gradients, bool):
            unconnected_gradients = tf.UnconnectedGradients.NONE
        return super().gradient(target, sources, output_gradients, unconnected_gradients)

    def _allreduce_grads(
        self, grads: Any, variables: Any = None, use_generic_names: bool = False
    ) -> list[Any]:
        """The reduced gradients. use_generic_names: without effect."""
        return self._rdmacoll_reduce(list(grads), None if variables is None else list(variables))

    def register_local_source(self, source: Any) -> None:
        """Adds a source whose gradient stays this rank's own, divided by the number of ranks unless
        `scale_local_gradients` is False."""
        self._rdmacoll_reduce.register_local(source)

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """The pairs of source and gradient as `gradient` returns them: those of local sources, and the
        others. use_generic_names: without effect."""
        gradients = tf.nest.flatten(self.gradient(target, sources, output_gradients))
        pairs = list(zip(tf.nest.flatten(sources), gradients))
        is_local = self._rdmacoll_reduce.is_local
        return (
            [(source, gradient) for source, gradient in pairs if is_local(source)],
            [(source, gradient) for source, gradient in pairs if not is_local(source)],
        )


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    **options: Any,
) -> Any:
    """`rdmacoll.DistributedGradientTape` with Horovod's arguments. Returns the same tape, which also has
    `register_local_source` and `get_local_and_global_gradients`.

    On a rank outside of `process_set` gradients stay as they are. scale_local_gradients: divides those of
    local sources by the number of ranks. Errors as `DistributedOptimizer`.
    """
    tape = tapes.wrapped(
        gradtape,
        AdasumReducer if is_adasum(op) else HorovodReducer,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        **reducing_options(op, gradient_predivide_factor, num_groups, groups, options),
    )
    tape.__class__ = HorovodTape
    return tape


def PartialDistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """`DistributedGradientTape` whose local sources are the weights of `local_layers`, a layer or several.

    Raises ValueError for anything else than layers.
    """
    layers = layers_of(local_layers)
    tape = DistributedGradientTape(
        gradtape,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    tape._rdmacoll_reduce.register_local_layers(layers)
    return tape


def reduction_function(
    name: str | None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[..., list[Any]]:
    """A function that reduces a list of gradients, for optimizers that programs write themselves. Its
    arguments: gradients, and their variables or None. Errors as `DistributedOptimizer`."""
    tape = DistributedGradientTape(
        tf.GradientTape(),
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=groups,
        process_set=process_set,
    )

    @not_converted
    def allreduce_grads(grads: Any, vars: Any = None, use_generic_names: bool = False) -> list[Any]:  # noqa: A002
        gradients = list(grads)
        if vars is None:  # nothing else tells that the program reduces the gradients of its variables
            own_reductions.note([one for one in gradients if one is not None], None if is_adasum(op) else op)
        return list(tape._allreduce_grads(gradients, vars, use_generic_names))

    return allreduce_grads
