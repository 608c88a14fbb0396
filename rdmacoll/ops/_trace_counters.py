"""Counters of names in the trace of an outermost function.

A function that makes variables in its first call is traced twice: TensorFlow drops the first trace. If it is
called by another function, both traces belong to one outermost function. A rank on which the variables exist
traces it once, as a rank that has been in an elastic job for longer. So a dropped trace does not count.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# TensorFlow puts this around the name of a Python function for its forward and backward halves.
_DECORATED = re.compile(r"^__(?:inference|forward|backward)_(.*)_\d+$")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def title_of(name: str) -> str:
    """The name of a Python function, from that of its trace."""
    decorated = _DECORATED.match(name)
    return decorated.group(1) if decorated is not None else name


@dataclass
class _Trace:
    """The latest trace of an inner function. calls: of functions of its name around it, when it began.
    counts: those of the outermost function then."""

    calls: int
    counts: Counter[str]


@dataclass
class _Outer:
    """A function, or a graph of TensorFlow 1. traces: those of functions that it calls, by their names."""

    counts: Counter[str] = field(default_factory=Counter)
    traces: dict[str, _Trace] = field(default_factory=dict)


class TraceCounters:
    """Counts per outermost graph, forgotten with it."""

    def __init__(self) -> None:
        self._outers: weakref.WeakKeyDictionary[Any, _Outer] = weakref.WeakKeyDictionary()
        self._inner: weakref.WeakSet[Any] = weakref.WeakSet()

    def next(self, graphs: Sequence[Any], key: str) -> int:
        """The number of earlier uses of `key`. graphs: the current one, those around it, and at last the
        outermost one."""
        top = self._of(graphs[-1])
        for inner, outer in reversed(list(zip(graphs, graphs[1:]))):
            if inner not in self._inner:
                self._inner.add(inner)
                self._begin(inner, outer, top)
        top.counts[key] += 1
        return top.counts[key] - 1

    def _of(self, graph: Any) -> _Outer:
        return self._outers.setdefault(graph, _Outer())

    def _begin(self, inner: Any, outer: Any, top: _Outer) -> None:
        """Goes back to the counts before the last trace of this function, if `outer` does not call that."""
        title = title_of(str(inner.name))
        traces, calls = self._of(outer).traces, _calls_of(title, outer)
        last = traces.get(title)
        if last is not None and last.calls == calls:
            top.counts = Counter(last.counts)
        else:
            traces[title] = _Trace(calls, Counter(top.counts))


def _calls_of(title: str, graph: Any) -> int:
    """The number of calls in a graph of functions of this name."""
    calls = (one for one in graph.get_operations() if one.type in _CALLS)
    return sum(title_of(str(one.get_attr("f").name)) == title for one in calls)
