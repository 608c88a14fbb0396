"""Callbacks for `model.fit`, in Keras 3 and in Keras 2."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from rdmacoll.engine import world
from rdmacoll.engine.errors import MismatchError
from rdmacoll.engine.operators import ReduceOp
from rdmacoll.ops._arguments import check_root
from rdmacoll.ops.allreduce import allreduce
from rdmacoll.ops.broadcast import broadcast_variables


class _Callback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Serves every Keras, also `tf_keras` beside Keras 3: what runs callbacks in Keras 2 asks them for more
    than those of Keras 3 have."""

    def _implements_train_batch_hooks(self) -> bool:
        return False

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False


class BroadcastGlobalVariablesCallback(_Callback):
    """Gives all ranks the variables of rank `root_rank`, before the first batch of each `fit`.

    All of them: weights, statistics of batch normalisation, states of seed generators, and the
    optimizer's (which is built first when it is not). A model that Keras cannot build before it sees
    data (Keras 2 only) gets them after its first batch.
    """

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        self.root_rank = check_root(root_rank)
        self._is_done = False

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def on_train_begin(self, logs: Any = None) -> None:
        """Keras has built the model by now, when it can."""
        self._is_done = False
        self._broadcast()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A model that was built meanwhile."""
        self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """The first batch has built the rest."""
        self._broadcast()

    def _broadcast(self) -> None:
        if self._is_done or not self.model.built:
            return
        optimizer = self.model.optimizer
        if optimizer is not None and not getattr(optimizer, "built", True):
            optimizer.build(self.model.trainable_variables)
        broadcast_variables(_variables(self.model) + _variables(optimizer), self.root_rank)
        self._is_done = True


def _variables(owner: Any) -> list[Any]:
    variables = getattr(owner, "variables", [])
    # A method in the legacy optimizers of Keras 2.
    return list(variables() if callable(variables) else variables)


class MetricAverageCallback(_Callback):
    """Averages the metrics of each epoch over all ranks, for the callbacks that come after this one
    (schedules, early stopping, checkpoints: their decisions then agree).

    All ranks need the same metrics: validation data on every rank, or on none. Otherwise they get a
    MismatchError with the names of this rank's metrics.
    """

    def __init__(self) -> None:
        super().__init__()
        self._epochs = 0

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replaces the numbers in `logs`."""
        if not logs or world.size() == 1:
            return
        names = sorted(name for name, value in logs.items() if np.ndim(value) == 0)
        mine = tf.constant([float(logs[name]) for name in names], dtype=tf.float64)
        self._epochs += 1
        try:
            averages = allreduce(mine, op=ReduceOp.AVERAGE, name=f"metrics of epoch {self._epochs}")
        except MismatchError as error:
            raise MismatchError(
                f"{error} This rank's metrics are {', '.join(names)}: MetricAverageCallback needs the same "
                "ones on every rank (validation data on all ranks, or on none)."
            ) from None
        for name, value in zip(names, averages.numpy()):
            logs[name] = float(value)
