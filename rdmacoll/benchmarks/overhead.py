"""The engine's own costs: processor time of a step and of an idle rank, the start, memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from rdmacoll.benchmarks import resnet50
from rdmacoll.benchmarks.compare import MACHINE, layout_of, teams_of
from rdmacoll.benchmarks.libraries import LIBRARIES
from rdmacoll.benchmarks.processor_load import LoadWatch
from rdmacoll.benchmarks.team import Team
from rdmacoll.benchmarks.turns import Rules, Task, Turns
from rdmacoll.errors import RdmacollError

START_S_MAX = 0.3  # start of two ranks until both have joined, without the TensorFlow import
IDLE_SHARE_MAX = 0.01  # share of a core, for each rank
_ANSWER_S = 60.0
_MIB = 1 << 20


@dataclass(frozen=True)
class ResultLine:
    """A line of the page. goal: the upper bound of the value, in its unit."""

    what: str
    value: float
    unit: str
    goal: float | None = None
    more: str = ""

    @property
    def is_missed(self) -> bool:
        """Whether the value exceeds a goal."""
        return self.goal is not None and self.value > self.goal

    def text(self) -> str:
        """The printed line.

        >>> ResultLine("idle", 2.5, "% of a core", 1.0).text()
        'idle                                             2.50 % of a core  goal 1: missed'
        """
        judged = (
            "" if self.goal is None else f"  goal {self.goal:g}: {'missed' if self.is_missed else 'kept'}"
        )
        more = f"  ({self.more})" if self.more else ""
        return f"{self.what:<44} {self.value:>8.2f} {self.unit}{judged}{more}"


def start_lines(starts: Sequence[Mapping[str, float]]) -> list[ResultLine]:
    """The lines about several starts: the medians of the parts, each at the slowest rank. Keys: python,
    import, init, total, in seconds."""

    def median(part: str) -> float:
        return 1e3 * statistics.median(start[part] for start in starts)

    totals = [1e3 * start["total"] for start in starts]
    more = f"median of {len(starts)}, {min(totals):.0f} to {max(totals):.0f}"
    return [
        ResultLine("start until all ranks have joined", median("total"), "ms", 1e3 * START_S_MAX, more),
        ResultLine("  Python and numpy", median("python"), "ms"),
        ResultLine("  import rdmacoll", median("import"), "ms"),
        ResultLine("  rdmacoll.init()", median("init"), "ms"),
    ]


def parts_of(started_at: float, ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The parts of one start in seconds, each at its slowest rank.

    >>> ranks = [{"begin": 10.5, "joined": 11.0, "import": 0.125, "init": 0.25}]
    >>> parts_of(10.0, ranks)
    {'python': 0.5, 'import': 0.125, 'init': 0.25, 'total': 1.0}
    """
    return {
        "python": max(rank["begin"] for rank in ranks) - started_at,
        "import": max(rank["import"] for rank in ranks),
        "init": max(rank["init"] for rank in ranks),
        "total": max(rank["joined"] for rank in ranks) - started_at,
    }


