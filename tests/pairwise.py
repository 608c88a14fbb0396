"""Combinations of values such that every pair of two dimensions' values occurs: pure.

Most faults of combinations show in two of their values (Kuhn, Wallace, Gallo: Software fault interactions and
implications for software testing, 2004). All pairs take tens of cases, all combinations thousands.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence

Case = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]

_TRIES = 60  # candidates for each case; the one with the most new pairs is taken


def all_cases(dimensions: Mapping[str, Sequence[str]], is_valid: Callable[[Case], bool]) -> list[Case]:
    """Every valid combination.

    >>> len(all_cases({"a": "12", "b": "34"}, lambda case: case != {"a": "1", "b": "3"}))
    3
    """
    found = (dict(zip(dimensions, values)) for values in itertools.product(*dimensions.values()))
    return [case for case in found if is_valid(case)]


def pairs_of(case: Case) -> set[Pair]:
    """The pairs of values in a case."""
    return set(itertools.combinations(case.items(), 2))


def cover(cases: Sequence[Case], seed: int) -> list[Case]:
    """Returns a subset of `cases` in which each pair of values occurs that occurs in `cases`.

    >>> some = cover(all_cases({"a": "123", "b": "123", "c": "123"}, lambda case: True), 1)
    >>> 9 <= len(some) <= 15
    True
    """
    generator = random.Random(seed)
    missing = set().union(*map(pairs_of, cases))
    chosen: list[Case] = []
    while missing:
        needed = generator.choice(sorted(missing))
        having = [case for case in cases if needed in pairs_of(case)]
        candidates = generator.sample(having, min(_TRIES, len(having)))
        best = max(candidates, key=lambda case: len(pairs_of(case) & missing))
        chosen.append(best)
        missing -= pairs_of(best)
    return chosen
