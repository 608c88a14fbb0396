"""A checkpoint of the best model, whose path is set later."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from rdmacoll.errors import ConfigError


class TensorflowBestModelCheckpoint(tf.keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Keras's `ModelCheckpoint` of the best model. Set `filepath` before `fit`: it raises ConfigError when it
    would write without a path."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        super().__init__(
            "unset.weights.h5" if save_weights_only else "unset.keras",
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: Any = None

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        if self.filepath is None:
            raise ConfigError("BestModelCheckpoint has no path: set its `filepath` before fit().")
        super()._save_model(*args, **kwargs)


class BestModelCheckpoint(TensorflowBestModelCheckpoint):
    """The same with the arguments of `horovod.keras`, which always saves the whole model."""

    def __init__(
        self, monitor: str = "val_loss", verbose: int = 0, mode: str = "auto", save_freq: Any = "epoch"
    ) -> None:
        super().__init__(monitor, verbose, mode=mode, save_freq=save_freq)
