"""An optimizer becomes distributed by getting a subclass of its own class, and stays the same object. The
subclass has the name and module of the plain class. So saved files hold the plain optimizer, which loads
without rdmacoll."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rdmacoll.optimizer import replicas, single_reduction
from rdmacoll.optimizer.reduce import GradientReducer
from rdmacoll.optimizer.wrapped_copies import copy_methods

if TYPE_CHECKING:
    from rdmacoll.optimizer.server_exchange import Exchange


def subclass(plain: type, mixin: type, reducer: GradientReducer | Exchange) -> type:
    """A subclass of `mixin` and `plain`, in this order, that looks like `plain`."""
    # By these attributes Keras 2 finds the name of one of its own objects in a saved file.
    names = {name: value for name, value in vars(plain).items() if name.endswith("_api_names")}
    return type(
        plain.__name__,
        (mixin, plain),
        {
            "__module__": plain.__module__,
            "__qualname__": plain.__qualname__,
            "__doc__": plain.__doc__,
            "_rdmacoll_reduce": reducer,
            **copy_methods(plain),
            **names,
            **(reducer.methods(plain) if isinstance(reducer, GradientReducer) else {}),
        },
    )


def reduced_pairs(reducer: GradientReducer, grads_and_vars: Any, *, is_early: bool) -> list[tuple[Any, Any]]:
    """(gradient, variable) pairs, with each gradient reduced once. is_early: the caller is
    `compute_gradients`, which leaves sums over the replicas of this process to `apply_gradients`."""
    gradients, variables = split(grads_and_vars)
    reduced = single_reduction.reduced_early if is_early else replicas.reduced
    gradients = reduced(reducer, gradients, variables)
    single_reduction.note(gradients, variables, reducer.process_set, is_early=is_early)
    return list(zip(gradients, variables))


def split(grads_and_vars: Any) -> tuple[list[Any], list[Any]]:
    """The gradients and the variables of pairs."""
    pairs = list(grads_and_vars)
    return [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
