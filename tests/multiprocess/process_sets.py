"""Compares static, dynamic and overlapping process sets with numpy, also at the same time. Runs on every
rank."""

from __future__ import annotations

import itertools
import sys
from functools import partial

import numpy as np
from ranks import report
from refusal import refusal

import rdmacoll
from rdmacoll import engine
from rdmacoll._world import world


def data(rank: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng([seed, rank]).integers(-50, 50, shape).astype(np.float64)


def refused(call, *words: str) -> None:
    answers = refusal(call)
    assert [word for word in words if word not in answers] == [], answers


def every_kind(one: rdmacoll.ProcessSet, seed: int) -> int:
    """Tests a set that includes this rank."""
    ranks, mine = one.ranks, rdmacoll.rank()
    place, size = one.rank(), one.size()
    assert ranks[place] == mine
    root = ranks[seed % size]
    sources = [data(rank, (13, 3), seed) for rank in ranks]
    total = np.sum(sources, axis=0)
    results = {
        "sum": (engine.allreduce(sources[place], rdmacoll.Sum, process_set=one), total),
        "average": (engine.allreduce(sources[place], process_set=one), total / size),
        "group": (
            np.array(engine.grouped_allreduce([sources[place], sources[place] * 2], process_set=one)),
            np.array([total / size, total * 2 / size]),
        ),
        "broadcast": (engine.broadcast(sources[place], root, process_set=one), sources[ranks.index(root)]),
        "group_broadcast": (
            np.array(engine.grouped_broadcast([sources[place], -sources[place]], root, process_set=one)),
            np.array([sources[ranks.index(root)], -sources[ranks.index(root)]]),
        ),
        "allgather": (
            engine.allgather(sources[place][: place + 1], process_set=one),
            np.concatenate([array[: i + 1] for i, array in enumerate(sources)]),
        ),
        "reducescatter": (
            engine.reducescatter(sources[place], rdmacoll.Sum, process_set=one),
            np.array_split(total, size)[place],
        ),
    }
    gathered = engine.gather(sources[place], root, process_set=one)
    reduced = engine.reduce(sources[place], root, rdmacoll.Sum, process_set=one)
    assert [gathered is not None, reduced is not None] == [mine == root] * 2
    if mine == root:
        results["gather"] = gathered, np.concatenate(sources)
        results["reduce"] = reduced, total
    splits = [i + 1 for i in range(size)]
    whole = data(root, (sum(splits), 2), seed)
    rows = engine.scatter(whole, root, splits, process_set=one)
    results["scatter"] = rows, np.split(whole, np.cumsum(splits)[:-1])[place]
    exchanged, received = engine.alltoall(sources[place][:size], [1] * size, process_set=one)
    results["alltoall"] = exchanged, np.array([array[place] for array in sources])
    assert received.tolist() == [1] * size
    uneven = [[(i + j) % 3 for j in range(size)] for i in range(size)]
    parts = [
        np.split(data(rank, (sum(row), 2), seed), np.cumsum(row)[:-1]) for rank, row in zip(ranks, uneven)
    ]
    exchanged, received = engine.alltoall(np.concatenate(parts[place]), uneven[place], process_set=one)
    results["uneven alltoall"] = exchanged, np.concatenate([row[place] for row in parts])
    assert received.tolist() == [row[place] for row in uneven]
    for name, (got, wanted) in results.items():
        assert np.allclose(got, wanted), (name, one, got, wanted)
    engine.barrier(process_set=one)
    return len(results)


def at_the_same_time(sets: list[rdmacoll.ProcessSet], seed: int) -> None:
    """Each rank submits in its own order, and waits after it has submitted everything."""
    order = np.random.default_rng([seed, rdmacoll.rank()])
    mine = [one for one in sets if one.included()]
    for step in range(30):
        handles = []
        for position in order.permutation(len(mine)):
            one = mine[position]
            for name in order.permutation(3):
                array = np.full(1 + 5000 * int(name), float(rdmacoll.rank() + step))
                handle = engine.allreduce_async(array, rdmacoll.Sum, name=f"t{name}", process_set=one)
                handles.append((handle, sum(one.ranks) + step * one.size()))
        for position in order.permutation(len(handles)):
            handle, wanted = handles[position]
            got = handle.wait()
            assert (got == wanted).all(), (step, got[:3], wanted)


def main(seed: int) -> None:
    size = int(sys.argv[2])
    static = [rdmacoll.ProcessSet(ranks) for ranks in itertools.combinations(range(size), 2)][
        : 3 * (size > 2)
    ]
    rdmacoll.init(process_sets=static)
    me, cases = rdmacoll.rank(), 0
    everybody = rdmacoll.global_process_set
    assert (everybody.ranks, everybody.rank(), everybody.size()) == (list(range(size)), me, size)
    assert [one.process_set_id for one in static] == list(range(1, len(static) + 1))

    sets = [*static, rdmacoll.add_process_set([size - 1])]
    if size > 3:
        sets.append(rdmacoll.add_process_set(rdmacoll.ProcessSet(range(1, size))))
    for one in [*sets, everybody]:
        if one.included():
            cases += every_kind(one, seed)
    at_the_same_time([everybody, *sets], seed)
    at_the_same_time([everybody, *reversed(sets)], seed + 1)

    stranger = next((one for one in sets if not one.included()), None)
    if stranger is not None:
        refused(
            lambda: engine.allreduce(np.ones(3), process_set=stranger), "this rank is not in", "included()"
        )
        refused(lambda: stranger.rank(), "not in")
    for member in sets:
        if not member.included() or member.size() == size:
            continue
        outside = next(rank for rank in range(size) if rank not in member.ranks)
        ones = np.ones(3)
        refused(partial(engine.broadcast, ones, outside, process_set=member), "root_rank", "one of its")
    refused(lambda: rdmacoll.add_process_set(range(size)), "global_process_set")
    refused(lambda: rdmacoll.add_process_set([size]), "no rank of this world")
    refused(lambda: rdmacoll.add_process_set(sets[0].ranks), "exists already")
    refused(lambda: rdmacoll.remove_process_set(everybody), "the world")
    refused(lambda: engine.allreduce(np.ones(3), process_set=rdmacoll.ProcessSet([97])), "add_process_set")
    answers = refusal(lambda: rdmacoll.add_process_set([0] if me == 0 else [1 % size, *range(2, size)]))
    assert "rank 0 adds [0]" in answers, answers

    # The set is removed and added again: it has the same lanes and another number.
    for turn in range(4):
        one = sets.pop()
        number, ranks = one.process_set_id, one.ranks
        rdmacoll.remove_process_set(one)
        refused(partial(engine.barrier, process_set=one), "no process set of this world")
        again = rdmacoll.add_process_set(ranks)
        assert again.process_set_id > number
        sets.append(again)
        if again.included():
            cases += every_kind(again, seed + turn)
    busy = sets[-1]
    handle = None
    if me == busy.ranks[0] and busy.size() > 1:
        handle = engine.barrier_async(process_set=busy)
    if busy.size() > 1:
        refused(lambda: rdmacoll.remove_process_set(busy), "in flight", f"rank {busy.ranks[0]} has 1")
    if handle is not None:
        handle.wait()
    elif busy.included():
        engine.barrier(process_set=busy)
    at_the_same_time([everybody, *sets], seed + 2)
    state = world.state()
    assert all(f"process set {one.process_set_id} (ranks" in state for one in sets if one.included())
    metrics = rdmacoll.metrics()
    assert metrics["process_sets"] == 1 + sum(one.included() for one in sets)
    engine.barrier()
    rdmacoll.shutdown()
    report({"rank": me, "cases": cases, "plans": metrics["plans"]}, rank=me)


main(int(sys.argv[1]))
