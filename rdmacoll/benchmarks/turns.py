"""Lets teams take turns, in bursts without disturbance."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

from rdmacoll.benchmarks.processor_load import LoadWatch
from rdmacoll.benchmarks.team import Team, TeamError, slowest

SLICES = 8  # in a burst; the time of a burst is their median
_TRIES = 4  # bursts of one turn, until one is quiet
_QUIET_S = 10.0  # the longest wait for a quiet moment
_CALLS_MAX = 200_000
_CHECK_BYTES_MAX = 32 << 20  # a larger work is checked in its first turn only


@dataclass(frozen=True)
class Rules:
    """The number of turns, their length, and the allowed disturbance. foreign: the largest share of the
    processors that other processes may have."""

    turns: int = 5
    burst_s: float = 0.3
    foreign: float = 0.12
    foreign_of_sleepers: float = 0.25  # for libraries whose threads sleep and wake
    step_s: float = 60.0  # the limit of one request to ranks, beside the time of its calls


@dataclass
class Burst:
    """The result of one turn. seconds: per call, for each slice, at the slowest rank."""

    seconds: list[float]
    foreign: float
    cpu_s_per_call: float  # processor time of all ranks
    is_quiet: bool
    cpu_s_of: list[float] = field(default_factory=list)  # by rank, per call
    peak_of: list[int] = field(default_factory=list)  # by rank, the peak memory in bytes

    @property
    def median(self) -> float:
        """The median of the slices, in seconds per call."""
        return statistics.median(self.seconds)


@dataclass
class Cell:
    """The results of one library with one work: a burst for each turn."""

    bursts: list[Burst] = field(default_factory=list)
    dropped: int = 0
    wrong: int = 0

    def summary(self) -> dict[str, Any]:
        """The results for JSON. Times are microseconds."""
        slices = [seconds for burst in self.bursts for seconds in burst.seconds]
        return {
            "median": statistics.median(burst.median for burst in self.bursts) * 1e6,
            "min": min(slices) * 1e6,
            "max": max(slices) * 1e6,
            "turns": [burst.median * 1e6 for burst in self.bursts],
            "cpu_us": statistics.median(burst.cpu_s_per_call for burst in self.bursts) * 1e6,
            "cpu_us_of": [1e6 * statistics.median(each) for each in zip(*(b.cpu_s_of for b in self.bursts))],
            "peak_bytes_of": [max(each) for each in zip(*(burst.peak_of for burst in self.bursts))],
            "foreign": max(burst.foreign for burst in self.bursts),
            "quiet": all(burst.is_quiet for burst in self.bursts),
            "dropped": self.dropped,
            "wrong": self.wrong,
        }


def best_burst(bursts: Sequence[Burst]) -> Burst:
    """The best of one turn's tries: the first quiet burst, or the least disturbed one."""
    quiet = [burst for burst in bursts if burst.is_quiet]
    return quiet[0] if quiet else min(bursts, key=lambda burst: burst.foreign)


def ratio(peer: Cell, ours: Cell) -> float:
    """Time of the peer / our time: the median of the ratios of the turns.

    >>> def cell(*seconds):
    ...     return Cell([Burst([each], 0.0, 0.0, True) for each in seconds])
    >>> ratio(cell(2.0, 1.0, 4.0), cell(1.0, 2.0, 3.0))
    1.3333333333333333
    """
    return statistics.median(
        peer_burst.median / our_burst.median for peer_burst, our_burst in zip(peer.bursts, ours.bursts)
    )


@dataclass(frozen=True)
class Task:
    """The name of a library, and its work."""

    library: str
    work: Mapping[str, Any]


