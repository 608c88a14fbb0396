"""Helpers that programs import from `horovod.tensorflow.util`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable

import tensorflow as tf

from horovod.common.util import _cache

__all__ = ["_cache", "_executing_eagerly", "_make_subgraph", "refs_to_vars", "vars_to_refs"]


def _executing_eagerly() -> bool:
    return bool(tf.executing_eagerly())


def _make_subgraph(function: Callable[..., Any]) -> Any:
    return tf.function(function)


def vars_to_refs(variables: Any) -> Any:
    """References of variables, which can be keys; lists of them become tuples."""
    if isinstance(variables, Iterable) and not hasattr(variables, "ref"):
        return tuple(vars_to_refs(one) for one in variables)
    return variables.ref()


def refs_to_vars(refs: Any) -> Any:
    """The variables of such references."""
    return [refs_to_vars(one) for one in refs] if isinstance(refs, tuple) else refs.deref()
