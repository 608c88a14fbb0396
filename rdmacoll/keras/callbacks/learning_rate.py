"""Learning rates that change during `fit`, with momentum correction (Goyal et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from rdmacoll.errors import ConfigError
from rdmacoll.keras.callbacks.base import Callback
from rdmacoll.keras.callbacks.variable_broadcast import session_of
from rdmacoll.ops._sessions import set_value
from rdmacoll.optimizer import with_inner
from rdmacoll.process_set import ProcessSet, global_process_set


class LearningRateScheduleCallback(Callback):
    """Multiplies `initial_lr` by `multiplier(epoch)`, at the first batch of each epoch.

    multiplier: a function of the epoch, or a number, which becomes `multiplier ** (epoch - start_epoch)`.
    start_epoch, end_epoch: the first epoch with this schedule, and the one after the last. staircase: False
    changes the rate at each batch, with fractions of epochs; `steps_per_epoch` is then needed if Keras does
    not know it. momentum_correction: momentum weighs what the old rate has added. So it is scaled with the
    rate, once at each change.

    The logs of each epoch get the rate as `lr`. allow_unwrapped, process_set: as of MetricAverageCallback;
    the rate changes on all ranks. Raises ValueError without `initial_lr`, or if the steps are unknown.
    """

    def __init__(
        self,
        initial_lr: Any,
        multiplier: Any,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        *,
        allow_unwrapped: bool = False,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(process_set, allow_unwrapped=allow_unwrapped)
        if initial_lr is None:
            raise ConfigError("initial_lr=None: give the learning rate that the multiplier is for.")
        self.initial_lr = initial_lr
        self.multiplier: Callable[[Any], Any] = (
            multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)
        )
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = self._given_steps = steps_per_epoch
        self.current_epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds the number of steps of this `fit`. Raises ConfigError if it is unknown."""
        super().on_train_begin(logs)
        if not self.staircase and not self._given_steps:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ConfigError(
                    f"{type(self).__name__} does not know the steps of an epoch: give steps_per_epoch."
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        super().on_epoch_begin(epoch, logs)
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Changes the rate: at the first batch of an epoch, or at each one."""
        super().on_train_batch_begin(batch, logs)
        if self.current_epoch < self.start_epoch:
            return
        if self.end_epoch is not None and self.current_epoch >= self.end_epoch:
            return
        if self.staircase and batch == 0:
            self._change(self.current_epoch)
        elif not self.staircase:
            self._change(self.current_epoch + batch / (self.steps_per_epoch or 1))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the rate to the logs."""
        super().on_epoch_end(epoch, logs)
        if logs is not None:
            logs["lr"] = self._rate()

    def _rate(self) -> float:
        return float(_read(_rate_of(self._optimizer()), self.model))

    def _optimizer(self) -> Any:
        return with_inner(self.model.optimizer)[-1]

    def _change(self, epoch: float) -> None:
        optimizer, old = self._optimizer(), self._rate()
        new = self.initial_lr * self.multiplier(epoch)
        _write(_rate_of(optimizer), new, self.model)
        if self.momentum_correction and old not in (0.0, new):
            # Keras has the momentum as a constant of the traced step. The sums that it weighs are variables.
            for velocity in _velocities(optimizer, self.model):
                _write(velocity, _read(velocity, self.model) * (new / old), self.model)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the rate from `initial_lr / size()` to `initial_lr` over the first epochs, a little at each
    batch (Goyal et al. 2017).

    verbose: 1 prints the rate after the last of these epochs, at rank 0. process_set: the ranks that train
    together, whose number counts. Other ranks begin with `initial_lr`.
    """

    def __init__(
        self,
        initial_lr: Any,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        *,
        allow_unwrapped: bool = False,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        def multiplier(epoch: float) -> float:
            size = process_set.size() if process_set.included() else 1
            done = epoch + 1 / (self.steps_per_epoch or 1)  # so that epochs end with round numbers
            return (done * (size - 1) / warmup_epochs + 1) / size

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
            allow_unwrapped=allow_unwrapped,
            process_set=process_set,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the rate to the logs, and prints it after the last of the first epochs."""
        super().on_epoch_end(epoch, logs)
        if epoch + 1 == self.end_epoch and self.verbose > 0 and self._is_first_rank():
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate():g}.")

    def _is_first_rank(self) -> bool:
        return bool(self.process_set.included()) and self.process_set.rank() == 0


def _velocities(optimizer: Any, model: Any) -> list[Any]:
    """The sums that the optimizer's momentum weighs: of SGD and RMSprop, in every Keras."""
    if not hasattr(optimizer, "momentum"):
        return []
    if hasattr(optimizer, "get_slot_names"):  # a legacy optimizer of Keras 2, with slots from its first step
        slots = getattr(optimizer, "_slots", {}).values()
        return [one["momentum"] for one in slots if "momentum" in one]
    return list(getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or ())


def _rate_of(optimizer: Any) -> Any:
    """The variable with the rate. Raises ConfigError for a schedule of Keras."""
    rate = getattr(optimizer, "_learning_rate", optimizer.learning_rate)
    if not hasattr(rate, "assign"):
        raise ConfigError(
            f"the learning rate is a {type(rate).__name__}, which changes by itself: give the optimizer a "
            "number."
        )
    return optimizer.learning_rate


def _read(variable: Any, model: Any) -> Any:
    return np.asarray(variable) if tf.executing_eagerly() else session_of(model).run(variable)


def _write(variable: Any, value: Any, model: Any) -> None:
    if tf.executing_eagerly():
        variable.assign(value)
    else:
        set_value(variable, value, session_of(model))
