"""Gradient tapes with Horovod's arguments, and with sources whose gradients stay this rank's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from rdmacoll._base.external_values import shown
from rdmacoll._horovod.optimizers import reducing_options, takes_part
from rdmacoll.engine.errors import ConfigError
from rdmacoll.engine.operators import Average
from rdmacoll.engine.process_set import ProcessSet, global_process_set
from rdmacoll.ops import Compression
from rdmacoll.optimizer import tape as tapes
from rdmacoll.optimizer.registry import plain_variable


class HorovodTape(tapes.DistributedTape):
    """A wrapped tape that knows local sources. Their gradients are not reduced."""

    _horovod_set: ProcessSet
    _horovod_scales_local: bool
    _horovod_takes_part: bool
    _horovod_local: dict[int, Any]

    def register_local_source(self, source: Any) -> None:
        """Adds a source whose gradient stays this rank's own, divided by the number of ranks unless
        `scale_local_gradients` is False."""
        self._horovod_local[id(plain_variable(source))] = source

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """The pairs of source and gradient as `gradient` returns them: those of local sources, and the
        others. use_generic_names: without effect."""
        gradients = tf.nest.flatten(self.gradient(target, sources, output_gradients))
        pairs = list(zip(tf.nest.flatten(sources), gradients))
        return (
            [(source, gradient) for source, gradient in pairs if self._is_local(source)],
            [(source, gradient) for source, gradient in pairs if not self._is_local(source)],
        )

    def _is_local(self, source: Any) -> bool:
        return id(plain_variable(source)) in self._horovod_local

    def _rdmacoll_reduced(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        if not self._horovod_takes_part:
            return gradients
        if not self._horovod_local:
            return super()._rdmacoll_reduced(gradients, variables)
        results = list(gradients)
        others = [place for place, one in enumerate(variables) if not self._is_local(one)]
        reduced = super()._rdmacoll_reduced(
            [gradients[place] for place in others], [variables[place] for place in others]
        )
        for place, one in zip(others, reduced):
            results[place] = one
        if self._horovod_scales_local:
            for place in set(range(len(results))) - set(others):
                results[place] = _divided(results[place], self._horovod_set.size())
        return results


def _divided(gradient: Any, count: int) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / count, gradient.indices, gradient.dense_shape)
    return gradient / count


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
    reducing = reducing_options(op, gradient_predivide_factor, num_groups, groups, options)
    is_member = takes_part(process_set)
    tape = tapes.DistributedGradientTape(
        gradtape,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        **reducing,
    )
    tape.__class__ = HorovodTape
    tape._horovod_takes_part = is_member
    tape._horovod_set = process_set
    tape._horovod_scales_local = bool(scale_local_gradients)
    tape._horovod_local = {}
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
    layers = [local_layers] if hasattr(local_layers, "trainable_weights") else local_layers or []
    if not isinstance(layers, Iterable) or not all(hasattr(one, "trainable_weights") for one in layers):
        raise ConfigError(f"local_layers={shown(local_layers)}: give a layer of Keras, or a list of layers.")
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
    for layer in layers:
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape
