"""Keras 3: the given optimizer gets a subclass of its own class that reduces before it applies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from rdmacoll.errors import ConfigError
from rdmacoll.ops._library import not_converted
from rdmacoll.ops._names import replica_count
from rdmacoll.optimizer import fit_patches, replicas, residuals, single_reduction, with_inner
from rdmacoll.optimizer.accumulated_means import warn_of_means
from rdmacoll.optimizer.loss_scaling import scaled_by
from rdmacoll.optimizer.reduce import GradientReducer, is_overwritten
from rdmacoll.optimizer.replicas import refuse_accumulation
from rdmacoll.optimizer.subclass import subclass
from rdmacoll.optimizer.update_check import applied
from rdmacoll.optimizer.wrapped_copies import WrappedCopies


class Distributed(WrappedCopies):
    """Mixed in before the optimizer's own class; `_rdmacoll_reduce` is set on the dynamic subclass."""

    _rdmacoll_reduce: GradientReducer
    # replicas that are in loss scaling around this optimizer, which has reduced already
    _rdmacoll_is_reduced = 0
    _rdmacoll_applied: tuple[Any, ...] = ()  # variables of the gradients that are being clipped
    _rdmacoll_is_whole = False  # whether gradients of all passes of a step are applied in each replica
    # variables that the last passes have given gradients, and the number of passes before those
    _rdmacoll_set: tuple[frozenset[Any], int] = (frozenset(), 0)

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """`apply_gradients` and `fit` call this. It reduces before clipping, so that the norm is that of
        the whole batch."""
        _check_parts(self, trainable_variables)
        done = self._rdmacoll_apply(grads, trainable_variables)
        if not self._accumulates():
            applied(self, self._trainable_variables)  # type: ignore[attr-defined]
        return done

    def _rdmacoll_apply(self, grads: Any, trainable_variables: Any) -> Any:
        plain = super().apply  # type: ignore[misc]
        if self._accumulates():
            _check_set(self, grads, _variables_of(self, trainable_variables, len(grads)))
        if self._accumulates() and replica_count() > 1:
            return self._rdmacoll_pass(list(grads), trainable_variables)
        if self._rdmacoll_is_reduced:
            return plain(grads, trainable_variables)
        variables = _variables_of(self, trainable_variables, len(grads))
        if not self._accumulates():
            grads = replicas.reduced(self._rdmacoll_reduce, grads, variables)
        with replicas.summed(with_inner(self)):
            done = plain(grads, trainable_variables)
        single_reduction.forget(variables, self._rdmacoll_reduce.process_set)
        return done

    def _rdmacoll_pass(self, grads: list[Any], trainable_variables: Any) -> None:
        """A pass with several replicas in this process. TensorFlow leaves a replica only outside of
        branches. So the sums over replicas are added up there, and the last pass goes back into each
        replica."""
        plain = super().apply  # type: ignore[misc]
        if not self.built:  # type: ignore[attr-defined]
            self.build(list(trainable_variables))  # type: ignore[attr-defined]
        variables = _variables_of(self, trainable_variables, len(grads))
        reducer, is_reduced = self._rdmacoll_reduce, bool(self._rdmacoll_is_reduced)
        passes = self.gradient_accumulation_steps  # type: ignore[attr-defined]
        iterations = self._iterations.value  # type: ignore[attr-defined]

        def step(strategy: Any, totals: list[Any]) -> None:
            present = [index for index, total in enumerate(totals) if total is not None]
            index_of = self._get_variable_index  # type: ignore[attr-defined]
            kept = self._accumulated_gradients  # type: ignore[attr-defined]
            sums = {index: kept[index_of(variables[index])].value for index in present}
            combine = {index: tf.maximum if is_overwritten(variables[index]) else tf.add for index in present}
            added = {index: combine[index](sums[index], totals[index]) for index in present}

            def last() -> Any:
                found = [added.get(index) for index in range(len(totals))]
                found = [
                    one if one is None or is_overwritten(variable) else one / passes
                    for one, variable in zip(found, variables)
                ]
                if not is_reduced:
                    found = single_reduction.reduced(reducer, found, variables)
                object.__setattr__(self, "_rdmacoll_is_whole", True)
                try:
                    with replicas.summed(with_inner(self), count=strategy.num_replicas_in_sync):
                        strategy.extended.call_for_each_replica(plain, args=(found, variables))
                finally:
                    vars(self).pop("_rdmacoll_is_whole")
                single_reduction.forget(variables, reducer.process_set)
                for total in sums.values():
                    total.assign(tf.zeros_like(total))
                return tf.constant(0)

            def other() -> Any:
                for index, total in sums.items():
                    total.assign(added[index])
                iterations.assign_add(1)
                return tf.constant(0)

            tf.cond(tf.equal((iterations + 1) % passes, 0), last, other)

        replicas.merged(step, grads, variables, is_summed=is_reduced)

    def _overwrite_variables_directly_with_gradients(self, grads: Any, trainable_variables: Any) -> Any:
        # With accumulation Keras has assigned the maxima of this rank's passes in the last one.
        others = super()._overwrite_variables_directly_with_gradients(grads, trainable_variables)  # type: ignore[misc]
        variables = [one for one in trainable_variables if is_overwritten(one)]
        is_reduced = self._rdmacoll_is_reduced or self._rdmacoll_is_whole
        if variables and self._accumulates() and not is_reduced:

            def last() -> Any:
                found = self._rdmacoll_reduce([one.value for one in variables], variables)
                for variable, value in zip(variables, found):
                    variable.assign(value)
                return tf.constant(0)

            count = self._iterations.value + 1  # type: ignore[attr-defined]
            passes = self.gradient_accumulation_steps  # type: ignore[attr-defined]
            tf.cond(tf.equal(count % passes, 0), last, lambda: tf.constant(0))
        return others

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        super()._backend_update_step(grads, trainable_variables, learning_rate)  # type: ignore[misc]
        if self._accumulates():  # this runs once for each update, and `apply` for each pass
            applied(self, self._trainable_variables)  # type: ignore[attr-defined]

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        self._rdmacoll_reduce.check_clipping(self, trainable_variables)
        if self._rdmacoll_is_whole:
            grads = super()._clip_gradients(grads)  # type: ignore[misc]
            self._apply_weight_decay(trainable_variables)  # type: ignore[attr-defined]
            self._backend_update_step(grads, trainable_variables, self.learning_rate)  # type: ignore[attr-defined]
            return
        object.__setattr__(self, "_rdmacoll_applied", tuple(trainable_variables))
        super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self, grads: Any) -> Any:
        # With accumulation Keras calls this once for each update, with the accumulated gradients.
        if not self._rdmacoll_is_reduced and self._accumulates():
            variables = _variables_of(self, self._rdmacoll_applied or None, len(grads))
            grads = single_reduction.reduced(self._rdmacoll_reduce, grads, variables)
        return super()._clip_gradients(grads)  # type: ignore[misc]

    def _accumulates(self) -> bool:
        return _accumulates(self)


