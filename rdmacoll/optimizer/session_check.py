"""The comparison of ranks in sessions of TensorFlow 1.

An op in the graph counts the updates of an optimizer. If one is due, Python reads the variables after that
run of the session, when no op assigns to them. Other threads, as those that fill queues, may end runs of the
same session meanwhile. These have no part in it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import tensorflow as tf

from rdmacoll._base.once import once
from rdmacoll.ops import _updates
from rdmacoll.ops._names import outermost
from rdmacoll.optimizer import compared_values, update_check
from rdmacoll.optimizer.update_check import UpdateCheck
from rdmacoll.process_set import ProcessSet

_CHECKS = "_rdmacoll_session_checks"  # an attribute of graphs: their optimizers' checks, which hold the graph
_DUE: list[SessionCheck] = []
_LOCK = threading.Lock()  # for _DUE
# Ops that run functions of the graph, in which an update may be counted.
_CALLS = {"Case", "If", "PartitionedCall", "StatefulPartitionedCall", "StatelessCase", "StatelessIf"}
_CALLS |= {"StatelessWhile", "While"}


@contextlib.contextmanager
def counted(optimizer: Any, variables: Sequence[Any]) -> Iterator[None]:
    """Build an update of `variables` inside of this context. The update is counted whenever it runs."""
    reducer = optimizer._rdmacoll_reduce
    if tf.compat.v1.executing_eagerly_outside_functions():
        yield
        update_check.applied(optimizer, variables)
        return
    if not update_check.is_enabled(reducer.process_set):
        yield
        return
    _install()
    graph = outermost(tf.compat.v1.get_default_graph())
    if not hasattr(graph, _CHECKS):
        setattr(graph, _CHECKS, {})
    checks = getattr(graph, _CHECKS)
    check = checks.get(optimizer)
    if check is None:
        name = reducer.name_for(variables)
        check = checks[optimizer] = SessionCheck(name, reducer.process_set, optimizer)
    check.remember(variables)
    op = _updates.count_op(check.name)
    check.counts.add(op)
    with tf.control_dependencies([op]):
        yield


class SessionCheck(UpdateCheck):
    """The comparisons of one optimizer in one graph."""

    FIRST_DUE = 2  # after the first step the program may broadcast

    def __init__(self, name: str, process_set: ProcessSet, optimizer: Any) -> None:
        """The arguments are those of UpdateCheck."""
        super().__init__(name, process_set, optimizer)
        self.counts: set[Any] = set()  # the ops that count its updates

    def on_update_due(self) -> None:
        """Notes that a comparison is due. It has to wait until the session's run ends."""
        with _LOCK:
            _DUE.append(self)

    def may_be_counted_by(self, graph: Any, fetches: Any) -> bool:
        """Whether a run with these fetches may have counted its updates."""
        if self not in getattr(graph, _CHECKS, {}).values():
            return False
        in_functions = any(op.graph is not graph for op in self.counts)
        return _needs(graph, fetches, lambda op: op in self.counts or (in_functions and op.type in _CALLS))

    def entries(self) -> tuple[list[compared_values.Entry], list[compared_values.Entry]]:
        """The entries without rates that are functions: these would add ops to a graph that may be final."""
        weights, states = super().entries()
        return [entry for entry in weights if not callable(entry.source)], states


def _needs(graph: Any, fetches: Any, is_wanted: Callable[[Any], bool]) -> bool:
    """Whether a run of the graph for these fetches needs a wanted op. True if the fetches are of a class that
    only TensorFlow knows."""
    try:
        found = [graph.as_graph_element(one) for one in tf.nest.flatten(fetches, expand_composites=True)]
    except (TypeError, ValueError, KeyError):
        return True
    rest = [getattr(one, "op", one) for one in found]
    seen = set(rest)
    while rest:
        op = rest.pop()
        if is_wanted(op):
            return True
        before = {*op.control_inputs, *(one.op for one in op.inputs)} - seen
        seen |= before
        rest.extend(before)
    return False


@once
def _install() -> None:
    """Patches sessions. After every `run`, and every call of what `make_callable` returns, the comparisons
    follow that became due in it."""
    from tensorflow.python.client.session import BaseSession

    plain, plain_callable = BaseSession.run, BaseSession.make_callable

    @functools.wraps(plain)
    def run(self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        return _compare_after(self, fetches, plain(self, fetches, *args, **kwargs))

    @functools.wraps(plain_callable)
    def make_callable(self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        made = plain_callable(self, fetches, *args, **kwargs)
        return lambda *arguments, **options: _compare_after(self, fetches, made(*arguments, **options))

    BaseSession.run, BaseSession.make_callable = run, make_callable


def _compare_after(session: Any, fetches: Any, result: Any) -> Any:
    """Returns the result of a run, after the comparisons that became due in it."""
    if _DUE:
        _compare(session, fetches)
    return result


def _compare(session: Any, fetches: Any) -> None:
    with _LOCK:
        found = [one for one in _DUE if one.may_be_counted_by(session.graph, fetches)]
        _DUE[:] = [one for one in _DUE if one not in found]
    for check in found:
        with session.graph.as_default():
            check.compare(session)
