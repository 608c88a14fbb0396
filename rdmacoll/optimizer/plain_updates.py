"""Watches plain optimizers in a program that reduces gradients elsewhere. Ranks train apart where a program
forgets to reduce gradients, and no wrapped object sees it.

A program may mean this, so it is a warning. It is an error if the variables that ranks share come apart too.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from rdmacoll._world import places, world
from rdmacoll.ops import _baselines, _own_reductions as own_reductions
from rdmacoll.ops._labels import listed
from rdmacoll.ops._library import not_converted
from rdmacoll.optimizer import compared_values, fit_state, reducer_of, registry, update_check
from rdmacoll.optimizer.reduce import check_clipping
from rdmacoll.optimizer.registry import Reduction
from rdmacoll.process_set import global_process_set

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


def watch() -> None:
    """Call it when an optimizer or a tape is wrapped. From now on all updates by plain optimizers of the
    imported libraries are looked at."""
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
    if optimizer in _WARNED or not world.is_initialized() or update_check.mode() == "off":
        return
    updated = [one for gradient, one in zip(gradients, variables) if gradient is not None]
    reductions = [registry.reduction_of(one) for one in updated]
    shared = [one for one in reductions if one is not None and not one.is_kept]
    if any(one.is_of_tape for one in shared):
        are_kept = [one is not None and one.is_kept for one in reductions]
        check_clipping(optimizer, are_kept, shared[0].process_set)
    own = [one for one, last in zip(updated, reductions) if _is_own(one, last)]
    if not own or (not shared and (fit_state.is_running() or not any(map(_baselines.has_baseline, own)))):
        return
    _WARNED.add(optimizer)
    _warn(optimizer, own, shared)


def _is_own(variable: Any, last: Reduction | None) -> bool:
    """Whether nothing has reduced gradients of this variable, and the program has not said that ranks differ
    there."""
    if last is not None or registry.has_own_reduction(variable) or compared_values.is_local(variable):
        return False
    return not own_reductions.may_cover([variable], 0)


def _warn(optimizer: Any, own: Sequence[Any], shared: Sequence[Reduction]) -> None:
    process_set = shared[0].process_set if shared else global_process_set
    if not places.may_have_peers(process_set) or not process_set.included() or process_set.rank() != 0:
        return
    others = " and others by gradients of all ranks" if shared else ", which a broadcast has made equal"
    update_check.log().warning(
        f"a plain {type(optimizer).__name__} updates {listed(own)} by gradients of this rank alone{others}: "
        "ranks would train apart. Take all its gradients from wrapped tapes (DistributedGradientTape), or "
        "wrap the optimizer instead. If each rank is to have values of its own there, "
        "rdmacoll.declare_local(variables) hides this warning, which appears once for an optimizer."
    )
