"""Records the wrapped optimizers, and the reductions of variables' gradients.

Records are kept beside the objects, by identity, and vanish with them.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from rdmacoll.optimizer.reduce import GradientReducer
    from rdmacoll.process_set import ProcessSet

_V = TypeVar("_V")


class _ByObject(Generic[_V]):
    """A value for each object, by identity. Some objects have no hash (variables), or an expensive one."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], _V]] = {}
        self._lock = threading.Lock()

    def __setitem__(self, key: Any, value: _V) -> None:
        number = id(key)
        with self._lock:
            self._entries[number] = (weakref.ref(key, lambda _: self._entries.pop(number, None)), value)

    def get(self, key: Any) -> _V | None:
        entry = self._entries.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else None

    def living(self) -> list[Any]:
        with self._lock:
            references = [reference for reference, _ in self._entries.values()]
        return [key for key in (reference() for reference in references) if key is not None]


@dataclass
class Reduction:
    """The last reduction of a variable's gradient. number: its place among all reductions of this process.
    process_set: the ranks of the reduction. is_kept: the gradient stayed this rank's own. reducers: those of
    all its optimizers so far, since models may share a variable."""

    is_of_tape: bool
    number: int
    process_set: ProcessSet
    is_kept: bool = False
    reducers: weakref.WeakSet[GradientReducer] = field(default_factory=weakref.WeakSet)


# name, and whether it belongs to this optimizer alone
_WRAPPED: _ByObject[tuple[str, bool]] = _ByObject()
_REDUCTIONS: _ByObject[Reduction] = _ByObject()
_REDUCTION_NUMBERS = itertools.count(1)
_OWN: _ByObject[bool] = _ByObject()  # variables whose gradients the program reduces by calls of its own


def note_wrapped(optimizer: Any, name: str, *, is_own: bool) -> None:
    """Records a wrapped optimizer. name: the same on all ranks, which wrap their optimizers in the same
    order. is_own: no other optimizer has this name."""
    _WRAPPED[optimizer] = name, is_own


def wrapped_optimizers() -> list[tuple[str, Any]]:
    """All wrapped optimizers that still exist, in the order of their wrapping, with their names. Several may
    have one name."""
    return [(str(name_of_wrapped(optimizer)), optimizer) for optimizer in _WRAPPED.living()]


def name_of_wrapped(optimizer: Any) -> str | None:
    """The name by which ranks know this optimizer; None for a plain one."""
    return (_WRAPPED.get(optimizer) or (None, False))[0]


def has_own_name(optimizer: Any) -> bool:
    """Whether this is a wrapped optimizer whose name no other one has."""
    return (_WRAPPED.get(optimizer) or (None, False))[1]


def note_reduction(reducer: GradientReducer, variables: Iterable[Any], *, are_kept: bool = False) -> None:
    """Records a reduction. Call it whenever gradients of `variables` are reduced, or the ranks compare
    reduced ones, or a graph for that is built. are_kept: the gradients stay this rank's own."""
    number = next(_REDUCTION_NUMBERS)
    for variable in variables:
        if hasattr(variable, "assign"):
            plain = plain_variable(variable)
            found = _REDUCTIONS.get(plain)
            if found is None:
                found = _REDUCTIONS[plain] = Reduction(reducer.is_of_tape, number, reducer.process_set)
            found.process_set = reducer.process_set
            found.is_of_tape, found.number, found.is_kept = reducer.is_of_tape, number, are_kept
            if not reducer.is_of_tape:
                found.reducers.add(reducer)


def reduction_of(variable: Any) -> Reduction | None:
    """The last reduction of this variable's gradient."""
    return _REDUCTIONS.get(plain_variable(variable))


def has_reductions() -> bool:
    """Whether a wrapped optimizer or tape has reduced a gradient of a variable that still exists."""
    return bool(_REDUCTIONS.living())


def note_own_reduction(variables: Iterable[Any]) -> None:
    """Records that the program reduces the gradients of these variables by calls of its own."""
    for variable in variables:
        _OWN[plain_variable(variable)] = True


def has_own_reduction(variable: Any) -> bool:
    """Whether `note_own_reduction` was called for this variable."""
    return _OWN.get(plain_variable(variable)) is not None


def is_kept_by_tape(variable: Any) -> bool:
    """Whether a tape was the last to handle this variable's gradient, which it left as it was."""
    last = reduction_of(variable) if hasattr(variable, "assign") else None
    return last is not None and last.is_of_tape and last.is_kept


def reductions() -> int:
    """A number that all later reductions exceed."""
    return next(_REDUCTION_NUMBERS)


def plain_variable(variable: Any) -> Any:
    """TensorFlow's variable inside of a variable of Keras 3, or of a variable that mixed precision casts."""
    while True:
        inner = getattr(variable, "_variable", None)  # Keras 2's AutoCastVariable
        if inner is None:
            inner = getattr(variable, "_value", None)  # Keras 3
        if inner is None or inner is variable or not hasattr(inner, "assign"):
            return variable
        variable = inner