class Turns:
    """Measures works, one after the other, until the time is over."""

    def __init__(self, load: LoadWatch, rules: Rules, until: float, report: Callable[[str], None]) -> None:
        self._load, self._rules = load, rules
        self.until = until
        self._report = report

    @property
    def is_out_of_time(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self.until

    def take(self, teams: list[Team], tasks: Mapping[str, Task]) -> dict[str, Cell]:
        """Measures all tasks and returns their cells. The order shifts from turn to turn. A team that
        cannot go on is ended and removed from `teams`."""
        cells = {key: Cell() for key in tasks}
        calls: dict[str, int] = {}
        keys = list(tasks)
        for turn in range(self._rules.turns):
            first = turn % max(1, len(keys))
            for key in keys[first:] + keys[:first]:
                team = next((team for team in teams if team.library.name == tasks[key].library), None)
                if team is None:
                    continue
                try:
                    team.resume()
                    self._turn(team, key, tasks[key].work, turn, calls, cells[key])
                    team.stop()
                except TeamError as error:
                    self._report(f"left out from here on: {error}")
                    teams.remove(team)
                    team.end()
            if self.is_out_of_time and turn + 1 < self._rules.turns:
                self._report(f"the time is over after turn {turn + 1} of {self._rules.turns}")
                break
        # A team that was left out may have fewer bursts than the others, so its cells are dropped.
        teams_left = {team.library.name for team in teams}
        return {key: cell for key, cell in cells.items() if cell.bursts and tasks[key].library in teams_left}

    def _turn(
        self, team: Team, key: str, work: Mapping[str, Any], turn: int, calls: dict[str, int], cell: Cell
    ) -> None:
        rules = self._rules
        check = turn == 0 or work.get("bytes", 0) <= _CHECK_BYTES_MAX
        answers = team.query({"do": "make", "work": dict(work), "turn": turn, "check": check}, rules.step_s)
        if key not in calls:
            calls[key] = self._calls(team)
        slices = min(SLICES, calls[key])
        order = {"do": "burst", "slices": slices, "calls": max(1, calls[key] // slices)}
        allowed = rules.foreign_of_sleepers if team.library.sleeps else rules.foreign
        tried: list[Burst] = []
        while len(tried) < _TRIES:
            if tried:
                self._wait_for_quiet(team, allowed)
            tried.append(self._burst(team, order, allowed))
            if tried[-1].is_quiet or self.is_out_of_time:
                break
        cell.bursts.append(best_burst(tried))
        cell.dropped += len(tried) - 1
        last_answers = team.query({"do": "drop"}, rules.step_s)
        cell.wrong += sum(answer["wrong"] for answer in [*answers, *last_answers])

    def _wait_for_quiet(self, team: Team, allowed: float) -> None:
        team.stop()
        self._load.wait(allowed, min(self.until, time.monotonic() + _QUIET_S))
        team.resume()

    def _burst(self, team: Team, order: Mapping[str, Any], allowed: float) -> Burst:
        before = self._load.read()
        used = [usage["cpu_s"] for usage in team.query({"do": "usage"}, self._rules.step_s)]
        answers = team.query(order, self._rules.step_s + 20 * self._rules.burst_s)
        usages = team.query({"do": "usage"}, self._rules.step_s)
        after = self._load.read()
        own = [usage["cpu_s"] - cpu_s for usage, cpu_s in zip(usages, used)]
        foreign_share = after.share_since(before, sum(own), self._load.cores)
        # The first call synchronizes the ranks; its processor time counts too.
        number = (1 + order["slices"] * order["calls"]) * _each(answers)
        peaks = [usage["peak"] for usage in usages]
        return Burst(
            slowest(answers),
            foreign_share,
            sum(own) / number,
            foreign_share <= allowed,
            [cpu_s / number for cpu_s in own],
            peaks,
        )

    def _calls(self, team: Team) -> int:
        """The number of calls that fill a burst."""
        seconds, each = math.inf, 1
        for calls in (1, 20, 500):
            answers = team.query({"do": "burst", "slices": 2, "calls": calls}, self._rules.step_s)
            each = _each(answers)
            seconds = min(slowest(answers)) * each
            if seconds * calls > 0.005:
                break
        return max(2, min(_CALLS_MAX, int(self._rules.burst_s / seconds)))


def _each(answers: Sequence[Mapping[str, Any]]) -> int:
    """The number of measured units in one call."""
    return max(int(answer["each"]) for answer in answers)
