"""Keras 3: the given optimizer gets a subclass of its own class that reduces before it applies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from rdmacoll.engine.errors import ConfigError
from rdmacoll.optimizer import fits, once, replicas
from rdmacoll.optimizer.copies import Copied
from rdmacoll.optimizer.reduce import GradientReducer
from rdmacoll.optimizer.replicas import refuse_accumulation
from rdmacoll.optimizer.subclass import subclass
from rdmacoll.optimizer.update_check import applied


class Distributed(Copied):
    """Mixed in before the optimizer's own class; `_rdmacoll_reduce` is set on the dynamic subclass."""

    _rdmacoll_reduce: GradientReducer
    _rdmacoll_is_reduced = 0  # how many replicas are in loss scaling around us, which has reduced already
    _rdmacoll_applied: tuple[Any, ...] = ()  # variables of the gradients that are being clipped

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """`apply_gradients` and `fit` come through here. Reduces before clipping, so that the norm is
        that of the whole batch."""
        _check_parts(self, trainable_variables)
        done = self._rdmacoll_apply(grads, trainable_variables)
        if not self._accumulates():
            applied(self, self._trainable_variables)  # type: ignore[attr-defined]
        return done

    def _rdmacoll_apply(self, grads: Any, trainable_variables: Any) -> Any:
        plain = super().apply  # type: ignore[misc]
        if self._rdmacoll_is_reduced:
            return plain(grads, trainable_variables)
        variables = _variables_of(self, trainable_variables, len(grads))
        if not self._accumulates():
            grads = replicas.reduced(self._rdmacoll_reduce, grads, variables)
        with replicas.summed(_parts(self)):
            done = plain(grads, trainable_variables)
        once.forget(variables, self._rdmacoll_reduce.process_set)
        return done

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        super()._backend_update_step(grads, trainable_variables, learning_rate)  # type: ignore[misc]
        if self._accumulates():  # here for each update, in `apply` for each pass
            applied(self, self._trainable_variables)  # type: ignore[attr-defined]

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        object.__setattr__(self, "_rdmacoll_applied", tuple(trainable_variables))
        super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self, grads: Any) -> Any:
        # With accumulation this is reached once for each update, with the accumulated gradients.
        if not self._rdmacoll_is_reduced and self._accumulates():
            variables = _variables_of(self, self._rdmacoll_applied or None, len(grads))
            grads = once.reduced(self._rdmacoll_reduce, grads, variables)
        return super()._clip_gradients(grads)  # type: ignore[misc]

    def _accumulates(self) -> bool:
        return _accumulates(self)


def wrap(optimizer: Any, reducer: GradientReducer) -> None:
    """Swaps the class of `optimizer`. Raises ConfigError where Keras 3 does not train."""
    plain = type(optimizer)
    if not tf.compat.v1.executing_eagerly_outside_functions():
        raise ConfigError(
            f"the {plain.__name__} of Keras 3 cannot train without eager execution "
            "(tf.compat.v1.disable_eager_execution(), or a graph of TensorFlow 1): leave eager execution on, "
            "or take Keras 2 (tf_keras) with an optimizer of keras.optimizers.legacy."
        )
    distributed = subclass(plain, Distributed, reducer)
    fits.watch("keras", 3)
    save_as(plain, distributed)
    _patch_loss_scaling()
    patch_jit()
    _accumulate(optimizer, reducer)
    optimizer.__class__ = distributed


def _accumulate(optimizer: Any, reducer: GradientReducer) -> None:
    """Several passes to a step: Keras's own accumulation, which takes the mean of the passes."""
    passes = reducer.backward_passes_per_step
    if passes == 1:
        return
    if not reducer.average_aggregated_gradients:
        reducer.sums_means_of = passes
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    cure = f"create it with gradient_accumulation_steps={passes}, and leave backward_passes_per_step out"
    if hasattr(optimizer, "_inner_optimizers"):
        cure = f"create its optimizers with gradient_accumulation_steps={passes}"
        raise ConfigError(f"backward_passes_per_step={passes} of a {type(optimizer).__name__}: {cure}.")
    # A copy has them already, or gets them with the rest of its state.
    own = getattr(optimizer, "gradient_accumulation_steps", passes)
    if own == passes:
        return
    if own:
        raise ConfigError(
            f"backward_passes_per_step={passes} of an optimizer that has gradient_accumulation_steps={own} "
            "already: leave one of them out."
        )
    if optimizer.built:
        raise ConfigError(
            f"backward_passes_per_step={passes} of a {type(optimizer).__name__} that is built already: wrap "
            f"it before its first step, or {cure}."
        )
    optimizer.gradient_accumulation_steps = passes


