"""Tests each collective of rdmacoll.tensorflow for all operators, dtypes, numbers of dimensions and process
sets, eager and in graphs: results, gradients, and the errors of ranks that disagree."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import tensorflow as tf
from tf_common import close, raised, run_all, value

import rdmacoll
import rdmacoll.tensorflow as hvd

FLOATS = ("float16", "float32", "float64")
REDUCED = ("uint8", "int8", "int32", "int64", *FLOATS)
MOVED = (*REDUCED, "bool", "uint16", "int16", "bfloat16")
OPERATORS = {
    hvd.Average: np.mean,
    hvd.Sum: np.sum,
    hvd.Min: np.min,
    hvd.Max: np.max,
    hvd.Product: np.prod,
}
TAILS = ((), (2,), (2, 1), (1, 2, 2))  # the dimensions after the first one
DEADLINE_S = 0.5  # five times what is promised
SALT: Iterator[int] = count()

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
# Every second rank, from the first and from the second one.
HALVES = [hvd.add_process_set(list(range(half, SIZE, 2))) for half in (0, 1) if SIZE > 1]


def in_each_set(check: Callable[[Any], None]) -> Callable[[], None]:
    """Runs `check` for each process set of this rank, all ranks first."""

    @functools.wraps(check)
    def run() -> None:
        for one in (hvd.global_process_set, *HALVES):
            if one.included():
                check(one)

    return run


@dataclass(frozen=True)
class Case:
    """A collective over some tensors. values: by member of the set. wanted: this member's results."""

    one: Any
    values: list[list[np.ndarray]]
    wanted: list[Any]

    def check(self, label: str, call: Callable[[list[Any]], list[Any]]) -> None:
        """Checks the results of an eager call and of one in a graph."""
        sources = [tf.constant(array) for array in self.values[self.one.rank()]]
        for run in (call, tf.function(call)):
            results = run(sources)
            assert len(results) == len(self.wanted)
            for source, result, wanted in zip(sources, results, self.wanted):
                about = (label, str(self.one), source.dtype.name, source.shape)
                assert result.dtype == source.dtype, about
                assert tuple(result.shape) == wanted.shape, (*about, result.shape)
                try:
                    close(result, wanted, result.dtype.name)
                except AssertionError as error:
                    raise AssertionError(about) from error


def table(one: Any, dtypes: Any, shapes: Callable[[int], Any]) -> list[list[np.ndarray]]:
    """Returns the tensors of each member: for each dtype, one of each shape of its place in the set."""
    salt = next(SALT)
    return [
        [np.asarray(value(rank, shape, dtype, salt=salt)) for dtype in dtypes for shape in shapes(place)]
        for place, rank in enumerate(one.ranks)
    ]


def with_tails(rows: int) -> list[tuple[int, ...]]:
    return [(rows, *tail) for tail in TAILS]


def each(function: Callable[..., Any], *rest: Any, **options: Any) -> Callable[[list[Any]], list[Any]]:
    """Returns a call of `function` for each tensor of a list."""
    return lambda tensors: [function(tensor, *rest, **options) for tensor in tensors]


def together(function: Callable[..., Any], *rest: Any, **options: Any) -> Callable[[list[Any]], list[Any]]:
    """Returns one call of `function` for a list of tensors."""
    return lambda tensors: list(function(tensors, *rest, **options))


def reduced(op: Any, arrays: Any) -> Any:
    """Returns the reduction as Horovod has it: integers wrap, and their average is truncated."""
    dtype = arrays[0].dtype
    if dtype.kind not in "iu":
        return OPERATORS[op](np.stack(arrays).astype(np.float64), axis=0)
    if op == hvd.Average:
        return (np.sum(arrays, axis=0).astype(dtype) / len(arrays)).astype(dtype)
    return OPERATORS[op](np.stack(arrays).astype(np.int64), axis=0).astype(dtype)


def part(one: Any, array: Any) -> Any:
    """Returns the rows of this member. If they do not divide evenly, the first members have one more."""
    return np.array_split(array, one.size())[one.rank()]


@in_each_set
def check_reductions(one: Any) -> None:
    for op in OPERATORS:
        values = table(one, REDUCED, lambda _: [(), *with_tails(3)])
        case = Case(one, values, [reduced(op, arrays) for arrays in zip(*values)])
        case.check(f"allreduce {op}", each(hvd.allreduce, op=op, process_set=one))
        case.check(f"grouped_allreduce {op}", together(hvd.grouped_allreduce, op=op, process_set=one))