class Overhead:
    """One run. left_out: sentences about the parts that were not measured."""

    def __init__(
        self, ranks: int, starts: int, idle_s: float, rules: Rules, cache: Path, seconds: float
    ) -> None:
        self._ranks, self._starts, self._idle_s = ranks, starts, idle_s
        self._rules, self._cache = rules, cache
        self._until = time.monotonic() + seconds
        self.left_out: list[str] = []
        self.facts: dict[str, str] = {}

    def lines(self, folder: Path, write: Callable[[str], None]) -> list[ResultLine]:
        """Measures all lines, and prints each part once it is measured. Raises RdmacollError if ranks cannot
        be started."""
        load = LoadWatch()
        with layout_of(self._ranks, MACHINE, folder) as (layout, _):
            starts = []
            for _ in range(self._starts):
                if not load.wait(self._rules.foreign, min(self._until, time.monotonic() + 10)):
                    if not self.left_out:
                        write(self._busy_text())
                    self.left_out.append("no quiet moment before a start: its time is an upper bound")
                with teams_of([LIBRARIES["rdmacoll"]], layout, self._cache, self.left_out.append) as teams:
                    team = self._first_team(teams)
                    starts.append(parts_of(team.started_at, team.starts))
            lines = start_lines(starts)
            self._print(lines, write)
            both = [LIBRARIES["rdmacoll"], LIBRARIES["memory"]]
            with teams_of(both, layout, self._cache, self.left_out.append) as teams:
                running = self._running(teams, Turns(load, self._rules, self._until, self.left_out.append))
        self._print(running, write)
        return lines + running

    def _print(self, lines: Sequence[ResultLine], write: Callable[[str], None]) -> None:
        for line in lines:
            write(line.text())

    def _busy_text(self) -> str:
        left = self._until - time.monotonic()
        return (
            f"Other programs use more than {100 * self._rules.foreign:.0f} % of this machine. The run "
            f"waits for quiet moments, at most for {left:.0f} s (--seconds)."
        )

    def _first_team(self, teams: Sequence[Team]) -> Team:
        if not teams:
            raise RdmacollError(self.left_out[-1])
        return teams[0]

    def _running(self, teams: list[Team], turns: Turns) -> list[ResultLine]:
        team = self._first_team(teams)
        self.facts = team.facts
        lines = [self._idle(team, "idle after the start")]
        before = self._memory(team)
        without_rdmacoll = self._memory(teams[1]) if len(teams) > 1 else before
        step = {"what": "gradients", "shapes": resnet50.shapes()}
        tasks = {
            "step": Task("rdmacoll", step),
            "small": Task("rdmacoll", {"what": "allreduce", "bytes": 8, "variant": "prepared"}),
            "memory": Task("memory", {"what": "sum", "bytes": resnet50.total_bytes()}),
        }
        cells = {key: cell.summary() for key, cell in turns.take(teams, tasks).items()}
        megabytes = resnet50.total_bytes() / 1e6
        for key, what, scale, unit in (
            ("step", f"161 gradients, {megabytes:.0f} MB: processor time of a rank", 1e-3, "ms"),
            ("memory", "  lower bound by the memory's rate", 1e-3, "ms"),
            ("small", "allreduce of 8 bytes: processor time of a rank", 1.0, "us"),
        ):
            if key in cells:
                wall = f"{cells[key]['median'] * scale:.2f} {unit} until it is done"
                lines.append(ResultLine(what, cells[key]["cpu_us"] / self._ranks * scale, unit, more=wall))
        lines.append(self._idle(team, "idle after steps"))
        after = self._memory(team)
        peak = f"peak {after['peak'] / _MIB:.0f} MiB, with the gradients"
        lines += [
            ResultLine("memory of a rank after the start", before["Pss"] / _MIB, "MiB"),
            ResultLine(
                "  the same without rdmacoll", without_rdmacoll["Pss"] / _MIB, "MiB", more="Python and numpy"
            ),
            ResultLine("memory of a rank after steps", after["Pss"] / _MIB, "MiB", more=peak),
        ]
        return lines

    def _idle(self, team: Team, what: str) -> ResultLine:
        team.resume()
        answers = team.query({"do": "rest", "seconds": self._idle_s}, _ANSWER_S)
        team.stop()
        share = max(answer["cpu_s"] for answer in answers) / self._idle_s
        return ResultLine(f"{what}, for each rank", 100 * share, "% of a core", 100 * IDLE_SHARE_MAX)

    def _memory(self, team: Team) -> dict[str, int]:
        team.resume()
        answers = team.query({"do": "memory"}, _ANSWER_S)
        team.stop()
        return {key: max(answer[key] for answer in answers) for key in ("Pss", "peak")}
