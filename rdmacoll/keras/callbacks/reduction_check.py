"""Detects a model whose optimizer is not wrapped: each rank would train it alone."""

from __future__ import annotations

from typing import Any

from rdmacoll.engine.errors import ConfigError
from rdmacoll.keras.callbacks.optimizers import parts_of
from rdmacoll.keras.callbacks.variable_groups import MODEL, groups_of
from rdmacoll.optimizer.registry import reduction_of


def check_reduced(model: Any, *, since: int) -> None:
    """Call it after the first batch. since: a number of `registry.reductions()` from before it. Raises
    ConfigError when no gradient of this model has been reduced.

    A train function that was traced earlier reduces without being built again. So a reduction from before
    counts if it is that of a tape, or of an optimizer that the model still has.
    """
    groups = groups_of(model)
    trainable = [one for one in groups[MODEL].variables.values() if getattr(one, "trainable", True)]
    owners = [list(parts_of(group.owner)) for key, group in groups.items() if key != MODEL]
    reducers = [getattr(type(part), "_rdmacoll_reduce", None) for parts in owners for part in parts]
    if not trainable or (owners and all(any(map(_is_wrapped, parts)) for parts in owners)):
        return  # an optimizer that accumulates, or that the program calls later, has reduced nothing so far
    for variable in trainable:
        last = reduction_of(variable)
        if last is None:
            continue
        if last.number > since or last.is_of_tape or any(last.reducer() is one for one in reducers if one):
            return
    optimizer = getattr(model, "optimizer", None)
    name = "" if optimizer is None else f" ({type(optimizer).__name__})"
    raise ConfigError(
        f"the first batch of fit has reduced no gradient of model {getattr(model, 'name', '')!r}: its "
        f"optimizer{name} is not wrapped, as after load_model, and ranks would train apart. Call "
        "rdmacoll.DistributedOptimizer(model.optimizer) before fit, or pass allow_unwrapped=True to "
        "BroadcastGlobalVariablesCallback if gradients are reduced in another way."
    )


def _is_wrapped(optimizer: Any) -> bool:
    return hasattr(type(optimizer), "_rdmacoll_reduce")
