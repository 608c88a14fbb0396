"""The meaning of gradients: ours, or that of Horovod 0.28.1."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

_ATTRIBUTE = "horovod_gradient"
_IS_HOROVODS: ContextVar[bool] = ContextVar("rdmacoll gradients are Horovod's", default=False)


@contextlib.contextmanager
def horovod_gradients(*, are_used: bool = True) -> Iterator[None]:
    """Builds ops inside of the context with Horovod's gradients, or with ours."""
    token = _IS_HOROVODS.set(are_used)
    try:
        yield
    finally:
        _IS_HOROVODS.reset(token)


def gradient_attribute() -> dict[str, bool]:
    """The attribute of an op that is built now, which its gradient function reads."""
    return {_ATTRIBUTE: True} if _IS_HOROVODS.get() else {}


def has_horovod_gradient(op: Any) -> bool:
    """Whether the gradient of this op is Horovod's."""
    return bool(op.get_attr(_ATTRIBUTE))
