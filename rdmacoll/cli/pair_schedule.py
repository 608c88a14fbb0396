"""Schedules the tests of pairs of ranks: each pair once, disjoint pairs at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product, zip_longest
from typing import TypeVar

from rdmacoll._world.pairs import Pair

T = TypeVar("T")


def round_robin(participants: Sequence[T]) -> list[list[tuple[T, T]]]:
    """The smallest number of rounds of disjoint pairs that holds each pair once. In each round, all but the
    first player move on by one place.

    >>> round_robin("abcd")
    [[('a', 'd'), ('b', 'c')], [('a', 'c'), ('d', 'b')], [('a', 'b'), ('c', 'd')]]
    """
    slots: list[T | None] = [*participants, *([None] if len(participants) % 2 else [])]
    rounds = []
    for _ in range(len(slots) - 1):
        half = len(slots) // 2
        meetings = zip(slots[:half], reversed(slots[half:]))
        rounds.append([(a, b) for a, b in meetings if a is not None and b is not None])
        slots = [slots[0], slots[-1], *slots[1:-1]]
    return rounds


def rounds_of(hosts: Sequence[str]) -> list[list[Pair]]:
    """Rounds that test every pair of ranks once, given each rank's host. A host takes part in one test at a
    time, so that no two tests use one adapter at once.

    >>> rounds_of(["a", "a", "b"])
    [[(0, 2)], [(1, 2)], [(0, 1)]]
    """
    ranks: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks.setdefault(host, []).append(rank)
    between_hosts = [
        [[_ordered(pair) for pair in product(ranks[a], ranks[b])] for a, b in meetings]
        for meetings in round_robin(list(ranks))
    ]
    inside_hosts = [list(combinations(of_one, 2)) for of_one in ranks.values()]
    return [
        [pair for pair in concurrent if pair is not None]
        for side_by_side in [*between_hosts, inside_hosts]
        for concurrent in zip_longest(*side_by_side)
    ]


def _ordered(pair: tuple[int, int]) -> Pair:
    return (min(pair), max(pair))
