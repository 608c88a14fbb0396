"""Watches plain optimizers in a program that reduces gradients elsewhere, or that has made ranks equal by a
broadcast. Ranks train apart where a program forgets to reduce gradients, and no wrapped object sees it.

A program may mean this, so it is a warning. It is an error if the variables that ranks share come apart too.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rdmacoll._base.exit_cause import note_last_action
from rdmacoll._world import places, world
from rdmacoll.ops import _baselines, _own_reductions as own_reductions
from rdmacoll.ops._labels import listed
from rdmacoll.ops._library import not_converted
from rdmacoll.optimizer import (
    compared_values,
    fit_patches,
    fit_state,
    reducer_of,
    registry,
    update_check,
    with_inner,
)
from rdmacoll.optimizer.reduce import check_clipping
from rdmacoll.optimizer.registry import Reduction
from rdmacoll.process_set import global_process_set
from rdmacoll.ps.calls import has_servers

# The classes whose method applies gradients, by module.
_METHODS = {
    "keras.src.optimizers.base_optimizer": ("BaseOptimizer", "apply"),
    "keras.src.optimizers.optimizer": ("Optimizer", "apply_gradients"),
    "keras.src.optimizers.legacy.optimizer_v2": ("OptimizerV2", "apply_gradients"),
    "tf_keras.src.optimizers.optimizer": ("Optimizer", "apply_gradients"),
    "tf_keras.src.optimizers.legacy.optimizer_v2": ("OptimizerV2", "apply_gradients"),
    "tensorflow.python.training.optimizer": ("Optimizer", "apply_gradients"),
}
_WATCHED: set[str] = set()  # modules
_WARNED: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers
_JUDGED: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers of programs without wrapped ones
# The variables of the last update of each plain optimizer that was called before a broadcast.
_BEFORE_BROADCAST: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
_PAYLOAD_BEFORE = [0]  # the bytes of all operations until the end of the last broadcast


def watch() -> None:
    """Call it when an optimizer or a tape is wrapped, or when variables are broadcast. From now on all
    updates by plain optimizers of the imported libraries are looked at."""
    for module, (name, method) in _METHODS.items():
        if module in _WATCHED or module not in sys.modules:
            continue
        _WATCHED.add(module)
        # Keras 3 has other classes than Keras 2 in the same module.
        found = getattr(sys.modules[module], name, None)
        if found is not None and method in vars(found):
            make = _watched_apply if method == "apply" else _watched_apply_gradients
            setattr(found, method, make(vars(found)[method]))


def _watched_apply(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        known = (
            getattr(self, "_trainable_variables", ()) if trainable_variables is None else trainable_variables
        )
        grads, variables = list(grads), list(known)
        _look(self, grads, variables)
        return plain(self, grads, trainable_variables if trainable_variables is None else variables)

    return apply


def _watched_apply_gradients(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        _look(self, [one for one, _ in pairs], [one for _, one in pairs])
        return plain(self, pairs, *args, **kwargs)

    return apply_gradients


@not_converted
def _look(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Looks at an update, or at its trace. Raises ConfigError if each rank would clip gradients of all ranks
    by a norm of its own."""
    if reducer_of(optimizer) is not None or getattr(optimizer, "_rdmacoll_is_inside", False):
        return
    if optimizer in _WARNED or not world.is_initialized() or update_check.mode() == "off" or has_servers():
        return
    updated = [one for gradient, one in zip(gradients, variables) if gradient is not None]
    reductions = [registry.reduction_of(one) for one in updated]
    shared = [one for one in reductions if one is not None and not one.is_kept]
    if any(one.is_of_tape for one in shared):
        are_kept = [one is not None and one.is_kept for one in reductions]
        check_clipping(optimizer, are_kept, shared[0].process_set)
    if shared:
        own = [one for one, last in zip(updated, reductions) if _is_own(one, last)]
        if own:
            _warn(optimizer, own, shared)
    elif not fit_state.is_running() and optimizer not in _JUDGED:
        if any(map(_baselines.is_sent, updated)):
            _judge(optimizer, updated)
        else:
            _BEFORE_BROADCAST[optimizer] = updated


