"""Measures trainings by workers and servers, ours and TensorFlow's own, turn by turn in a run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable

from rdmacoll.benchmarks.benchmark_run import BenchmarkRun, Part
from rdmacoll.benchmarks.builds import ratios_to_build
from rdmacoll.benchmarks.compare import MACHINE, layout_of, teams_of
from rdmacoll.benchmarks.libraries import HostLayout
from rdmacoll.benchmarks.rpc.measure import by_link
from rdmacoll.benchmarks.training.libraries import (
    ALONE,
    CONTESTANTS,
    LIBRARIES,
    OURS,
    PEERS,
    takes_part_between_hosts,
)
from rdmacoll.benchmarks.training.models import Model
from rdmacoll.benchmarks.turns import Cell, Rules, Task, ratio

Row = dict[str, Any]

# The limit of one request in seconds. It allows for making graphs, for a step computed without servers, and
# for steps of seconds over a slow link.
_STEP_S = 400.0


@dataclass(frozen=True)
class Training:
    """A model, the edge of its images in pixels, and the images of one worker in a step."""

    model: Model
    image: int
    batch: int

    @property
    def title(self) -> str:
        """The title of the training."""
        return f"{self.model.title}, {self.batch} images of {self.image} x {self.image}"

    def work(self, updates: str) -> dict[str, Any]:
        """The work for a rank. Turns checks a work with few bytes in every turn."""
        return {
            "what": "training",
            "model": self.model.name,
            "shapes": [list(shape) for shape in self.model.shapes(self.image)],
            "image": self.image,
            "batch": self.batch,
            "rate": self.model.rate,
            "updates": updates,
            "bytes": self.model.variables_bytes(self.image),
            "keep": True,
        }


@dataclass(frozen=True)
class TrainingRequest:
    """The measurement that is requested. contestants: names. build: the tree of another build."""

    contestants: Sequence[str]
    trainings: Sequence[Training]
    workers: int
    servers: int
    links: Sequence[str]
    cache: Path
    rules: Rules
    seconds: float
    build: Path | None = None


def row_of(training: Training, cells: Mapping[str, Cell], workers: int) -> Row:
    """The row of one training, with a cell for each contestant:
    - microseconds per step at the slowest worker;
    - images per second and MB/s (10^6 bytes, each way) of all workers;
    - the share of communication in a step, beside workers that train each for itself;
    - milliseconds of processor for a step of one worker, of workers and of servers;
    - peak memory, of all workers and of all servers;
    - the peers' ratios to each of ours, and those of another build, above 1 if we are faster.
    """
    alone = cells.get(ALONE)
    size = training.model.variables_bytes(training.image)
    row: Row = {
        "model": training.model.name,
        "title": training.title,
        "image": training.image,
        "batch": training.batch,
        "variables_bytes": size,
        "time_us": {name: cell.summary() for name, cell in cells.items()},
        "images_per_s": {},
        "MB_per_s": {},
        "communication": {},
        "cpu_ms": {},
        "peak_bytes": {},
        "ratio": {},
    }
    for name, summary in row["time_us"].items():
        steps_per_s = workers * 1e6 / summary["median"]
        row["images_per_s"][name] = steps_per_s * training.batch
        row["MB_per_s"][name] = steps_per_s * size / 1e6 if name != ALONE else 0.0
        if alone is not None:
            row["communication"][name] = max(0.0, 1.0 - 1.0 / ratio(cells[name], alone))
        for what, values, share in (
            ("cpu_ms", summary["cpu_us_of"], 1e3 * workers),
            ("peak_bytes", summary["peak_bytes_of"], 1),
        ):
            row[what][name] = {
                "workers": sum(values[:workers]) / share,
                "servers": sum(values[workers:]) / share,
            }
    for ours in (name for name in OURS if name in cells):
        row["ratio"][ours] = {name: ratio(cell, cells[ours]) for name, cell in cells.items() if name in PEERS}
    row["builds"] = ratios_to_build(cells)
    return row


class Measurement(BenchmarkRun):
    """Every model, over every link."""

    def __init__(self, request: TrainingRequest, write: Callable[[str], None]) -> None:
        super().__init__(replace(request.rules, step_s=_STEP_S), request.seconds, write)
        self._request = request

    def run(self, each: Callable[[Part], None]) -> None:
        """Measures all parts. `each` is called with every completed part."""
        request = self._request
        self._take(by_link(request.links, request.workers, request.servers, self._part), each)

    def _part(self, link: str, title: str) -> Part:
        request = self._request
        names = [name for name in request.contestants if link == MACHINE or takes_part_between_hosts(name)]
        part: Part = {"link": link, "title": title, "libraries": {}, "rows": []}
        with (
            tempfile.TemporaryDirectory(prefix="training-") as folder,
            layout_of(request.workers + request.servers, link, Path(folder), request.servers) as (
                layout,
                facts,
            ),
        ):
            part.update(facts)
            for training in request.trainings:
                if self._is_out_of_time(f"{title}: {training.title}"):
                    continue
                cells, versions = self._cells(names, training, layout)
                part["libraries"].update(versions)
                part["rows"].append(row_of(training, cells, request.workers))
                self._write(f"  {training.title} done")
        return part

    def _cells(
        self, names: Sequence[str], training: Training, layout: HostLayout
    ) -> tuple[dict[str, Cell], dict[str, dict[str, str]]]:
        """Measures a training with ranks of its own, since the ranks of a large model keep gigabytes."""
        chosen = {CONTESTANTS[name].library for name in names}
        libraries = [row for name, row in LIBRARIES.items() if name in chosen]
        with teams_of(libraries, layout, self._request.cache, self._report, self._request.build) as teams:
            started = [team.library.name for team in teams]
            tasks = {
                name: Task(CONTESTANTS[name].library, training.work(CONTESTANTS[name].updates))
                for name in names
                if CONTESTANTS[name].library in started
            }
            if started:
                tasks[ALONE] = Task(started[0], training.work("none"))
            versions = {team.library.name: team.facts for team in teams}
            return self._turns.take(teams, tasks), versions
