"""The base of our callbacks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from rdmacoll._base.log import Log
from rdmacoll._world import world
from rdmacoll.keras.callbacks.reduction_check import BeforeTraining, before_training, check_reduced
from rdmacoll.optimizer.stop_cause import callbacks_of_fit, note_begin, note_end
from rdmacoll.process_set import ProcessSet, global_process_set, number_of
from rdmacoll.ps.calls import has_servers


class Callback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """The base class of callbacks for every Keras, also `tf_keras` beside Keras 3. Keras 2 asks its
    callbacks for more methods than those of Keras 3 have."""

    def __init__(
        self, process_set: ProcessSet = global_process_set, *, allow_unwrapped: bool = False
    ) -> None:
        super().__init__()
        if process_set is not global_process_set:
            number_of(world.current(), process_set)
        self.process_set = process_set
        self.allow_unwrapped = allow_unwrapped
        self._before_epoch: BeforeTraining | None = None
        self._has_checked = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Forgets what an earlier `fit` has noted."""
        note_begin()
        self._before_epoch, self._has_checked = None, False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the state before the first epoch. Other callbacks may restore a model until here."""
        if not self._has_checked and not self._is_single_rank() and not has_servers():
            self._before_epoch = before_training(self.model)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Raises ConfigError if the first epoch has trained the model by gradients of this rank alone."""
        before, self._before_epoch = self._before_epoch, None
        self._has_checked = True
        if before is None or not before.has_trained(self.model):
            return
        callbacks = callbacks_of_fit(self)
        if callbacks and not any(getattr(one, "allow_unwrapped", False) for one in callbacks):
            check_reduced(self.model, before, type(self).__name__)

    def on_train_end(self, logs: Any = None) -> None:
        """Remembers which callback has ended `fit`, for the message that other ranks may see."""
        note_end(self, self.model)

    def _is_single_rank(self) -> bool:
        """Whether this rank has no other rank to agree with in the process set."""
        return not self.process_set.included() or self.process_set.size() == 1

    def _warn(self, text: str) -> None:
        """Prints a warning of one line, at the first rank of the set."""
        if self.process_set.rank() == 0:
            Log(world.current().values.text("RDMACOLL_LOG"), world.rank()).warning(text)

    # Keras calls the hooks of batches only if a callback has its own ones. A derived class may have some.
    def _implements_train_batch_hooks(self) -> bool:
        return self._has_any("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")

    def _implements_test_batch_hooks(self) -> bool:
        return self._has_any("on_test_batch_begin", "on_test_batch_end")

    def _implements_predict_batch_hooks(self) -> bool:
        return self._has_any("on_predict_batch_begin", "on_predict_batch_end")

    def _has_any(self, *names: str) -> bool:
        plain = tf.keras.callbacks.Callback
        return any(
            name in vars(self) or getattr(type(self), name) is not getattr(plain, name) for name in names
        )