class Scaling(WrappedCopies):
    """The base class of loss scaling around a wrapped optimizer. Copies of it are wrapped, too."""


def wrap(optimizer: Any, reducer: GradientReducer) -> None:
    """Changes the class of `optimizer`, and of the optimizer inside of its loss scaling. Raises
    ConfigError if Keras 3 cannot train here."""
    plain = type(optimizer)
    if not tf.compat.v1.executing_eagerly_outside_functions():
        raise ConfigError(
            f"the {plain.__name__} of Keras 3 cannot train without eager execution "
            "(tf.compat.v1.disable_eager_execution(), or a graph of TensorFlow 1): leave eager execution on, "
            "or take Keras 2 (tf_keras) with an optimizer of keras.optimizers.legacy."
        )
    fit_patches.install("keras", 3)
    _patch_loss_scaling()
    patch_jit()
    _accumulate(optimizer, reducer)
    inner = _scaled(optimizer)
    if inner is not None:
        _become(inner, Distributed, reducer)
    _become(optimizer, Distributed if inner is None else Scaling, reducer)
    if reducer.lossy is not None:
        residuals.save_with_keras_3(optimizer if inner is None else inner)


def _become(optimizer: Any, mixin: type, reducer: GradientReducer) -> None:
    plain = type(optimizer)
    distributed = subclass(plain, mixin, reducer)
    save_as(plain, distributed)
    optimizer.__class__ = distributed


