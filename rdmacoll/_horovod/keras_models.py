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
    **options: Any,
) -> Any:
    """Loads a model with Keras's `load_model`, and wraps its optimizer by `DistributedOptimizer`.

    custom_optimizers: classes of optimizers that the file names, which Keras does not have. custom_objects:
    other such objects, by name. legacy_opts: without effect, since every kind of optimizer can be wrapped.
    options: other arguments of `DistributedOptimizer`.

    A file does not tell whether updates of several passes were sums or means. With Keras 3 they go on as
    means, with a warning. Give `backward_passes_per_step` as before the model was saved, and updates are sums
    again. In Keras 2 each pass is a step without this option.

    Raises ConfigError for a wrong option, and for another number of passes than that of the file.
    """
    objects = {**{one.__name__: one for one in custom_optimizers or ()}, **(custom_objects or {})}
    model = tf.keras.models.load_model(filepath, custom_objects=objects)
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression, **options)
        if isinstance(compression, LossyCompressor) and str(filepath).endswith(".keras"):
            model.load_weights(filepath)  # again, with the residuals that the wrapped optimizer has in a file
    return model
