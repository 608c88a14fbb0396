"""A training step: gradients become ready one after the other, and the backward pass hides a share of
their sums."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable

from rdmacoll._base.text import bytes_text
from rdmacoll.benchmarks import resnet50
from rdmacoll.benchmarks.builds import Ratio, ratios_of as ratios_of_builds, ratios_to_build
from rdmacoll.benchmarks.compare import MACHINE, layout_of, teams_of
from rdmacoll.benchmarks.libraries import LIBRARIES, OURS, PEERS, THREADS, Library, other_build
from rdmacoll.benchmarks.processor_load import LoadWatch
from rdmacoll.benchmarks.turns import Cell, Rules, Task, Turns, ratio

OUR_OP = OURS["tensorflow"]
BUCKETED = (OUR_OP, other_build(OUR_OP))  # the libraries that take the size of a bucket
MANNERS = ("wait", "compute")
RAW_MPI = 1.0  # goal: time of the best raw MPI, tensor by tensor / ours
HOROVOD = 3.0  # goal: Horovod's time / ours


@dataclass(frozen=True)
class StepRequest:
    """The measurement that is requested. manner: how a backward pass uses the processor. threads: how many
    operations TensorFlow runs at once, 0 for its default. build: the tree of another build."""

    libraries: Sequence[str]
    ranks: int
    link: str
    manner: str
    threads: int
    backward_s: float
    buckets: Sequence[int]
    cache: Path
    rules: Rules
    seconds: float
    build: Path | None = None


def hidden_share(step: float, backward: float, alone: float) -> float:
    """The share of the communication that a step hides behind its backward pass. `alone`: the time of the
    communication by itself. All times have one unit.

    >>> hidden_share(12.0, 10.0, 8.0), hidden_share(18.0, 10.0, 8.0), hidden_share(9.0, 10.0, 8.0)
    (0.75, 0.0, 1.0)
    """
    return min(1.0, max(0.0, (backward + alone - step) / alone))


def tasks_of(request: StepRequest, names: Sequence[str]) -> dict[str, Task]:
    """The tasks that take turns. Each library reduces its gradients alone. Operations also run the
    backward pass and the step; those of our builds do so for every bucket size. Keys are "library what"
    and "library what bucket"."""
    gradients = {"shapes": resnet50.shapes(), "keep": True}
    backward = {
        **gradients,
        "layers": resnet50.layers_backward(resnet50.shapes()),
        "manner": request.manner,
        "backward_s": request.backward_s,
    }
    tasks = {}
    for name in names:
        if LIBRARIES[name].group == "limit":
            tasks[name] = Task(name, {"what": "sum", "bytes": resnet50.total_bytes()})
        elif LIBRARIES[name].group == "numpy":
            tasks[f"{name} gradients"] = Task(name, {"what": "gradients", **gradients})
        else:
            tasks[f"{name} backward"] = Task(name, {"what": "backward", **backward})
            for bucket in request.buckets if name in BUCKETED else [None]:
                # First the step: the engine's trials of ways take place in it, as in a training. Gradients
                # alone are not written anew, so other ways may be the fastest.
                for what, work in (("step", backward), ("gradients", gradients)):
                    key = f"{name} {what}" + (f" {bucket}" if bucket else "")
                    tasks[key] = Task(name, {"what": what, "bucket_bytes": bucket, **work})
    return tasks


def with_threads(library: Library, threads: int) -> Library:
    """The library, whose operations run in this many threads. 0: TensorFlow's default."""
    if THREADS not in library.options:
        return library
    return replace(library, options={**library.options, THREADS: str(threads)})


def threads_text(threads: int) -> str:
    """In words."""
    return f"{threads}" if threads else "its default"


