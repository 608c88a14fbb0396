"""Tests process sets in TensorFlow on three ranks: eager, in functions, with gradients and wrappers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from ranks import report

import rdmacoll

Arrays = list[np.ndarray]


def total(one: Any) -> float:
    return float(sum(rank + 1 for rank in one.ranks))


def eager(mine: list[rdmacoll.ProcessSet], value: float) -> None:
    x = tf.fill([4], value)
    for one in mine:
        assert rdmacoll.allreduce(x, op=rdmacoll.Sum, process_set=one).numpy()[0] == total(one)
        gathered = rdmacoll.allgather(x[:1], process_set=one)
        assert gathered.numpy().tolist() == [rank + 1.0 for rank in one.ranks]
        assert rdmacoll.broadcast(x, one.ranks[-1], process_set=one).numpy()[0] == one.ranks[-1] + 1
        pair = rdmacoll.grouped_broadcast([x, -x], one.ranks[-1], process_set=one)
        assert [float(each[0]) for each in pair] == [one.ranks[-1] + 1, -one.ranks[-1] - 1]
        part = rdmacoll.reducescatter(x, op=rdmacoll.Sum, process_set=one)
        assert part.numpy().tolist() == [total(one)] * 2


def in_a_function(mine: list[rdmacoll.ProcessSet], value: float) -> None:
    # Each rank has another number of collectives, in another order. One name is used in two sets.
    @tf.function
    def step(x):
        sums = [rdmacoll.allreduce(x, op=rdmacoll.Sum)]
        sums += [rdmacoll.allreduce(x * 2, op=rdmacoll.Sum, process_set=one) for one in mine]
        return sums + [rdmacoll.allreduce(x, name="same", process_set=one) for one in reversed(mine)]

    wanted = [6.0, *(2 * total(one) for one in mine), *(total(one) / 2 for one in reversed(mine))]
    for _ in range(10):
        got = [float(each[0]) for each in step(tf.fill([1000], value))]
        assert got == wanted, (got, wanted)


@dataclass(frozen=True)
class Case:
    """A linear collective. `call` builds it for a set. `right` computes each member's results from all
    tensors.

    Numbers are small and whole, so all results are exact."""

    shapes: Callable[[int], list[tuple[int, ...]]]  # by member: the shapes of its tensors
    call: Callable[[list[Any], rdmacoll.ProcessSet], list[Any]]
    right: Callable[[list[Arrays]], list[Arrays]]

    def sources(self, place: int, rank: int) -> Arrays:
        shapes = self.shapes(place)
        return [
            np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape) + 8 * (rank + 1) + 4 * i
            for i, shape in enumerate(shapes)
        ]

    def gradients(self, sources: list[Arrays], weights: list[Arrays], place: int) -> Arrays:
        """Returns the gradient of the sum of all members' weighted results, by changing one element at a
        time."""
        found = [np.zeros_like(array) for array in sources[place]]
        for i, array in enumerate(found):
            for at in np.ndindex(array.shape):
                ones = [[np.zeros_like(each) for each in arrays] for arrays in sources]
                ones[place][i][at] = 1
                array[at] = sum(
                    float(np.sum(result * weight))
                    for results, its in zip(self.right(ones), weights)
                    for result, weight in zip(results, its)
                )
        return found


def splits_of(place: int, size: int) -> list[int]:
    """Returns how many rows a member gives to each member: 0 to 2."""
    return [(place + 2 * peer) % 3 for peer in range(size)]


def joined(sources: list[Arrays]) -> Arrays:
    return [np.concatenate(arrays) for arrays in zip(*sources)]


def sums(sources: list[Arrays]) -> Arrays:
    return [np.sum(arrays, axis=0) for arrays in zip(*sources)]


def cases_of(size: int) -> dict[str, Case]:
    """Returns all kinds for a set. The root is the last member.

    If the set lacks an earlier rank, the root has different numbers in the set and in the world."""
    last, rows = size - 1, list(range(size, 0, -1))

    def exchanged(sources: list[Arrays]) -> list[Arrays]:
        pieces = [np.split(x, np.cumsum(splits_of(p, size))[:-1]) for p, (x,) in enumerate(sources)]
        return [[np.concatenate([of[place] for of in pieces])] for place in range(size)]

    def alltoall(x: list[Any], one: rdmacoll.ProcessSet) -> list[Any]:
        got, received = rdmacoll.alltoall(x[0], splits=splits_of(one.rank(), size), process_set=one)
        counts = tf.constant([splits_of(p, size)[one.rank()] for p in range(size)], tf.int64)
        with tf.control_dependencies([tf.debugging.assert_equal(received, counts)]):
            return [tf.identity(got)]

    def at_last(whole: Callable[[list[Arrays]], Arrays]) -> Callable[[list[Arrays]], list[Arrays]]:
        return lambda sources: [[0 * x for x in whole(sources)] for _ in range(last)] + [whole(sources)]

    def one_by_one(x: list[Any], call: Callable[..., Any], one: rdmacoll.ProcessSet, **options: Any) -> Any:
        return [call(x[0], root_rank=one.ranks[-1], process_set=one, **options)]

    return {
        "alltoall": Case(lambda place: [(sum(splits_of(place, size)), 2)], alltoall, exchanged),
        "even alltoall": Case(
            lambda _: [(size, 3)],
            lambda x, one: [rdmacoll.alltoall(x[0], process_set=one)],
            lambda sources: [[np.stack([x[place] for (x,) in sources])] for place in range(size)],
        ),
        "reduce": Case(
            lambda _: [(3,)],
            lambda x, one: one_by_one(x, rdmacoll.reduce, one, op=rdmacoll.Sum, prescale_factor=2.0),
            at_last(lambda sources: [2 * x for x in sums(sources)]),
        ),
        "reduced mean": Case(
            lambda _: [(2, 2)],
            lambda x, one: one_by_one(x, rdmacoll.reduce, one, postscale_factor=float(size)),
            at_last(sums),
        ),
        "gather": Case(
            lambda place: [(place + 1, 2)],
            lambda x, one: one_by_one(x, rdmacoll.gather, one),
            lambda sources: [[x[:0] for x in sources[0]]] * last + [joined(sources)],
        ),
        "scatter": Case(
            lambda place: [(sum(rows), 2) if place == last else (0, 2)],
            lambda x, one: one_by_one(x, rdmacoll.scatter, one, splits=rows),
            lambda sources: [[part] for part in np.split(sources[last][0], np.cumsum(rows)[:-1])],
        ),
        "broadcast": Case(
            lambda _: [(2,)],
            lambda x, one: one_by_one(x, rdmacoll.broadcast, one),
            lambda sources: [sources[last]] * size,
        ),
        "grouped_allgather": Case(
            lambda place: [(place + 1, 2), (2 - place % 2,)],
            lambda x, one: rdmacoll.grouped_allgather(x, process_set=one),
            lambda sources: [joined(sources)] * size,
        ),
        "grouped_reducescatter": Case(
            lambda _: [(size + 1, 2), (2 * size,)],
            lambda x, one: rdmacoll.grouped_reducescatter(x, op=rdmacoll.Sum, process_set=one),
            lambda sources: [list(parts) for parts in zip(*(np.array_split(x, size) for x in sums(sources)))],
        ),
        "grouped_allreduce": Case(
            lambda _: [(2,), (1, 2)],
            lambda x, one: rdmacoll.grouped_allreduce(x, op=rdmacoll.Sum, process_set=one),
            lambda sources: [sums(sources)] * size,
        ),
    }


def every_kind(mine: list[rdmacoll.ProcessSet]) -> None:
    """Checks results and gradients of each kind: set by set, and in one function with all sets at once."""
    for name in cases_of(1):
        calls, inputs, wanted = [], [], []
        for one in [*mine, rdmacoll.global_process_set]:
            case, place = cases_of(one.size())[name], one.rank()
            sources = [case.sources(p, rank) for p, rank in enumerate(one.ranks)]
            right = case.right(sources)
            weights = [
                [np.arange(1, x.size + 1, dtype=np.float32).reshape(x.shape) + 16 * rank for x in results]
                for rank, results in zip(one.ranks, right)
            ]
            calls.append(lambda x, case=case, one=one, w=weights[place]: taped(case, one, x, w))
            inputs.append([tf.constant(x) for x in sources[place]])
            wanted.append((right[place], case.gradients(sources, weights, place)))
        at_once = tf.function(lambda inputs, calls=calls: [call(x) for call, x in zip(calls, inputs)])
        for found in ([call(x) for call, x in zip(calls, inputs)], at_once(inputs), at_once(inputs)):
            for one, results, rights in zip([*mine, "the world"], found, wanted):
                for got, right in zip([*results[0], *results[1]], [*rights[0], *rights[1]]):
                    message = f"rank {rdmacoll.rank()}: {name} in {one}"
                    np.testing.assert_array_equal(got.numpy(), right, message)


def roots_are_members(one: rdmacoll.ProcessSet) -> None:
    outside = next(rank for rank in range(rdmacoll.size()) if rank not in one.ranks)
    for call in (rdmacoll.reduce, rdmacoll.gather, rdmacoll.scatter, rdmacoll.broadcast):
        answers = ""
        try:
            call(tf.ones(2), root_rank=outside, process_set=one)
        except rdmacoll.ConfigError as error:
            answers = str(error)
        assert f"root_rank {outside} is not in process set" in answers


def taped(case: Case, one: rdmacoll.ProcessSet, sources: list[Any], weights: Arrays) -> tuple[Any, Any]:
    with tf.GradientTape() as tape:
        tape.watch(sources)
        results = case.call(sources, one)
        loss = tf.add_n([tf.reduce_sum(x * weight) for x, weight in zip(results, weights)])
    return results, tape.gradient(loss, sources)


def gradients(mine: list[rdmacoll.ProcessSet], value: float) -> None:
    for one in mine:
        w = tf.Variable([value] * 3)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(rdmacoll.allgather(w * w, process_set=one))
        # The gradient of this rank's rows is the sum of the ranks' gradients, and each of these is 1.
        assert np.allclose(tape.gradient(loss, w), 2 * value * one.size())
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * w)
        tape = rdmacoll.DistributedGradientTape(tape, process_set=one)
        assert np.allclose(tape.gradient(loss, [w])[0], total(one))


def optimizer(one: rdmacoll.ProcessSet, value: float) -> None:
    if not one.included():
        answers = ""
        try:
            rdmacoll.allreduce(tf.ones(2), process_set=one)
        except rdmacoll.ConfigError as error:
            answers = str(error)
        assert "is not in process set" in answers
        return
    wrapped = rdmacoll.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=one)
    v = tf.Variable([1.0, 1.0])
    wrapped.apply_gradients([(tf.constant([value, 0.0]), v)])
    assert np.allclose(v, [1 - total(one) / 2, 1.0]), v
    summed = rdmacoll.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=2, process_set=one
    )
    v.assign([0.0, 0.0])
    for _ in range(2):
        summed.apply_gradients([(tf.constant([value, 0.0]), v)])
    assert np.allclose(v, [-total(one), 0.0]), v
    v.assign([value, value])
    assert np.allclose(rdmacoll.broadcast_([v], one.ranks[0], process_set=one)[0], one.ranks[0] + 1)
    v.assign([value, value])
    rdmacoll.broadcast_variables([v], one.ranks[1], process_set=one)
    assert np.allclose(v, one.ranks[1] + 1)


def hook(one: rdmacoll.ProcessSet, value: float) -> None:
    with tf.Graph().as_default():
        v = tf.compat.v1.get_variable("v", initializer=value)
        first = rdmacoll.BroadcastGlobalVariablesHook(one.ranks[1], process_set=one)
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=[first]) as session:
            found = session.run(v)
    assert found == (one.ranks[1] + 1.0 if one.included() else value), (found, value)


def in_graphs(mine: list[rdmacoll.ProcessSet], value: float) -> None:
    # Each rank has built graphs for other sets before a graph that it shares.
    for one in [*mine, rdmacoll.global_process_set]:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            v = tf.compat.v1.get_variable("v", initializer=[value], use_resource=True)
            plain = tf.compat.v1.train.GradientDescentOptimizer(1.0)
            train = rdmacoll.DistributedOptimizer(plain, process_set=one).minimize(value * v)
            summed = rdmacoll.allreduce(tf.fill([2], value), op=rdmacoll.Sum, process_set=one)
            session.run(tf.compat.v1.global_variables_initializer())
            assert session.run(summed).tolist() == [total(one)] * 2
            session.run(train)
            assert np.allclose(session.run(v), value - total(one) / one.size())


def main() -> None:
    evens, low = rdmacoll.ProcessSet([0, 2]), rdmacoll.ProcessSet([0, 1])
    rdmacoll.init(process_sets=[evens, low])
    value = rdmacoll.rank() + 1.0
    mine = [one for one in (evens, low) if one.included()]
    eager(mine, value)
    in_a_function(mine, value)
    every_kind(mine)
    for one in mine:  # all ranks of a set refuse the call, so the next operation matches
        roots_are_members(one)
    gradients(mine, value)
    optimizer(low, value)
    hook(low, value)
    in_graphs(mine, value)
    rdmacoll.engine.barrier()
    report(True)


main()
