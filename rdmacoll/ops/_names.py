"""What keeps two collectives apart.

Data ops are not stateful (TensorFlow would chain them, and ranks with another order would hang), so
in a graph each needs a name of its own, the same on all ranks. The counters of TensorFlow's own names
may differ between ranks after one of them has retraced, so these names are made from the outermost
function's name and an index within its trace. A function that is called twice is traced once: its two
copies are told apart by their kernels (cpp/tensorflow/place.h).
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from typing import Any

import tensorflow as tf

from rdmacoll.engine.arguments import name as checked_name
from rdmacoll.ops._process_sets import set_number
from rdmacoll.ops._refusals import note_taken

# What TensorFlow puts around the name of a Python function for its forward and backward halves.
_DECORATED = re.compile(r"^__(?:inference|forward|backward)_(.*)_\d+$")


class _TraceCounters:
    """Counts per outermost graph, forgotten with it."""

    def __init__(self) -> None:
        self._counters: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()

    def next(self, graph: Any, key: str) -> int:
        counter = self._counters.setdefault(graph, Counter())
        counter[key] += 1
        return counter[key] - 1


_COUNTERS = _TraceCounters()


def outermost(graph: Any) -> Any:
    """The graph of the outermost function that is being traced, or the graph itself."""
    while True:
        outer = getattr(graph, "outer_graph", None)
        if outer is None or not getattr(outer, "building_function", False):
            return graph
        graph = outer


def next_in_trace(key: str) -> int:
    """How often this was asked for `key` while the outermost function is being traced; 0 if eager."""
    if tf.executing_eagerly():
        return 0
    return _COUNTERS.next(outermost(tf.compat.v1.get_default_graph()), key)


def op_name(name: str | None) -> str:
    """The `tensor_name` of an op that is built now.

    "" is an unnamed op, counted by the engine when it runs; only eager ops run in an order that is the
    program's.
    """
    if name is not None:
        return note_taken(checked_name(name))
    if tf.executing_eagerly():
        return note_taken("")
    graph = outermost(tf.compat.v1.get_default_graph())
    title = getattr(graph, "name", None) or "graph"
    decorated = _DECORATED.match(title)
    if decorated is not None:
        title = decorated.group(1)
    # One index for all kinds: an allreduce that meets a broadcast is a mismatch, not a stall. One for each
    # set: what a rank does in another one is no business of this one's.
    number = set_number()
    kind = f"set_{number}_collective" if number else "collective"
    return note_taken(f"{title}/{kind}_{_COUNTERS.next(graph, kind)}")
