"""`rdmacoll selftest`: process sets that overlap and run at once, and ranks that join."""

from __future__ import annotations

from typing import Any

import numpy as np

from rdmacoll import engine
from rdmacoll._world import world
from rdmacoll.cli import references
from rdmacoll.cli.selftest_results import Results, everywhere
from rdmacoll.operators import ReduceOp

SIZES = (0, 1, 1000, 100_003)
_FLOAT32 = np.dtype(np.float32)


def _sets_of(count: int) -> list[tuple[int, ...]]:
    """Disjoint and overlapping sets of ranks. None is the whole world, so a world of one rank has no set.

    >>> _sets_of(2), _sets_of(3)
    ([(0,), (1,)], [(0, 2), (1,), (1, 2)])
    """
    ranks = range(count)
    found = (tuple(ranks[::2]), tuple(ranks[1::2]), tuple(ranks[1:]))
    return [one for one in dict.fromkeys(found) if 0 < len(one) < count]


def _sum_problem(got: np.ndarray[Any, Any], sources: list[np.ndarray[Any, Any]], canonical: bool) -> str:
    wrong = references.wrong_values(got, sources, ReduceOp.SUM)
    if wrong:
        return f"{wrong} of {got.size} values"
    if canonical and references.canonical_sum(sources).tobytes() != got.tobytes():
        return "not the bits of the canonical order"
    return ""


def _concurrent_sums(
    sets: list[engine.ProcessSet], size: int, case: str, seed: int, results: Results, canonical: bool
) -> None:
    """Submits a sum and a broadcast in every set, and only then waits for the first of them."""
    me = world.rank()
    data = {rank: references.data_of(rank, (size,), _FLOAT32, seed) for rank in range(world.size())}
    own_sets = [one for one in sets if one.included()]
    sums, broadcasts = {}, {}
    for one in own_sets[:: -1 if me % 2 else 1]:  # each rank has its own order
        sums[one] = results.engine.allreduce_async(data[me], ReduceOp.SUM, process_set=one)
        broadcasts[one] = results.engine.broadcast_async(data[me], one.ranks[-1], process_set=one)
    for one in sets:
        sum_problem = broadcast_problem = ""
        if one in own_sets:
            sum_problem = _sum_problem(sums[one].wait(), [data[rank] for rank in one.ranks], canonical)
            if broadcasts[one].wait().tobytes() != data[one.ranks[-1]].tobytes():
                broadcast_problem = "not the root's values"
        results.add(f"allreduce in {one.ranks} {case}", everywhere(sum_problem))
        results.add(f"broadcast in {one.ranks} {case}", everywhere(broadcast_problem))


def _parts(one: engine.ProcessSet, size: int, case: str, seed: int, results: Results) -> None:
    found = {"allgather": "", "alltoall": ""}
    if one.included():
        me = world.rank()
        ragged = [references.data_of(rank, (rank + 1, size), _FLOAT32, seed) for rank in one.ranks]
        gathered = results.engine.allgather(ragged[one.rank()], process_set=one)
        if gathered.tobytes() != np.concatenate(ragged).tobytes():
            found["allgather"] = "not all ranks' values"
        sources = {rank: references.data_of(rank, (one.size(), size), _FLOAT32, seed) for rank in one.ranks}
        got, _ = results.engine.alltoall(sources[me], [1] * one.size(), process_set=one)
        if got.tobytes() != np.stack([sources[rank][one.rank()] for rank in one.ranks]).tobytes():
            found["alltoall"] = "other values than the inputs"
    for name, problem in found.items():
        results.add(f"{name} in {one.ranks} {case}", everywhere(problem))


def _joins(case: str, seed: int, results: Results, canonical: bool) -> None:
    """Rank r submits r + 1 sums and then joins."""
    me, count = world.rank(), world.size()
    problem = ""
    for step in range(me + 1):
        data = [references.data_of(rank, (1000,), _FLOAT32, seed + step) for rank in range(count)]
        sources = [array if rank >= step else np.zeros_like(array) for rank, array in enumerate(data)]
        got = results.engine.allreduce(data[me], ReduceOp.SUM)
        problem = problem or _sum_problem(got, sources, canonical)
    last = results.engine.join()
    if last != count - 1:
        problem = problem or f"rank {last} was the last to join, not rank {count - 1}"
    results.add(f"join {case}", everywhere(problem))


def run(case: str, seed: int, results: Results, canonical: bool) -> None:
    """Adds the cases of this file to `results`. Every rank of the world calls it. canonical: sums are
    compared bit by bit with the canonical order."""
    _joins(case, seed, results, canonical)
    sets = [results.engine.add_process_set(ranks) for ranks in _sets_of(world.size())]
    for size in SIZES:
        _concurrent_sums(sets, size, f"{size} {case}", seed, results, canonical)
        for one in sets:
            _parts(one, size, f"{size} {case}", seed, results)
    for one in sets:
        results.engine.remove_process_set(one)