def rows_of(cells: Mapping[str, Cell], names: Sequence[str], buckets: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each library and bucket size, in milliseconds: {library, bucket_bytes, gradients,
    backward, step, hidden, exposed}. Raw MPI has no step: it has no operations that overlap with a
    backward pass."""
    rows = []
    for name in names:
        group = LIBRARIES[name].group
        for bucket in buckets if name in BUCKETED else [None]:
            suffix = f" {bucket}" if bucket else ""
            found: dict[str, Any] = {"library": name, "bucket_bytes": bucket}
            if group == "limit":
                keys = {"gradients": name}
            else:
                keys = {"gradients": f"{name} gradients{suffix}", "backward": f"{name} backward"}
                keys["step"] = f"{name} step{suffix}"
            times = {what: cells[key].summary() for what, key in keys.items() if key in cells}
            if "gradients" not in times:
                continue
            found["times_us"] = times
            found.update({what: summary["median"] / 1e3 for what, summary in times.items()})
            if "step" in found and "backward" in found:
                found["hidden"] = hidden_share(found["step"], found["backward"], found["gradients"])
                found["exposed"] = found["step"] - found["backward"]
            rows.append(found)
    return rows


def best_bucket(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Our row with the shortest step; None if we have no step."""
    own = [row for row in rows if row["library"] == OUR_OP and "step" in row]
    return min(own, key=lambda row: float(row["step"])) if own else None


def level_with(rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> list[int]:
    """The bucket sizes that this run cannot tell from the best one: their fastest turn is no slower than
    its slowest."""
    slowest = max(best["times_us"]["step"]["turns"])
    others = [row for row in rows if row["library"] == OUR_OP and "step" in row and row is not best]
    return [row["bucket_bytes"] for row in others if min(row["times_us"]["step"]["turns"]) <= slowest]


def ratios_of(cells: Mapping[str, Cell], bucket: int) -> dict[str, float]:
    """Returns, by peer, the time of its gradients alone / our time with this bucket size."""
    own = cells.get(f"{OUR_OP} gradients {bucket}")
    if own is None:
        return {}
    return {
        key.split()[0]: ratio(cell, own)
        for key, cell in cells.items()
        if key.endswith(" gradients") and key.split()[0] in PEERS
    }


def step_ratios_of(rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> dict[str, float]:
    """Returns, by peer, the time of its step / our time."""
    return {
        row["library"]: float(row["step"]) / float(best["step"])
        for row in rows
        if row["library"] in PEERS and "step" in row
    }


def builds_of(manner: str, cells: Mapping[str, Cell]) -> list[Ratio]:
    """The ratios of another build to this one, of gradients and steps."""
    times = {key: cell.summary() for key, cell in cells.items() if " backward" not in key}
    ratios = ratios_to_build({key: cells[key] for key in times})
    return ratios_of_builds(manner, {"builds": ratios, "time_us": times})


def missed(ratios: Mapping[str, float]) -> list[str]:
    """A sentence for each missed goal."""
    found = []
    for name, value in ratios.items():
        goal = HOROVOD if "horovod" in name else RAW_MPI
        if value < goal:
            found.append(
                f"our operation is {value:.2f} times as fast as {LIBRARIES[name].title}; the goal is "
                f"{goal:g} times"
            )
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of Markdown; times are milliseconds."""
    lines = [
        "| | buckets | gradients alone | backward pass | step | exposed | hidden |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = [
            LIBRARIES[row["library"]].title,
            bytes_text(row["bucket_bytes"] or 0) if row["bucket_bytes"] else "",
        ]
        for what in ("gradients", "backward", "step"):
            quiet = row["times_us"].get(what, {}).get("quiet", True)
            cells.append(f"{row[what]:.1f}{'' if quiet else ' (L)'}" if what in row else "")
        cells.append(f"{row['exposed']:.1f}" if "exposed" in row else "")
        cells.append(f"{100 * row['hidden']:.0f} %" if "hidden" in row else "")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def measure(
    request: StepRequest, folder: Path, write: Callable[[str], None], report: Callable[[str], None]
) -> tuple[dict[str, Cell], dict[str, dict[str, str]]]:
    """Measures the request. Returns the cells by task, and the facts of each library."""
    turns = Turns(LoadWatch(), request.rules, time.monotonic() + request.seconds, report)
    limit = "memory" if request.link == MACHINE else "stream"
    names = [n for n in request.libraries if LIBRARIES[n].group != "limit" or n == limit]
    libraries = [with_threads(LIBRARIES[name], request.threads) for name in names]
    with (
        layout_of(request.ranks, request.link, folder) as (layout, _),
        teams_of(libraries, layout, request.cache, report, request.build) as teams,
    ):
        facts = {team.library.name: team.facts for team in teams}
        write(f"backward pass: {request.manner}; TensorFlow's threads: {threads_text(request.threads)}")
        return turns.take(teams, tasks_of(request, [team.library.name for team in teams])), facts
