"""The common part of all measurements: parts, one after the other, and a list of those that ran out of
time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Callable

from rdmacoll.benchmarks.processor_load import LoadWatch
from rdmacoll.benchmarks.turns import Rules, Turns

Part = dict[str, Any]


class BenchmarkRun:
    """A run. parts: the measured parts so far. left_out: sentences about the others. write: prints both."""

    def __init__(self, rules: Rules, seconds: float, write: Callable[[str], None]) -> None:
        self.parts: list[Part] = []
        self.left_out: list[str] = []
        self._seconds, self._write = seconds, write
        self._turns = Turns(LoadWatch(), rules, time.monotonic() + seconds, self._report)

    def _report(self, text: str) -> None:
        self.left_out.append(text)
        self._write(text)

    def _is_out_of_time(self, what: str) -> bool:
        """Whether the time is over. If so, `what` is reported as left out."""
        if self._turns.is_out_of_time:
            self._report(f"not measured within {self._seconds:g} s: {what}")
        return self._turns.is_out_of_time

    def _take(
        self, requested: Iterable[tuple[str, Callable[[], Part]]], each: Callable[[Part], None]
    ) -> None:
        """Measures parts, each with its title. `each` is called with every completed part."""
        for title, measure in requested:
            if self._is_out_of_time(title):
                continue
            self._write(title)
            self.parts.append(measure())
            each(self.parts[-1])
