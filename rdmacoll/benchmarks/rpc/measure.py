"""Measures payloads between workers and servers, or between all ranks: ours and the peers', turn by turn
in a run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Callable

from rdmacoll._base.text import counted
from rdmacoll.benchmarks.benchmark_run import BenchmarkRun, Part
from rdmacoll.benchmarks.compare import MACHINE, layout_of, teams_of
from rdmacoll.benchmarks.libraries import Library
from rdmacoll.benchmarks.rpc.libraries import OURS, OURS_BY_TCP
from rdmacoll.benchmarks.rpc.payloads import Payload
from rdmacoll.benchmarks.team import Team
from rdmacoll.benchmarks.turns import Cell, Rules, Task, ratio

Row = dict[str, Any]


@dataclass(frozen=True)
class PayloadRequest:
    """The measurement that is requested. exchanges: round-trip, push, pull. servers: 0: every rank calls
    every other rank. under_way: the number of payloads in flight, for a worker of a peer and for ours."""

    libraries: Sequence[Library]
    exchanges: Sequence[str]
    payloads: Sequence[Payload]
    workers: int
    servers: int
    under_way: tuple[int, int]
    links: Sequence[str]
    cache: Path
    rules: Rules
    seconds: float


def title_of(workers: int, servers: int, link: str) -> str:
    """The title of a part.

    >>> title_of(2, 1, "machine"), title_of(1, 1, "10"), title_of(3, 0, "machine")
    ('2 workers and 1 server on one machine', '1 worker and 1 server, 10 Gbit/s', '3 ranks on one machine')
    """
    participants = f"{counted(workers, 'worker')} and {counted(servers, 'server')}"
    participants = participants if servers else counted(workers, "rank")
    return f"{participants} on one machine" if link == MACHINE else f"{participants}, {link} Gbit/s"


def row_of(exchange: str, payload: Payload, cells: Mapping[str, Cell], workers: int, servers: int) -> Row:
    """The row of one exchange and payload, with a cell for each library:
    - microseconds per payload at the slowest worker;
    - payloads per second and MB/s (10^6 bytes) of all workers (without servers, each sends to every other);
    - processor time per payload and peak memory, of all workers and of all servers;
    - the peers' ratios to each of ours, above 1 if we are faster.
    """
    row: Row = {
        "exchange": exchange,
        "payload": payload.name,
        "bytes": payload.total,
        "buffers": len(payload.sizes),
        "time_us": {name: cell.summary() for name, cell in cells.items()},
        "payloads_per_s": {},
        "MB_per_s": {},
        "cpu_us": {},
        "peak_bytes": {},
        "ratio": {},
    }
    others = 1 if servers else workers - 1
    for name, summary in row["time_us"].items():
        rate = workers * others * 1e6 / summary["median"]
        row["payloads_per_s"][name] = rate
        row["MB_per_s"][name] = rate * payload.total / 1e6
        for what, values, share in (
            ("cpu_us", summary["cpu_us_of"], workers * others),
            ("peak_bytes", summary["peak_bytes_of"], 1),
        ):
            row[what][name] = {
                "workers": sum(values[:workers]) / share,
                "servers": sum(values[workers:]) / share,
            }
    for ours in (OURS, OURS_BY_TCP):
        if ours in cells:
            row["ratio"][ours] = {
                name: ratio(cell, cells[ours])
                for name, cell in cells.items()
                if name not in (OURS, OURS_BY_TCP)
            }
    return row


def by_link(
    links: Sequence[str], workers: int, servers: int, part: Callable[[str, str], Part]
) -> Iterator[tuple[str, Callable[[], Part]]]:
    """Yields, for each link, the title of its part and the function that measures the part."""
    for link in links:
        title = title_of(workers, servers, link)
        yield title, partial(part, link, title)


class Measurement(BenchmarkRun):
    """Every exchange with every payload."""

    def __init__(self, request: PayloadRequest, write: Callable[[str], None]) -> None:
        super().__init__(request.rules, request.seconds, write)
        self._request = request

    def run(self, each: Callable[[Part], None]) -> None:
        """Measures all parts. `each` is called with every completed part."""
        request = self._request
        self._take(by_link(request.links, request.workers, request.servers, self._part), each)

    def _part(self, link: str, title: str) -> Part:
        request = self._request
        # Between hosts rdmacoll uses TCP in any case.
        libraries = [row for row in request.libraries if link == MACHINE or row.name != OURS_BY_TCP]
        with (
            tempfile.TemporaryDirectory(prefix="rpc-") as folder,
            layout_of(request.workers + request.servers, link, Path(folder), request.servers) as (
                layout,
                facts,
            ),
            teams_of(libraries, layout, request.cache, self._report) as teams,
        ):
            versions = {team.library.name: team.facts for team in teams}
            part = {"link": link, "title": title, **facts, "libraries": versions, "rows": []}
            for exchange in request.exchanges:
                for payload in request.payloads:
                    if self._is_out_of_time(f"{title}: {exchange} of {payload.name}"):
                        continue
                    cells = self._cells(teams, exchange, payload)
                    part["rows"].append(row_of(exchange, payload, cells, request.workers, request.servers))
                    self._write(f"  {exchange} of {payload.name} done")
            return part

    def _cells(self, teams: list[Team], exchange: str, payload: Payload) -> dict[str, Cell]:
        peers, ours = (1, 1) if exchange == "round-trip" else self._request.under_way
        # The work does not name its bytes. Turns would check a large work in its first turn alone, but here
        # every turn has new values.
        work = {
            "what": exchange,
            "sizes": payload.sizes,
            "under_way": peers,
            "under_way_of_ours": ours,
        }
        return self._turns.take(teams, {team.library.name: Task(team.library.name, work) for team in teams})