@in_each_set
def check_scattered_reductions(one: Any) -> None:
    for op in OPERATORS:
        values = table(one, REDUCED, lambda _: with_tails(2 * one.size() + 1))
        case = Case(one, values, [part(one, reduced(op, arrays)) for arrays in zip(*values)])
        case.check(f"reducescatter {op}", each(hvd.reducescatter, op=op, process_set=one))
        case.check(f"grouped_reducescatter {op}", together(hvd.grouped_reducescatter, op=op, process_set=one))


@in_each_set
def check_scaled_reductions(one: Any) -> None:
    values = table(one, REDUCED, lambda _: [(2 * one.size(), 2)])
    halves = [[(array * 0.5).astype(array.dtype) for array in arrays] for arrays in values]
    totals = [
        (reduced(hvd.Sum, arrays) * 3.0).astype(before.dtype)
        for arrays, before in zip(zip(*halves), values[0])
    ]
    options = {"op": hvd.Sum, "prescale_factor": 0.5, "postscale_factor": 3.0, "process_set": one}
    Case(one, values, totals).check("scaled", together(hvd.grouped_allreduce, **options))
    parts = [part(one, total) for total in totals]
    Case(one, values, parts).check("scaled parts", together(hvd.grouped_reducescatter, **options))


@in_each_set
def check_gathers_of_ragged_rows(one: Any) -> None:
    values = table(one, MOVED, lambda place: with_tails(place * 2 % 3))
    case = Case(one, values, [np.concatenate(arrays) for arrays in zip(*values)])
    case.check("allgather", each(hvd.allgather, process_set=one))
    case.check("grouped_allgather", together(hvd.grouped_allgather, process_set=one))


@in_each_set
def check_broadcasts(one: Any) -> None:
    values = table(one, MOVED, lambda _: [(), *with_tails(3)])
    Case(one, values, values[-1]).check("broadcast", each(hvd.broadcast, one.ranks[-1], process_set=one))


@in_each_set
def check_exchanges(one: Any) -> None:
    members, place = range(one.size()), one.rank()
    splits = [[(sender + receiver) % 3 for receiver in members] for sender in members]
    ends = np.cumsum(splits, axis=1)[:, place]
    values = table(one, MOVED, lambda sender: with_tails(sum(splits[sender])))
    wanted = [
        np.concatenate([arrays[a][ends[a] - splits[a][place] : ends[a]] for a in members])
        for arrays in zip(*values)
    ]
    call = each(hvd.alltoall, splits[place], process_set=one)
    Case(one, values, wanted).check("alltoall", lambda tensors: [rows for rows, _ in call(tensors)])
    _, received = hvd.alltoall(tf.zeros(sum(splits[place])), splits[place], process_set=one)
    assert received.numpy().tolist() == [row[place] for row in splits]


@in_each_set
def check_gradients(one: Any) -> None:
    """Compares with the gradients of each row, for upstream gradients that differ by rank."""
    members, rows = one.size(), 2 * one.size()
    upstream = [float(3 + rank) for rank in one.ranks]
    mean, by_member = np.mean(upstream), np.repeat(upstream, 2)
    root = one.ranks[-1]
    calls: dict[str, tuple[Callable[[Any], Any], Any]] = {
        "average": (lambda x: hvd.allreduce(x, process_set=one), mean),
        "sum": (lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=one), mean * members),
        "max": (lambda x: hvd.allreduce(x, op=hvd.Max, process_set=one), max(upstream)),
        "group": (lambda x: hvd.grouped_allreduce([x, x], process_set=one)[1], mean),
        "gather": (lambda x: hvd.allgather(x, process_set=one), mean),
        "grouped gather": (lambda x: hvd.grouped_allgather([x], process_set=one)[0], mean),
        "broadcast": (lambda x: hvd.broadcast(x, root, process_set=one), mean * (root == RANK)),
        "scatter": (lambda x: hvd.reducescatter(x, op=hvd.Sum, process_set=one), by_member * members),
        "grouped scatter": (lambda x: hvd.grouped_reducescatter([x], process_set=one)[0], by_member),
        "exchange": (lambda x: hvd.alltoall(x, [2] * members, process_set=one)[0], by_member),
    }
    sources = [tf.ones(shape, dtype) for dtype in FLOATS for shape in with_tails(rows)[::3]]

    def gradients(x: list[Any]) -> list[Any]:
        found = []
        for call, _ in calls.values():
            with tf.GradientTape() as tape:
                tape.watch(x)
                results = [call(tensor) for tensor in x]
            weights = [tf.cast(tf.fill(tf.shape(y), upstream[one.rank()]), y.dtype) for y in results]
            found.append(tape.gradient(results, x, weights))
        return found

    for run in (gradients, tf.function(gradients)):
        for (label, (_, by_row)), found in zip(calls.items(), run(sources)):
            for source, gradient in zip(sources, found):
                about = (label, str(one), source.dtype.name, source.shape)
                assert gradient is not None, about
                assert gradient.dtype == source.dtype, about
                flat = np.asarray(gradient, np.float64).reshape(rows, -1)
                assert (flat == np.broadcast_to(by_row, (rows,))[:, None]).all(), (*about, flat)


