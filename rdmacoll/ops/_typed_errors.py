"""Errors of TensorFlow's calls as rdmacoll's classes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from rdmacoll.errors import RdmacollError, error_from

# Without this, AutoGraph replaces exceptions by one of its own, unless their class is one of Python's.
RdmacollError.ag_pass_through = True  # type: ignore[attr-defined]

# Classes that are both of ours and of TensorFlow's.
_CLASSES_OF_BOTH: dict[tuple[type[RdmacollError], Any], type[RdmacollError]] = {}
# The fields of TensorFlow's errors.
_STATUS: dict[str, Any] = {
    "_node_def": None,
    "_op": None,
    "_experimental_payloads": {},
    "_message": "",
    "_error_code": 0,
}


def _class_of_both(plain: type[RdmacollError], status: Any) -> type[RdmacollError]:
    found = _CLASSES_OF_BOTH.get((plain, status))
    if found is None:
        members = {"__module__": plain.__module__, "__doc__": plain.__doc__, "__reduce__": _reduce}
        found = _CLASSES_OF_BOTH[plain, status] = type(plain.__name__, (plain, status), members)
    return found


def _reduce(error: RdmacollError) -> Any:
    """Pickles the error as the plain one."""
    return error.plain().__reduce__()


def of_both(typed: RdmacollError, status: tf.errors.OpError) -> RdmacollError:
    """The error `typed` as one that is also of TensorFlow's class of `status`."""
    both = _class_of_both(type(typed), type(status))
    error = both.__new__(both, *typed.args)
    vars(error).update({**_STATUS, **vars(typed), "_message": str(typed), "_error_code": status.error_code})
    error.of_own_class = typed
    return error


@contextlib.contextmanager
def typed_errors() -> Iterator[None]:
    """Eager calls raise our class, which is also TensorFlow's class for that status. In a graph only the
    status is possible."""
    try:
        yield
    except tf.errors.OpError as error:
        typed = error_from(error)
        if typed is None or isinstance(error, RdmacollError):  # it has both classes already
            raise
        typed = of_both(typed, error)
        try:
            raise typed from None
        finally:
            del typed  # otherwise the error and this frame would keep each other alive
