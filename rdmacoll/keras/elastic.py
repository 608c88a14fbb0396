"""The names of `horovod.keras.elastic`."""

from __future__ import annotations

from typing import Any

from rdmacoll._horovod.elastic import State, TensorFlowKerasState, run
from rdmacoll.keras.callbacks.base import Callback
from rdmacoll.optimizer.stop_cause import callbacks_of_fit

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "TensorFlowKerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(TensorFlowKerasState):
    """A model of Keras and its optimizer, as `TensorFlowKerasState`."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)


class _StateCallback(Callback):
    def __init__(self, state: State) -> None:
        super().__init__()
        self.state: Any = state

    def note_batch(self, batch: int) -> None:
        """Notes in the state that a batch is done."""

    def note_epoch(self, epoch: int) -> None:
        """Notes in the state that an epoch is done."""


class CommitStateCallback(_StateCallback):
    """Commits the state every `batches_per_commit` batches, and after each epoch.

    Its commits have the numbers of the two other callbacks of this state, which may stand before or after it.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__(state)
        self.batches_per_commit = batches_per_commit
        self._left = batches_per_commit
        self._others: list[_StateCallback] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Counts anew, as workers do that have come to an elastic job."""
        super().on_train_begin(logs)
        self._left = self.batches_per_commit
        found = [one for one in callbacks_of_fit(self) if isinstance(one, _StateCallback)]
        self._others = [one for one in found if one.state is self.state]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commits, if it is time."""
        super().on_train_batch_end(batch, logs)
        self._left -= 1
        if self._left <= 0:
            for other in self._others:
                other.note_batch(batch)
            self.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits."""
        for other in self._others:
            other.note_epoch(epoch)
        self.commit()

    def commit(self) -> None:
        """Commits the state, and counts anew. Programs may override it."""
        self._left = self.batches_per_commit
        self.state.commit()


class UpdateBatchStateCallback(_StateCallback):
    """Keeps the number of the last batch in `state.batch`. An epoch that goes on from there tells other
    callbacks that it has fewer steps (`params`). Keras runs all batches of the data that `fit` gets."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._steps: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Notes the steps of an epoch."""
        super().on_train_begin(logs)
        self._steps = self.params.get("steps")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Takes the batches that were done before from the steps of this epoch. A larger world has fewer."""
        if self._steps:
            self.params["steps"] = max(1, self._steps - self.state.batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the batch."""
        super().on_train_batch_end(batch, logs)
        self.note_batch(batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Begins at the first batch again."""
        self.note_epoch(epoch)

    def note_batch(self, batch: int) -> None:
        """Notes the batch."""
        self.state.batch = batch

    def note_epoch(self, epoch: int) -> None:
        """Begins at the first batch again."""
        self.state.batch = 0


class UpdateEpochStateCallback(_StateCallback):
    """Keeps the number of epochs in `state.epoch`, over several calls of `fit`.

    `fit` may get `epochs=20 - state.epoch`, or `epochs=20, initial_epoch=state.epoch`. With the second one,
    schedules of learning rates go on where they were.
    """

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._before: int | None = None  # the epochs before the one that `fit` calls 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Forgets the last `fit`."""
        super().on_train_begin(logs)
        self._before = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epochs before this `fit`."""
        if self._before is None:
            self._before = self.state.epoch - epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Counts the epoch."""
        self.note_epoch(epoch)

    def note_epoch(self, epoch: int) -> None:
        """Counts the epoch."""
        self.state.epoch = (self._before or 0) + epoch + 1
