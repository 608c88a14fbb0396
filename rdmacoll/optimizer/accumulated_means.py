"""Warns of an optimizer of Keras 3 that may go on with smaller updates than before it was saved.

With `backward_passes_per_step` updates are sums of passes, and a file has the number of passes alone. For
Keras it stands for means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from rdmacoll._base.log import Log
from rdmacoll._world import world
from rdmacoll.optimizer.wrapped_copies import COPY_OF

if TYPE_CHECKING:
    from rdmacoll.optimizer.reduce import GradientReducer


def warn_of_means(optimizer: Any, reducer: GradientReducer) -> None:
    """Call it when an optimizer is wrapped without `backward_passes_per_step`. Rank 0 warns if the optimizer
    accumulates passes and has trained before. A new one takes means, as its program says. optimizer: the
    innermost one."""
    passes = getattr(optimizer, "gradient_accumulation_steps", None)
    is_copy = reducer.name.startswith(COPY_OF)
    if not passes or is_copy or not world.is_initialized() or world.rank() != 0:
        return
    with tf.init_scope():
        has_trained = int(optimizer._iterations.numpy()) > 0
    if has_trained:
        Log(world.current().values.text("RDMACOLL_LOG"), world.rank()).warning(
            f"this {type(optimizer).__name__}, which has trained before, applies means of {passes} passes "
            f"(gradient_accumulation_steps={passes}). If backward_passes_per_step={passes} was given before "
            "it was saved, its updates were sums: give the option again, to DistributedOptimizer or "
            "hvd.load_model. If they were means, average_aggregated_gradients=True beside that option hides "
            "this warning."
        )