def _parts(optimizer: Any) -> list[Any]:
    """The optimizer and those in it."""
    parts = [optimizer]
    for outer in parts:  # which grows
        inner = getattr(outer, "inner_optimizer", None)
        parts += [*([] if inner is None else [inner]), *getattr(outer, "_inner_optimizers", [])]
    return parts


def _accumulates(optimizer: Any) -> bool:
    """Raises ConfigError where it cannot."""
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    if steps:
        refuse_accumulation(f"gradient_accumulation_steps={steps}")
    return bool(steps)


def _check_parts(optimizer: Any, variables: Any) -> None:
    """A MultiOptimizer may ask a function of the program for its parts, when it is built."""
    if not hasattr(optimizer, "_inner_optimizers"):
        return
    if not optimizer.built and variables is not None:
        optimizer.build(list(variables))
    for part in optimizer.optimizers:
        if isinstance(part, Distributed):
            raise ConfigError(
                f"a {type(optimizer).__name__} and the {type(part).__name__} in it are both wrapped: those "
                "gradients would be reduced twice. Wrap the outer one alone."
            )


def _variables_of(optimizer: Any, given: Any, count: int) -> list[Any]:
    """The variables of so many gradients: those that a call gives, or else all of the optimizer."""
    found = list(getattr(optimizer, "_trainable_variables", []) if given is None else given)
    return (found + [None] * count)[:count]  # Keras says what is wrong with another number


def save_as(plain: type, distributed: type) -> None:
    """Keras looks up by class how an object is called in a saved file."""
    from keras.src.api_export import REGISTERED_OBJS_TO_NAMES
    from keras.src.saving.object_registration import GLOBAL_CUSTOM_NAMES

    for names in (REGISTERED_OBJS_TO_NAMES, GLOBAL_CUSTOM_NAMES):
        if plain in names:
            names[distributed] = names[plain]


def _patch_loss_scaling() -> None:
    """`compile` with mixed precision puts a LossScaleOptimizer around ours, which asks whether *its own*
    gradients are finite before it calls us: one rank that overflows would leave the others waiting. So
    the reduction moves in front of that question, and all ranks get the same answer."""
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

    plain: Callable[..., Any] = LossScaleOptimizer.apply
    if getattr(plain, "is_rdmacoll", False):
        return

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        inner = self.inner_optimizer
        if not isinstance(inner, Distributed):
            return plain(self, grads, trainable_variables)
        variables = _variables_of(self, trainable_variables, len(grads))
        _accumulates(inner)
        grads = replicas.reduced(inner._rdmacoll_reduce, grads, variables)
        inner._rdmacoll_is_reduced += 1
        try:
            with replicas.summed(_parts(inner)):
                return plain(self, grads, trainable_variables)
        finally:
            inner._rdmacoll_is_reduced -= 1
            once.forget(variables, inner._rdmacoll_reduce.process_set)

    apply.is_rdmacoll = True  # type: ignore[attr-defined]
    LossScaleOptimizer.apply = apply


def patch_jit() -> None:
    """XLA refuses our ops: `jit_compile="auto"` becomes off for models with our optimizer, and True gets
    Keras's own warning."""
    from keras.src.trainers import trainer

    plain: Callable[[Any], bool] = trainer.model_supports_jit
    if getattr(plain, "is_rdmacoll", False):
        return

    def model_supports_jit(model: Any) -> bool:
        optimizer = getattr(model, "optimizer", None)
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        if isinstance(optimizer, Copied) or isinstance(inner, Copied):
            return False
        return plain(model)

    model_supports_jit.is_rdmacoll = True  # type: ignore[attr-defined]
    trainer.model_supports_jit = model_supports_jit