def _scaled(optimizer: Any) -> Any:
    """The optimizer inside of Keras's loss scaling; None for any other optimizer. Ranks count the same
    updates only if all of them wrap the inner one, as `compile` does. A loaded optimizer is inside of its
    scaling already."""
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

    # A class that a program derives may check for finite gradients before they are reduced.
    return optimizer.inner_optimizer if type(optimizer).apply is LossScaleOptimizer.apply else None


def _accumulate(optimizer: Any, reducer: GradientReducer) -> None:
    """Several passes in a step: uses Keras's own accumulation, which takes the mean of the passes."""
    passes = reducer.backward_passes_per_step
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    if passes == 1:
        warn_of_means(optimizer, reducer)
        return
    if not reducer.average_aggregated_gradients:
        reducer.sums_means_of = passes
    cure = f"create it with gradient_accumulation_steps={passes}, and leave backward_passes_per_step out"
    if hasattr(optimizer, "_inner_optimizers"):
        cure = f"create its optimizers with gradient_accumulation_steps={passes}"
        raise ConfigError(f"{type(optimizer).__name__} takes no backward_passes_per_step={passes}: {cure}.")
    # A copy has the number already, or gets it with the rest of its state.
    own = getattr(optimizer, "gradient_accumulation_steps", passes)
    if own == passes:
        return
    if own:
        raise ConfigError(
            f"backward_passes_per_step={passes} was given, and the optimizer has "
            f"gradient_accumulation_steps={own} already: leave one of them out."
        )
    if optimizer.built:
        raise ConfigError(
            f"backward_passes_per_step={passes} was given, and the {type(optimizer).__name__} is built "
            f"already: wrap it before its first step, or {cure}."
        )
    optimizer.gradient_accumulation_steps = passes


def _accumulates(optimizer: Any) -> bool:
    """Whether the optimizer accumulates passes. Raises ConfigError if it cannot do so with the replicas of
    this process."""
    if replica_count() > 1:
        _check_accumulation(optimizer)
    return bool(getattr(optimizer, "gradient_accumulation_steps", None))


def _check_accumulation(optimizer: Any) -> None:
    """Checks an accumulation with several replicas in this process. Raises ConfigError."""
    for part in with_inner(optimizer):
        steps = getattr(part, "gradient_accumulation_steps", None)
        if not steps:
            continue
        option, name = f"gradient_accumulation_steps={steps}", "_backend_apply_gradients"
        if not isinstance(part, Distributed):
            outer = type(optimizer).__name__
            refuse_accumulation(option, f"wrap the {type(part).__name__} instead of the {outer} around it")
        plain = next(
            vars(kind)[name] for kind in type(part).__mro__ if kind is not Distributed and name in vars(kind)
        )
        # Older versions clip in each pass, and averages of weights move in each pass.
        if "_clip_gradients" not in plain.__code__.co_names or part.use_ema:
            refuse_accumulation(option)


def _check_parts(optimizer: Any, variables: Any) -> None:
    """Refuses a MultiOptimizer whose parts are wrapped, or clip by a norm that differs between ranks. A
    function of the program may return its parts when it is built, so it is built here. Raises
    ConfigError."""
    if not hasattr(optimizer, "_inner_optimizers"):
        return
    if not optimizer.built and variables is not None:
        optimizer.build(list(variables))
    for part in optimizer.optimizers:
        if isinstance(part, Distributed):
            raise ConfigError(
                f"a {type(optimizer).__name__} and the {type(part).__name__} in it are both wrapped: those "
                "gradients would be reduced twice. Wrap only the outer one."
            )
        optimizer._rdmacoll_reduce.check_clipping(part, part._trainable_variables)


