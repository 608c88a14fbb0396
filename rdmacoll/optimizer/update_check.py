"""The comparison of ranks at the updates of a wrapped optimizer (RDMACOLL_CHECK_WEIGHTS).

All ranks of the process set reduce gradients for each update, so they count the same updates, whatever their
batches, epochs and accumulations are. The table of the last comparison, which all ranks have, determines the
next update to compare. So no rank waits in a comparison that another one leaves out. After join() the counts
of the ranks differ, so all ranks restart them.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll._abi.arguments import Array
from rdmacoll._base.log import Log
from rdmacoll._world import places, world
from rdmacoll.engine import joining
from rdmacoll.errors import ConfigError, MismatchError
from rdmacoll.ops import _baselines, _updates
from rdmacoll.optimizer import compared_values, fit_state
from rdmacoll.optimizer.comparison import Comparison, Difference
from rdmacoll.optimizer.registry import plain_variable
from rdmacoll.process_set import ProcessSet, number_of

MODE, TOLERANCE = "RDMACOLL_CHECK_WEIGHTS", "RDMACOLL_CHECK_WEIGHTS_TOLERANCE"
# The numbers that each rank adds to its fingerprints: whether it is in `fit`; whether it has variables that
# are not broadcast yet; whether it has warned; updates until its epoch ends (0: unknown); updates so far;
# whether it needs no more comparisons; whether the ranks' weights have been equal, or should have been.
_FITS, HOLDS, _WARNED, _REMAINING, _UPDATES, ENDS, _WERE_EQUAL = range(7)
_CURE = (
    "Give all ranks the same values before the first batch (BroadcastGlobalVariablesCallback, "
    "broadcast_variables), let callbacks decide by the same numbers (MetricAverageCallback before them), or "
    "allow it with {tolerance}={value:.3g} or {mode}=off."
)
_CURE_AFTER_JOIN = (
    "A rank that has joined misses the last updates: behind join(), call broadcast_variables(model.variables "
    "+ model.optimizer.variables, root_rank=R), where R is the rank that join() has returned, or give the "
    "next fit BroadcastGlobalVariablesCallback(R). Or allow it with {tolerance}={value:.3g} or {mode}=off."
)

_CHECKS: weakref.WeakKeyDictionary[Any, UpdateCheck] = weakref.WeakKeyDictionary()  # by optimizer
_ALL: weakref.WeakSet[UpdateCheck] = weakref.WeakSet()
_MADE: dict[str, int] = {}  # the number of checks with this name


def applied(optimizer: Any, variables: Sequence[Any]) -> None:
    """Call it when a wrapped optimizer has applied an update of `variables`, or when this is traced.
    Raises MismatchError if a comparison is due and ranks differ."""
    if not _needs_no_check(optimizer) and not is_traced_elsewhere():
        _made(optimizer, variables).applied(variables)


def applied_in_a_graph(optimizer: Any, weights: Sequence[Any], passes: int, session: Any) -> None:
    """Like `applied`, after a batch of `fit` in a graph of TensorFlow 1, where `passes` batches make an
    update. Python reads variables between two runs of the session."""
    if _needs_no_check(optimizer):
        return
    check = _made(optimizer, weights)
    check.batches += 1
    if check.batches % passes == 0:
        check.applied_in_a_graph(weights, session)


def _needs_no_check(optimizer: Any) -> bool:
    return not is_enabled(optimizer._rdmacoll_reduce.process_set)


def is_enabled(process_set: ProcessSet) -> bool:
    """Whether the ranks of this set are to be compared."""
    return places.may_have_peers(process_set) and bool(process_set.included()) and mode() != "off"


def _made(optimizer: Any, variables: Sequence[Any]) -> UpdateCheck:
    check = _CHECKS.get(optimizer)
    if check is None:
        reducer = optimizer._rdmacoll_reduce  # it has other names in other threads
        check = _CHECKS[optimizer] = UpdateCheck(reducer.name_for(variables), reducer.process_set, optimizer)
    return check


def check_of(optimizer: Any) -> UpdateCheck | None:
    """The check of an optimizer. None before its first update, and if nothing is compared."""
    return _CHECKS.get(optimizer)


def compares(variables: Sequence[Any]) -> bool:
    """Whether the comparisons of one optimizer include all these variables."""
    identities = {id(plain_variable(one)) for one in variables}
    return any(identities <= check.identities() for check in list(_CHECKS.values()))


def is_traced_elsewhere() -> bool:
    """Whether the comparison happens elsewhere. In a graph of TensorFlow 1 Python cannot read the
    variables here. In a strategy only the first replica compares."""
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return True
    replica = tf.distribute.get_replica_context()
    number = 0 if replica is None else replica.replica_id_in_sync_group
    if replica is None or replica.num_replicas_in_sync == 1:
        return False
    return (tf.get_static_value(number) if tf.is_tensor(number) else number) != 0


def mode() -> str:
    """The setting: first, epoch, off or a number."""
    return world.current().values.text(MODE)


def tolerance() -> float:
    """The allowed difference of values, relative to the largest one."""
    return world.current().values.number(TOLERANCE)


class UpdateCheck:
    """The comparisons of one optimizer."""

    FIRST_DUE = 1  # the update after which the ranks meet first

    def __init__(self, name: str, process_set: ProcessSet, optimizer: Any) -> None:
        """name: the same on all ranks. A second optimizer with the same name gets a number."""
        number = _MADE[name] = _MADE.get(name, 0) + 1
        self.name = name if number == 1 else f"{name} ({number})"
        self.process_set = process_set  # whose ranks are compared
        self._optimizer = (lambda: None) if optimizer is None else weakref.ref(optimizer)
        self._weights: dict[int, Any] = {}  # by identity, in the order of their first update
        self._left_out: set[int] = set()  # positions of states that ranks have changed
        self._has_warned = False
        self._has_noted = False
        self._were_equal = False  # whether a comparison found the ranks equal
        self.has_joined = False  # whether the count has restarted with a join
        self.batches = 0  # in a graph of TensorFlow 1
        self.restart()
        _ALL.add(self)
        _updates.register_comparison(self.name, self.on_update_due)

    def is_of(self, number: int) -> bool:
        """Whether it compares the ranks of this process set."""
        try:
            return number_of(world.current(), self.process_set) == number
        except ConfigError:  # the set was removed
            return False

    def restart(self, has_joined: bool = False) -> None:
        """Restarts the count: the next update is number 1."""
        self.has_joined = has_joined
        self._left_out.clear()
        self._has_warned = self._were_equal = False
        _updates.start_counting(self.name, due=self.FIRST_DUE)

    def applied(self, variables: Sequence[Any]) -> None:
        """Counts an update that is applied or traced here."""
        self.remember(variables)
        # Eager updates need no order among ops.
        entries = [] if tf.executing_eagerly() else self.entries()[0]
        _updates.count_update(self.name, [entry.source for entry in entries])

    def applied_in_a_graph(self, variables: Sequence[Any], session: Any) -> None:
        """Counts an update that the session has just run."""
        self.remember(variables)
        if _updates.count_and_check_due(self.name):
            self.compare(session)

    def updates(self) -> int:
        """The number of updates so far."""
        return _updates.updates(self.name)

    def remember(self, variables: Sequence[Any]) -> None:
        """Adds variables to those of the optimizer."""
        for variable in variables:
            self._weights.setdefault(id(variable), variable)

    def weights(self) -> list[Any]:
        """All variables of the updates so far."""
        return list(self._weights.values())

    def identities(self) -> set[int]:
        """The identities of their plain variables."""
        return {id(plain_variable(one)) for one in self.weights()}

    def entries(self) -> tuple[list[compared_values.Entry], list[compared_values.Entry]]:
        """The weights with all variables of their optimizer, and the states."""
        fit = fit_state.of(self._optimizer())
        states = [] if fit is None else compared_values.variable_entries(fit.states())
        return compared_values.entries_of(self.weights(), self._optimizer()), states

    def on_update_due(self) -> None:
        """Compares the ranks, since an update is due."""
        self.compare()

    def compare(self, session: Any = None) -> None:
        """Compares the ranks after the update that was due. session: that of a graph of TensorFlow 1."""
        comparison = Comparison(f"check of {self.name}", self.process_set)
        comparison.read(self.entries, session, self._left_out)
        table = comparison.exchange(self.own_numbers(comparison, session))
        # Sessions of TensorFlow 1 may run several updates at once, and not equally many on all ranks.
        count = int(table[:, _UPDATES].max())
        action = _action(count, table)
        is_judged = action != "nothing"
        due = next_due(mode(), count, is_judged, int(table[0, _REMAINING]))
        _updates.set_due(self.name, _updates.NEVER if table[:, ENDS].any() else due)
        self._were_equal |= comparison.is_equal()
        if not is_judged or comparison.is_equal():
            return
        found = comparison.difference(tolerance(), self._left_out)
        self._were_equal |= found is None or not found.is_beyond
        if found is not None:
            self._report(found, count, is_error=action == "error", is_first=comparison.live[0])

    def own_numbers(self, comparison: Comparison, session: Any) -> list[int]:
        """The numbers that this rank adds to its fingerprints."""
        count = self.updates()
        sent = [
            _baselines.has_baseline(one.source) for one in compared_values.variable_entries(self.weights())
        ]
        fit = fit_state.of(self._optimizer())
        # In `fit` no broadcast comes after the first epoch.
        were_equal = self._were_equal or all(sent) or (fit is None and fit_state.is_past_first_epoch())
        own_numbers = [0, 0, int(self._has_warned), 0, count, 0, int(were_equal)]
        if fit is not None:
            own_numbers[_FITS] = 1
            # In a graph of TensorFlow 1 the callbacks of the batch have been called.
            callbacks_were_called = session is None
            own_numbers[HOLDS] = int(
                callbacks_were_called and fit.waits_for_a_broadcast(self.weights(), count)
            )
            own_numbers[_REMAINING] = fit.remaining(self.name, count)
        return own_numbers

    def moment(self, count: int) -> str:
        """The moment of the difference, for messages."""
        return f"after update {count} of {self.name}"

    def _report(self, found: Difference, count: int, *, is_error: bool, is_first: int) -> None:
        since = " since join()" if self.has_joined else ""
        text = f"{self.moment(count)}{since}, {found.sentence()}"
        is_reporter = self.process_set.rank() == is_first
        if not found.is_beyond:
            if is_reporter and not self._has_noted:
                log().notice(f"{text}: {tolerated_text(found)}")
            self._has_noted = True
            return
        if is_error:
            raise MismatchError(exceeded_text(text, found, self.has_joined))
        self._has_warned = True
        if is_reporter:
            log().warning(exceeded_text(text, found, self.has_joined))


def log() -> Log:
    """The log of this rank, as RDMACOLL_LOG says."""
    return Log(world.current().values.text("RDMACOLL_LOG"), world.rank())


def tolerated_text(found: Difference) -> str:
    """The end of a note."""
    return f"{TOLERANCE}={tolerance():g} allows it. This message appears once."


def exceeded_text(text: str, found: Difference, has_joined: bool = False) -> str:
    """The sentence of an error. has_joined: whether the ranks differ since a join."""
    cure = (_CURE_AFTER_JOIN if has_joined else _CURE).format(
        tolerance=TOLERANCE, value=_allowing(found.relative), mode=MODE
    )
    return f"ranks {found.reference} and {found.rank} train apart: {text}. {cure}"


def _allowing(relative: float) -> float:
    """A tolerance that allows this difference."""
    return min(relative * 1.1, 1e9)


def _action(count: int, table: Array) -> str:
    """The action if values differ, the same on all ranks: "error", "warning" or "nothing"."""
    if table[:, [HOLDS, ENDS]].any() or (table[:, _UPDATES] != count).any():
        return "nothing"
    if table[:, _FITS].all():
        return "error"
    # In a loop the program may broadcast after its first step.
    if count == 1:
        return "nothing"
    if table[:, _WERE_EQUAL].all():
        return "error"
    if table[:, _WARNED].any():
        return "nothing"
    return "error" if mode().isdigit() else "warning"


def next_due(setting: str, count: int, is_judged: bool, remaining: int) -> int:
    """The number of the next update to compare after. It doubles as long as the end of the root's epoch is
    unknown, and until a comparison counts.

    >>> next_due("epoch", 1, True, 9), next_due("epoch", 1, True, 0), next_due("epoch", 1, False, 9)
    (10, 2, 2)
    >>> next_due("5", 1, True, 0), next_due("5", 10, True, 0), next_due("first", 1, False, 0)
    (5, 15, 2)
    """
    following = _updates.NEVER if is_judged else 2 * count
    if setting.isdigit():
        every = int(setting)
        return min(following, (count // every + 1) * every)
    if setting == "first":
        return following
    return min(following, count + remaining if remaining > 0 else 2 * count)


def _restart_all(number: int | None = None) -> None:
    """Restarts the checks of process set `number` after a join, or all checks when a world begins."""
    for check in list(_ALL):
        if number is None or check.is_of(number):
            check.restart(has_joined=number is not None)


joining.after_join(_restart_all)
world.on_change(lambda address: _restart_all() if address else None)