def calls_of_two_ways(one: Any) -> dict[str, Callable[[str, bool], Any]]:
    """Returns collectives with a name and a flag. Ranks with different flags disagree."""
    first, second = one.ranks[:2]
    total = functools.partial(hvd.allreduce, op=hvd.Sum, process_set=one)
    copy = functools.partial(hvd.broadcast, process_set=one)
    rows = functools.partial(hvd.reducescatter, process_set=one)
    return {
        "shape": lambda name, odd: total(tf.ones(4 if odd else 3), name=name),
        "dimensions": lambda name, odd: total(tf.ones((2, 2) if odd else 4), name=name),
        "dtype": lambda name, odd: total(tf.ones(3, tf.int32 if odd else tf.float32), name=name),
        "operator": lambda name, odd: total(tf.ones(3), op=hvd.Max if odd else hvd.Sum, name=name),
        "root": lambda name, odd: copy(tf.ones(3), second if odd else first, name),
        "columns": lambda name, odd: hvd.allgather(tf.ones((2, 3 if odd else 2)), name, process_set=one),
        "rows": lambda name, odd: rows(tf.ones((6 if odd else 4, 2)), op=hvd.Sum, name=name),
        "kind": lambda name, odd: copy(tf.ones(3), first, name) if odd else total(tf.ones(3), name=name),
    }


def seconds_until_refused(call: Callable[[], Any], one: Any) -> float:
    """Returns how long this rank waits for the error, from when all members are here."""
    hvd.barrier(process_set=one)
    begin = time.monotonic()
    error = raised(tf.errors.FailedPreconditionError, call)
    waited = time.monotonic() - begin
    assert isinstance(rdmacoll.error_from(error), rdmacoll.MismatchError), error
    return waited


@in_each_set
def check_ranks_that_disagree_hear_it_soon(one: Any) -> None:
    """Also by names that were right before, and whose operations follow a plan by now."""
    for label, call in calls_of_two_ways(one).items() if one.size() > 1 else ():
        for is_known, is_graph in ((False, False), (False, True), (True, False), (True, True)):
            name = f"{label} {is_known} {is_graph}"
            right, wrong = (functools.partial(call, name, odd) for odd in (False, one.rank() == 1))
            if is_graph:
                right, wrong = (tf.function(ways).get_concrete_function() for ways in (right, wrong))
            for _ in range(5 if is_known else 0):
                right()
            times = [seconds_until_refused(wrong, one) for _ in range(3)]
            assert min(times) < DEADLINE_S, (name, str(one), times)
    close(hvd.allreduce(tf.ones(2), op=hvd.Sum, process_set=one), [one.size()] * 2)


@in_each_set
def check_wrong_calls_have_horovods_classes(one: Any) -> None:
    x, members = tf.ones(3), one.size()
    wrong: list[tuple[type[BaseException], Callable[[], Any]]] = [
        (tf.errors.InvalidArgumentError, lambda: hvd.alltoall(x, [3] * members + [1], process_set=one)),
        (tf.errors.InvalidArgumentError, lambda: hvd.alltoall(x, [4] * members, process_set=one)),
        (tf.errors.InvalidArgumentError, lambda: hvd.alltoall(x, [-1] * members, process_set=one)),
        (tf.errors.InvalidArgumentError, lambda: hvd.reducescatter(x[0], process_set=one)),
        (tf.errors.InvalidArgumentError, lambda: hvd.broadcast(x, SIZE, process_set=one)),
        (ValueError, lambda: hvd.allreduce(x, average=True, op=hvd.Sum, process_set=one)),
        (ValueError, lambda: hvd.allreduce(x, process_set=hvd.ProcessSet([SIZE]))),
    ]
    wrong += [
        (tf.errors.InvalidArgumentError, functools.partial(hvd.allreduce, x, process_set=other))
        for other in HALVES
        if not other.included()
    ]
    for kind, call in wrong:
        for run in (call, tf.function(call)):
            raised(kind, run)
    close(hvd.allreduce(x, op=hvd.Sum, process_set=one), [members] * 3)


run_all(globals())
hvd.barrier()  # a rank that has left would end what the others still do in their sets