@not_converted
def _check_set(optimizer: Any, gradients: Any, variables: Any) -> None:
    """Refuses passes for other variables than the passes before. Keras counts the passes of all variables
    together, and the last one of a step drops sums of variables that it has no gradient for. A program may
    freeze layers between two trainings. Raises ConfigError."""
    own = frozenset(
        optimizer._var_key(variable)
        for gradient, variable in zip(gradients, variables)
        if gradient is not None and variable is not None
    )
    before, begin = optimizer._rdmacoll_set
    if own == before:
        return
    with tf.init_scope():  # a function is traced between two passes
        count = int(tf.convert_to_tensor(optimizer._iterations.value))
    passes = optimizer.gradient_accumulation_steps
    is_within_step = count == begin or (count % passes != 0 and begin < count < begin + passes)
    if before - own and (own - before or is_within_step):
        raise ConfigError(
            f"a {type(optimizer).__name__} with gradient_accumulation_steps={passes} got gradients of other "
            "variables than in its last pass: Keras counts the passes of all variables together, and would "
            "drop some gradients. Give each set of variables an optimizer of its own, and zeros instead of "
            "gradients that are None in some passes only."
        )
    object.__setattr__(optimizer, "_rdmacoll_set", (own, count))


def _variables_of(optimizer: Any, variables: Any, count: int) -> list[Any]:
    """The variables of `count` gradients: those of the call, or else all of the optimizer."""
    found = list(getattr(optimizer, "_trainable_variables", []) if variables is None else variables)
    return (found + [None] * count)[:count]  # Keras reports a wrong number


def save_as(plain: type, distributed: type) -> None:
    """Gives `distributed` the name of `plain` in saved files. Keras looks the name up by class."""
    from keras.src.api_export import REGISTERED_OBJS_TO_NAMES
    from keras.src.saving.object_registration import GLOBAL_CUSTOM_NAMES

    for names in (REGISTERED_OBJS_TO_NAMES, GLOBAL_CUSTOM_NAMES):
        if plain in names:
            names[distributed] = names[plain]


def _patch_loss_scaling() -> None:
    """With mixed precision `compile` puts a LossScaleOptimizer around our optimizer. It checks whether its
    own gradients are finite before it calls ours. If one rank overflowed, the others would wait. So the
    reduction comes before that check, and all ranks get the same answer."""
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
        reducer = inner._rdmacoll_reduce
        if reducer.lossy is not None and not self.built:
            self.build(variables)
        with scaled_by(reducer, 1.0 if reducer.lossy is None else self.dynamic_scale.value):
            grads = replicas.reduced(reducer, grads, variables)
        inner._rdmacoll_is_reduced += 1
        try:
            with replicas.summed(with_inner(inner)):
                return plain(self, grads, trainable_variables)
        finally:
            inner._rdmacoll_is_reduced -= 1
            single_reduction.forget(variables, inner._rdmacoll_reduce.process_set)

    apply.is_rdmacoll = True  # type: ignore[attr-defined]
    LossScaleOptimizer.apply = apply


def patch_jit() -> None:
    """Turns off `jit_compile="auto"` for models with our optimizer, since XLA refuses our ops. With True
    Keras gives its own warning."""
    from keras.src.trainers import trainer

    plain: Callable[[Any], bool] = trainer.model_supports_jit
    if getattr(plain, "is_rdmacoll", False):
        return

    def model_supports_jit(model: Any) -> bool:
        optimizer = getattr(model, "optimizer", None)
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        if isinstance(optimizer, WrappedCopies) or isinstance(inner, WrappedCopies):
            return False
        return plain(model)

    model_supports_jit.is_rdmacoll = True  # type: ignore[attr-defined]
    trainer.model_supports_jit = model_supports_jit
