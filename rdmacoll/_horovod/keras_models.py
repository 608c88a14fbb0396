"""Models that are loaded for a training on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from rdmacoll._horovod.optimizers import DistributedOptimizer
from rdmacoll.ops import Compression
from rdmacoll.ops.compression import LossyCompressor


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a model with Keras's `load_model`, and wraps its optimizer by `DistributedOptimizer`.

    custom_optimizers: classes of optimizers that the file names, which Keras does not have. custom_objects:
    other such objects, by name. legacy_opts: without effect, since every kind of optimizer can be wrapped.
    """
    objects = {**{one.__name__: one for one in custom_optimizers or ()}, **(custom_objects or {})}
    model = tf.keras.models.load_model(filepath, custom_objects=objects)
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
        if isinstance(compression, LossyCompressor) and str(filepath).endswith(".keras"):
            model.load_weights(filepath)  # again, with the residuals that the wrapped optimizer has in a file
    return model
