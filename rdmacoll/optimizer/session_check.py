"""The comparison of ranks in sessions of TensorFlow 1.

An op in the graph counts the updates of an optimizer. If one is due, Python reads the variables after that
run of the session, when no op assigns to them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from rdmacoll._base.once import once
from rdmacoll.ops import _updates
from rdmacoll.ops._names import outermost
from rdmacoll.optimizer import compared_values, update_check
from rdmacoll.optimizer.update_check import UpdateCheck

_CHECKS = "_rdmacoll_session_checks"  # an attribute of graphs: their optimizers' checks, which hold the graph
_DUE: list[SessionCheck] = []


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
    with tf.control_dependencies([_updates.count_op(check.name)]):
        yield


class SessionCheck(UpdateCheck):
    """The comparisons of one optimizer in one graph."""

    FIRST_DUE = 2  # after the first step the program may broadcast

    def on_update_due(self) -> None:
        """Notes that a comparison is due. It has to wait until the session's run ends."""
        _DUE.append(self)

    def is_in(self, graph: Any) -> bool:
        """Whether its variables belong to this graph."""
        return self in getattr(graph, _CHECKS, {}).values()

    def entries(self) -> tuple[list[compared_values.Entry], list[compared_values.Entry]]:
        """The entries without rates that are functions: these would add ops to a graph that may be final."""
        weights, states = super().entries()
        return [entry for entry in weights if not callable(entry.source)], states


@once
def _install() -> None:
    """Patches sessions. After every `run`, and every call of what `make_callable` returns, the comparisons
    follow that became due in it."""
    from tensorflow.python.client.session import BaseSession

    plain, plain_callable = BaseSession.run, BaseSession.make_callable

    @functools.wraps(plain)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _compare_after(self, plain(self, *args, **kwargs))

    @functools.wraps(plain_callable)
    def make_callable(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = plain_callable(self, *args, **kwargs)
        return lambda *arguments, **options: _compare_after(self, made(*arguments, **options))

    BaseSession.run, BaseSession.make_callable = run, make_callable


def _compare_after(session: Any, result: Any) -> Any:
    """Returns the result of a run, after the comparisons that are due."""
    if _DUE:
        _compare(session)
    return result


def _compare(session: Any) -> None:
    for check in [one for one in list(_DUE) if one.is_in(session.graph)]:
        _DUE.remove(check)
        with session.graph.as_default():
            check.compare(session)
