"""Lists whose elements are handled in two ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def in_two_parts(
    values: Sequence[Any],
    are_first: Sequence[bool],
    first: Callable[[list[Any]], Sequence[Any]],
    others: Callable[[list[Any]], Sequence[Any]],
) -> list[Any]:
    """The results of `first` for the values with `are_first`, and of `others` for the rest, in the order of
    `values`. `first` is called first. Neither is called without values.

    >>> in_two_parts([1, 2, 3], [False, True, False], lambda some: [-one for one in some], list)
    [1, -2, 3]
    """
    results: list[Any] = list(values)
    for is_first, function in ((True, first), (False, others)):
        places = [place for place, one in enumerate(are_first) if bool(one) is is_first]
        if places:
            for place, result in zip(places, function([values[place] for place in places])):
                results[place] = result
    return results