def _judge(optimizer: Any, updated: Sequence[Any]) -> None:
    """Warns if a plain optimizer updates variables of a broadcast, and nothing reduces their gradients."""
    _JUDGED.add(optimizer)
    own = [one for one in updated if _is_own(one, registry.reduction_of(one))]
    if own and not _may_reduce_arrays(own):
        _warn(optimizer, own, [])


def _may_reduce_arrays(variables: Sequence[Any]) -> bool:
    """Whether the program may have reduced gradients of these variables as arrays, since the last broadcast.
    If it wraps optimizers or tapes, the bytes are those of their gradients."""
    if registry.has_reductions():
        return False
    size = sum(tf.TensorShape(one.shape).num_elements() or 0 for one in variables)
    return size <= world.metrics()["payload_bytes"] - _PAYLOAD_BEFORE[0]


def _on_broadcast(variables: Sequence[Any]) -> None:
    """Judges the plain optimizers that have updated these variables once, since the broadcast may come after
    the first step. A program that has trained them longer on each rank begins to train them together."""
    if not world.is_initialized():
        return
    watch()
    fit_patches.install_everywhere()
    if tf.executing_eagerly():  # the broadcast is done
        sizes = (one.dtype.size * (one.shape.num_elements() or 0) for one in map(_tensor_like, variables))
        _PAYLOAD_BEFORE[0] += sum(sizes)
    sent = {id(registry.plain_variable(one)) for one in variables}
    for optimizer, updated in list(_BEFORE_BROADCAST.items()):
        if any(id(registry.plain_variable(one)) in sent for one in updated):
            del _BEFORE_BROADCAST[optimizer]
            if _updates_of(optimizer) <= 1 and not fit_state.is_running():
                _judge(optimizer, updated)
    _PAYLOAD_BEFORE[0] = int(world.metrics()["payload_bytes"])


def _tensor_like(variable: Any) -> tf.TensorSpec:
    return tf.TensorSpec(variable.shape, variable.dtype)


def _updates_of(optimizer: Any) -> int:
    """The number of updates of an optimizer so far. An optimizer of TensorFlow 1 does not count them."""
    count = getattr(with_inner(optimizer)[-1], "iterations", None)
    with tf.init_scope():
        return 0 if count is None or not tf.executing_eagerly() else int(tf.convert_to_tensor(count))


_baselines.on_broadcast(_on_broadcast)


def _is_own(variable: Any, last: Reduction | None) -> bool:
    """Whether nothing has reduced gradients of this variable, and the program has not said that ranks differ
    there."""
    if last is not None or registry.has_own_reduction(variable) or compared_values.is_local(variable):
        return False
    return not own_reductions.may_cover([variable], 0)


def _warn(optimizer: Any, own: Sequence[Any], shared: Sequence[Reduction]) -> None:
    _WARNED.add(optimizer)
    process_set = shared[0].process_set if shared else global_process_set
    if not places.may_have_peers(process_set) or not process_set.included():
        return
    kind = type(optimizer).__name__
    # Other ranks may wrap theirs, and wait for this one.
    note_last_action(
        f"a plain {kind} had updated {listed(own)} there by gradients of one rank alone: wrap it on every "
        "rank, or its tape"
    )
    if process_set.rank() != 0:
        return
    others = " and others by gradients of all ranks" if shared else ", which a broadcast has made equal"
    update_check.log().warning(
        f"a plain {kind} updates {listed(own)} by gradients of this rank alone{others}: "
        "ranks would train apart. Take all its gradients from wrapped tapes (DistributedGradientTape), or "
        "wrap the optimizer instead. If each rank is to have values of its own there, "
        "rdmacoll.declare_local(variables) hides this warning, which appears once for an optimizer."
    )
