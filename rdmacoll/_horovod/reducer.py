"""Reduces gradients as Horovod's optimizers and tapes do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from rdmacoll._base.external_values import shown
from rdmacoll._horovod.optimizer_methods import methods_of
from rdmacoll._horovod.overflow import told_of_overflow
from rdmacoll.errors import ConfigError
from rdmacoll.ops import Compression
from rdmacoll.ops._library import not_converted
from rdmacoll.ops.compression import Compressor
from rdmacoll.optimizer import registry
from rdmacoll.optimizer.compared_values import declare_local
from rdmacoll.optimizer.gradient_origin import variable_key
from rdmacoll.optimizer.reduce import GradientReducer, is_overwritten
from rdmacoll.optimizer.registry import plain_variable
from rdmacoll.process_set import ProcessSet, global_process_set


class HorovodReducer(GradientReducer):
    """Leaves gradients of local variables as they are, and all gradients on ranks outside of the process set.
    It takes users' own compressors.

    scale_local_gradients: divides gradients of local variables by the number of ranks in the set.
    """

    counts_passes = True

    def __init__(
        self, *, compression: Any = None, scale_local_gradients: bool = True, **options: Any
    ) -> None:
        is_own = compression is not None and not isinstance(compression, Compressor)
        if is_own and not all(hasattr(compression, name) for name in ("compress", "decompress")):
            raise ConfigError(
                f"compression={shown(compression)}: give rdmacoll.Compression.none, fp16 or bf16, or a class "
                "with compress(tensor) and decompress(tensor, context)."
            )
        super().__init__(compression=Compression.none if is_own else compression, **options)
        self.own_compression = compression if is_own else None
        self.scale_local_gradients = bool(scale_local_gradients)
        self.is_member = takes_part(self.process_set)
        self._local: dict[Any, Any] = {}  # variables by their keys
        self._local_layers: list[Any] = []

    def options(self) -> dict[str, Any]:
        """The arguments that create a reducer like this one, without local variables."""
        options = {**super().options(), "reducer_class": type(self)}
        options["scale_local_gradients"] = self.scale_local_gradients
        if self.own_compression is not None:
            options["compression"] = self.own_compression
        return options

    def methods(self, plain: type) -> dict[str, Any]:
        """Horovod's methods of wrapped optimizers."""
        return methods_of(plain)

    def register_local(self, variable: Any) -> None:
        """Adds a variable, or another source of a tape, whose gradient stays this rank's own."""
        self._local[_key(variable)] = variable

    def register_local_layers(self, layers: Iterable[Any]) -> None:
        """Like `register_local`, for the trainable weights of layers. They may be built later."""
        self._local_layers += layers

    def is_local(self, variable: Any) -> bool:
        """Whether `register_local` or a local layer names this variable."""
        return _key(variable) in self._local_keys()

    def keeps(self, variable: Any) -> bool:
        """Whether the gradient of this variable stays this rank's own."""
        return not self.is_member or self.is_local(variable) or super().keeps(variable)

    @not_converted
    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any] | None = None) -> list[Any]:
        """The reduced gradients, and this rank's own of local variables. None stays None."""
        sources = list(variables or ())
        local = self._local_keys()
        are_local = [_key(one) in local for one in sources]
        if self.is_member and not any(are_local):
            return super().__call__(gradients, variables)
        declare_local(one for one, is_local in zip(sources, are_local) if is_local and hasattr(one, "assign"))
        results = list(gradients)
        others = [place for place in range(len(results)) if place >= len(sources) or not are_local[place]]
        if self.is_member:
            # Only shared gradients are in the list: ranks may hold different parts of a model as local ones.
            shared = [results[place] for place in others]
            own = [one for place, one in enumerate(results) if place not in others]
            reduced = super().__call__(told_of_overflow(shared, own), [sources[place] for place in others])
            for place, one in zip(others, reduced):
                results[place] = one
        registry.note_reduction(self, [one for one in sources if self.keeps(one)], are_kept=True)
        for place, one in enumerate(results):
            if place < len(sources) and is_overwritten(sources[place]):
                continue
            if place not in others:
                results[place] = self._own(one, is_local=True)
            elif not self.is_member:
                results[place] = self._own(one, is_local=False)
        return results

    def _reduced(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> list[Any]:
        if self.own_compression is None:
            return super()._reduced(gradients, variables)
        results, contexts = list(gradients), {}
        for place, one in enumerate(gradients):
            if variables is not None and is_overwritten(variables[place]):
                continue
            if one is not None and (self.sparse_as_dense is True or not isinstance(one, tf.IndexedSlices)):
                results[place], contexts[place] = self.own_compression.compress(tf.convert_to_tensor(one))
        results = super()._reduced(results, variables)
        for place, context in contexts.items():
            results[place] = self.own_compression.decompress(results[place], context)
        return results

    def _own(self, gradient: Any, *, is_local: bool) -> Any:
        """A gradient that is not reduced."""
        factor = float(self.sums_means_of)
        if is_local and self.scale_local_gradients:
            factor /= self.process_set.size()
        if gradient is None or factor == 1.0:
            return gradient
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
        return gradient * factor

    def _local_keys(self) -> set[Any]:
        weights = (one for layer in self._local_layers for one in layer.trainable_weights)
        return {*self._local, *map(_key, weights)}


def _key(variable: Any) -> Any:
    plain = plain_variable(variable)
    key = variable_key(plain)
    return id(plain) if key is None else key


def takes_part(process_set: ProcessSet) -> bool:
    """Whether this rank is in the set."""
    return process_set is global_process_set or bool(process_set.included())


def layers_of(local_layers: Any) -> list[Any]:
    """The layers of the argument `local_layers`: None, a layer of Keras or several. Raises ConfigError."""
    layers = [local_layers] if hasattr(local_layers, "trainable_weights") else local_layers or []
    if not isinstance(layers, Iterable) or not all(hasattr(one, "trainable_weights") for one in layers):
        raise ConfigError(f"local_layers={shown(local_layers)}: give a layer of Keras, or a list of layers.")
    return list(layers)
