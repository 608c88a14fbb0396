"""Compares all installed libraries in one run, turn by turn, for collectives, numbers of ranks, links and
sizes."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable

from rdmacoll._base.text import bytes_text, counted
from rdmacoll.benchmarks.benchmark_run import BenchmarkRun, Part
from rdmacoll.benchmarks.builds import ratios_to_build
from rdmacoll.benchmarks.environments import python_of
from rdmacoll.benchmarks.hosts import Hosts
from rdmacoll.benchmarks.judge import Row, best_plain, compared
from rdmacoll.benchmarks.libraries import LIBRARIES, HostLayout, Library, is_other_build
from rdmacoll.benchmarks.team import Team, TeamError
from rdmacoll.benchmarks.team_rank.kinds import ITEMSIZE, KINDS
from rdmacoll.benchmarks.turns import Cell, Rules, Task

PREPARED_BYTES_MAX = 16 << 10  # below this size numpy's plain calls are measured beside the prepared ones
MEMORY_BYTES_MIN = 64 << 10  # below this size numpy's calls cost more than the memory
START_S = 90.0
MACHINE = "machine"  # as a link: the ranks share this machine's memory


@dataclass(frozen=True)
class ComparisonRequest:
    """The measurement that is requested. links: "machine", or Gbit/s between two hosts. seconds: the limit
    of the run. build: the tree of another build. inputs: "written" or "kept", as `rdmacoll bench compare`
    has it."""

    libraries: Sequence[str]
    collectives: Sequence[str]
    ranks: Sequence[int]
    links: Sequence[str]
    sizes: Sequence[int]
    cache: Path
    rules: Rules
    seconds: float
    build: Path | None = None
    inputs: str = "kept"


def title_of(collective: str, ranks: int, link: str) -> str:
    """The title of a part of the comparison.

    >>> title_of("gather", 2, "machine"), title_of("allreduce", 4, "10")
    ('gather, 2 ranks on one machine', 'allreduce, 4 ranks on two hosts, 10 Gbit/s')
    """
    location = "on one machine" if link == MACHINE else f"on two hosts, {link} Gbit/s"
    return f"{collective}, {counted(ranks, 'rank')} {location}"


def cable_of(part: dict[str, Any]) -> str:
    """The text about the cables between hosts, which follows the title of a part."""
    return f", MTU {part['mtu']}, {part['congestion']}" if "mtu" in part else ""


@contextlib.contextmanager
def layout_of(
    ranks: int, link: str, folder: Path, servers: int = 0
) -> Iterator[tuple[HostLayout, dict[str, Any]]]:
    """Hosts for `ranks` ranks, and facts of the link. servers: that many ranks at the end are servers, on
    a host of their own. Without servers, each of two hosts has half of the ranks."""
    if link == MACHINE:
        yield HostLayout([0] * ranks, servers=servers), {}
        return
    with Hosts(2) as hosts:
        hosts.shape(float(link))
        on_first = ranks - servers if servers else (ranks + 1) // 2
        host_of = [0 if rank < on_first else 1 for rank in range(ranks)]
        prefixes, shell = hosts.prefixes(host_of), str(hosts.shell(folder))
        gbit = max(1, round(float(link)))
        layout = HostLayout(host_of, hosts.addresses, hosts.names, prefixes, shell, servers, gbit)
        yield layout, {"mtu": hosts.mtu(), "congestion": hosts.congestion}


def python_for(library: Library, cache: Path) -> Path | None:
    """The Python that runs the ranks of a library; None if the library is not installed."""
    found = python_of(library.environment, cache)
    # Our operation runs with any TensorFlow. Horovod's TensorFlow is preferred, so that both have the same.
    has_fallback = (
        bool(library.fallback_module) and importlib.util.find_spec(library.fallback_module) is not None
    )
    return found or (python_of("own", cache) if has_fallback else None)


@contextlib.contextmanager
def teams_of(
    libraries: Sequence[Library],
    layout: HostLayout,
    cache: Path,
    report: Callable[[str], None],
    build: Path | None = None,
) -> Iterator[list[Team]]:
    """Starts the teams and yields them. A team that cannot start is reported through `report` and left out.
    All teams are ended, also after a failure. build: the tree of another build, for its libraries."""
    teams: list[Team] = []
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        try:
            for library in libraries:
                python = python_for(library, cache)
                if python is None:
                    report(
                        f"{library.title} is not installed: rdmacoll bench peers --install "
                        f"{library.environment}"
                    )
                    continue
                if is_other_build(library.name):
                    library = replace(library, tree=build)
                try:
                    teams.append(Team(library, layout, python, Path(folder), START_S))
                except (TeamError, OSError) as error:
                    report(str(error))
            yield teams
        finally:
            for team in teams:
                team.end()


class Comparison(BenchmarkRun):
    """The collectives of all installed libraries."""

    def __init__(self, request: ComparisonRequest, write: Callable[[str], None]) -> None:
        super().__init__(request.rules, request.seconds, write)
        self._request = request

    def run(self, each: Callable[[Part], None]) -> None:
        """Measures all parts. `each` is called with every completed part."""
        requested = itertools.product(self._request.collectives, self._request.ranks, self._request.links)
        self._take(((title_of(*part), functools.partial(self._part, *part)) for part in requested), each)

    def _part(self, collective: str, ranks: int, link: str) -> Part:
        is_usual = collective == "allreduce" and self._request.inputs == "kept"
        names = [name for name in self._request.libraries if _takes_part(name, link, is_usual=is_usual)]
        with (
            tempfile.TemporaryDirectory(prefix="hosts-") as folder,
            layout_of(ranks, link, Path(folder)) as (layout, facts),
            teams_of(
                [LIBRARIES[name] for name in names],
                layout,
                self._request.cache,
                self._report,
                self._request.build,
            ) as teams,
        ):
            versions = {team.library.name: team.facts for team in teams}
            named = {"collective": collective, "ranks": ranks, "link": link}
            part = {**named, **facts, "libraries": versions, "rows": []}
            sizes = [ITEMSIZE * count for count in KINDS[collective].counts(self._request.sizes, ranks)]
            for number, size in enumerate(sizes):
                remaining = ", ".join(map(bytes_text, sizes[number:]))
                if self._is_out_of_time(f"{title_of(collective, ranks, link)}: {remaining}"):
                    break
                part["rows"].append(self._row(teams, collective, size))
                self._write(f"  {bytes_text(size)} done")
            return part

    def _row(self, teams: list[Team], collective: str, size: int) -> Row:
        participants = [team for team in teams if team.library.name != "memory" or size >= MEMORY_BYTES_MIN]
        cells = self._cells(teams, participants, collective, size, "prepared")
        row = compared(size, cells)
        plain: dict[str, Cell] = {}
        if size < PREPARED_BYTES_MAX:
            numpy = [team for team in teams if team.library.group == "numpy"]
            cells_of_plain = self._cells(teams, numpy, collective, size, "plain")
            row["best_plain"] = best_plain(cells_of_plain)
            plain = {f"{name} plain": cell for name, cell in cells_of_plain.items()}
            row["time_us"].update({name: cell.summary() for name, cell in plain.items()})
        row["builds"] = ratios_to_build({**cells, **plain})
        return row

    def _cells(
        self, teams: list[Team], chosen: list[Team], collective: str, size: int, variant: str
    ) -> dict[str, Cell]:
        work = {"what": collective, "bytes": size, "variant": variant, "inputs": self._request.inputs}
        remaining = list(chosen)
        cells = self._turns.take(
            remaining, {team.library.name: Task(team.library.name, work) for team in chosen}
        )
        teams[:] = [team for team in teams if team in remaining or team not in chosen]
        return cells


def _takes_part(name: str, link: str, *, is_usual: bool) -> bool:
    """Whether a library takes part. Operations of TensorFlow and the limits are measured in the usual case
    alone: an allreduce whose inputs are kept."""
    if name == ("stream" if link == MACHINE else "memory"):
        return False
    return is_usual or LIBRARIES[name].group == "numpy"


def settings_of(request: ComparisonRequest) -> dict[str, Any]:
    """The settings of the run, for JSON."""
    rules = replace(request.rules)
    return {
        "inputs": request.inputs,
        "turns": rules.turns,
        "burst_s": rules.burst_s,
        "foreign_share_max": rules.foreign,
        "foreign_share_max_beside_horovod": rules.foreign_of_sleepers,
        "prepared_below_bytes": PREPARED_BYTES_MAX,
        "ranks_of_others": "stopped (SIGSTOP) while one library measures",
    }
