"""The common part of all measurements: parts, one after the other, and a list of those that ran out of
time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Callable

from rdmacoll.benchmarks.quiet import Watch
from rdmacoll.benchmarks.turns import Rules, Turns

Part = dict[str, Any]


class Parts:
    """A run. parts: the measured parts so far. left_out: sentences about the others. say: prints both."""

    def __init__(self, rules: Rules, seconds: float, say: Callable[[str], None]) -> None:
        self.parts: list[Part] = []
        self.left_out: list[str] = []
        self._seconds, self._say = seconds, say
        self._turns = Turns(Watch(), rules, time.monotonic() + seconds, self._tell)

    def _tell(self, text: str) -> None:
        self.left_out.append(text)
        self._say(text)

    def _is_late(self, what: str) -> bool:
        """Whether the time is over. If so, `what` is reported as left out."""
        if self._turns.is_late:
            self._tell(f"not measured within {self._seconds:g} s: {what}")
        return self._turns.is_late

    def _take(self, wanted: Iterable[tuple[str, Callable[[], Part]]], each: Callable[[Part], None]) -> None:
        """Measures parts, each with its title. `each` is called with every completed part."""
        for title, measure in wanted:
            if self._is_late(title):
                continue
            self._say(title)
            self.parts.append(measure())
            each(self.parts[-1])
