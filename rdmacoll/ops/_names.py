"""Names that keep two collectives apart.

Data ops are not stateful: TensorFlow would chain them, and ranks with another order would hang. So in a graph
each op needs a name of its own, the same on all ranks. The counters of TensorFlow's own names differ between
ranks that differ elsewhere in their graphs. So these names are made from the outermost function's name, or
from a graph of TensorFlow 1, and an index within its trace. A function that is called twice is traced once:
its two copies are told apart by their kernels (cpp/tensorflow/call_path.h).
"""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import Any

import tensorflow as tf

from rdmacoll._abi.arguments import name as checked_name
from rdmacoll.ops._name_claims import NameClaims, refuse, threads_text
from rdmacoll.ops._process_sets import set_number
from rdmacoll.ops._trace_counters import TraceCounters, title_of

_COUNTERS = TraceCounters()
_CLAIMS = NameClaims()
# Sessions may run several graphs of TensorFlow 1 at once, so each has a number among those with ops of the
# same process set. Other sets of a rank do not matter to it.
_GRAPHS: weakref.WeakKeyDictionary[Any, dict[int, int]] = weakref.WeakKeyDictionary()
_GRAPH_NUMBERS: dict[int, itertools.count[int]] = {}


class _UsedNames(threading.local):
    """The number of names that this thread has given to ops, and the last name."""

    def __init__(self) -> None:
        self.count = 0
        self.last = ""


_USED = _UsedNames()


def note_name_use(name: str) -> str:
    """Notes that an op is about to be built, or to run, under this name. Returns the name."""
    _USED.count += 1
    _USED.last = name
    return name


def names_used() -> int:
    """The number of names that this thread has given to ops."""
    return _USED.count


def last_name() -> str:
    """The last name that this thread has given to an op."""
    return _USED.last


def graphs_around(graph: Any) -> list[Any]:
    """A graph, the graphs around it, and at last the outermost function that is being traced, or the graph
    of TensorFlow 1 around it. Branches and bodies of loops are such graphs."""
    found = [graph]
    while getattr(graph, "building_function", False):
        graph = getattr(graph, "outer_graph", None)
        if graph is None:
            break
        # In eager mode TensorFlow has a graph around a function, in which nothing runs.
        if not graph.building_function and tf.compat.v1.executing_eagerly_outside_functions():
            break
        found.append(graph)
    return found


def outermost(graph: Any) -> Any:
    """The last one of `graphs_around`."""
    return graphs_around(graph)[-1]


def replica_count() -> int:
    """The number of replicas of a `tf.distribute` strategy that build the current op."""
    context = tf.distribute.get_replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


def replica_number() -> int:
    """The number of the replica that builds the current op, from 0."""
    if replica_count() == 1:
        return 0
    found = tf.distribute.get_replica_context().replica_id_in_sync_group
    return int(tf.get_static_value(found) if tf.is_tensor(found) else found)


def in_replica(name: str) -> str:
    """A name that the replicas of this process do not share, since they have no order."""
    return name if replica_count() == 1 else f"{name}/replica_{replica_number()}"


def _title(graph: Any) -> str:
    """A title that is the same on all ranks. Each function, and each graph that runs by itself, has
    another one."""
    if not getattr(graph, "building_function", False):
        other = _CLAIMS.claim("a graph of TensorFlow 1", [graph])
        if other is not None:
            refuse(
                f"{threads_text(other)} build collectives in graphs of TensorFlow 1, and a rank could "
                "confuse the two graphs. Build both graphs in one thread; sessions may then run them in "
                "several."
            )
        of_set, numbers = set_number(), _GRAPHS.setdefault(graph, {})
        if of_set not in numbers:
            numbers[of_set] = next(_GRAPH_NUMBERS.setdefault(of_set, itertools.count()))
        return f"graph_{numbers[of_set]}" if numbers[of_set] else "graph"
    return title_of(getattr(graph, "name", None) or "graph")


def name_in_trace(name: str) -> str:
    """`name` with the number of its earlier uses in the trace of the outermost function: "name/step_0"."""
    if tf.executing_eagerly():
        return f"{name}/step_0"
    graphs = graphs_around(tf.compat.v1.get_default_graph())
    graph, step = graphs[-1], f"{name}/step_{_COUNTERS.next(graphs, name)}"
    return step if graph.building_function else f"{_title(graph)}/{step}"


def op_name(name: str | None) -> str:
    """The `tensor_name` of an op that is built now.

    It is "" for an unnamed eager op, which the engine counts when it runs. Only eager ops run in the order of
    the program. Raises ConfigError if two threads build functions of one name, or graphs of TensorFlow 1.
    """
    if name is not None:
        return note_name_use(in_replica(checked_name(name)))
    if tf.executing_eagerly():
        return note_name_use("")
    graphs = graphs_around(tf.compat.v1.get_default_graph())
    graph = graphs[-1]
    title = _title(graph)
    if graph.building_function:
        other = _CLAIMS.claim(f"function {title}", [graph])
        if other is not None:
            refuse(
                f"{threads_text(other)} build collectives in functions named {title!r}, and a rank could "
                "confuse the two functions. Give the functions different names, or each collective a name "
                "of its own (name=...)."
            )
    # All kinds share one index, so that an allreduce that meets a broadcast is a mismatch, not a stall. Each
    # set has an index of its own, since other sets of a rank do not matter to it.
    number = set_number()
    kind = f"set_{number}_collective" if number else "collective"
    return note_name_use(f"{title}/{kind}_{_COUNTERS.next(graphs, kind)}")
