"""The comparison of ranks at the gradients of a wrapped tape, whose optimizer may be a plain one.

Ranks ask such a tape for the same gradients in the same order. At each of these moments the variables have
the values of the updates before. The slots of the optimizer are not known here.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from rdmacoll.ops import _updates
from rdmacoll.optimizer import compared_values, update_check
from rdmacoll.optimizer.comparison import Comparison
from rdmacoll.optimizer.model_names import Numbers
from rdmacoll.optimizer.update_check import ENDS, HOLDS, UpdateCheck

if TYPE_CHECKING:
    from rdmacoll.optimizer.reduce import GradientReducer

_NUMBERS: dict[str, Numbers] = {}  # by name: the lists of variables of tapes with this name
_CHECKS: dict[tuple[str, int], TapeCheck] = {}


def check_gradient(reducer: GradientReducer, sources: Sequence[Any]) -> None:
    """Call it when a wrapped tape is asked for gradients, or when this is traced, before an update. Raises
    MismatchError if a comparison is due and ranks differ."""
    if not update_check.is_enabled(reducer.process_set) or update_check.is_traced_elsewhere():
        return
    variables = [one for one in sources if hasattr(one, "assign")]
    if not variables:
        return
    name = reducer.name_for(sources)
    number = _NUMBERS.setdefault(name, Numbers()).number(variables)
    check = _CHECKS.get((name, number))
    if check is None:
        check = _CHECKS[name, number] = TapeCheck(name, reducer.process_set, None)
    check.check_gradient(variables)


class TapeCheck(UpdateCheck):
    """The comparisons of one tape's variables."""

    _sources: Sequence[weakref.ref[Any]] = ()  # weak, since a check lives longer than a model
    _first = 0  # the fingerprint at the first gradients

    def check_gradient(self, variables: Sequence[Any]) -> None:
        """Counts a request for gradients of these variables."""
        self._sources = [weakref.ref(one) for one in variables]
        # Eager updates need no order among ops.
        entries = [] if tf.executing_eagerly() else compared_values.variable_entries(variables)
        _updates.count_update(self.name, [entry.source for entry in entries])

    def weights(self) -> list[Any]:
        """The variables of the last call."""
        return [one for one in (reference() for reference in self._sources) if one is not None]

    def compare(self, session: Any = None) -> None:
        """Compares the ranks. At the first gradients it only notes the fingerprint, since no update has
        been applied yet."""
        if self.updates() > 1:
            super().compare(session)
            return
        comparison = Comparison(self.name, self.process_set)
        comparison.read(self.entries, session, set())
        self._first = comparison.fingerprint()
        _updates.set_due(self.name, 2)

    def own_numbers(self, comparison: Comparison, session: Any) -> list[int]:
        """The numbers of this rank. Without an update so far, the program may still broadcast. A wrapped
        optimizer with the same variables compares them itself."""
        own_numbers = super().own_numbers(comparison, session)
        own_numbers[HOLDS] = int(comparison.fingerprint() == self._first)
        own_numbers[ENDS] = int(update_check.compares(self.weights()))
        return own_numbers

    def moment(self, count: int) -> str:
        """The moment in a message: before an update."""
        return f"at the gradients number {count} of {self.name}"
