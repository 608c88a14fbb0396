"""Shows one training step as a picture: when each gradient was ready, and what its sum waited for.

    python benchmarks/step_trace.py measure STEP.json
    python benchmarks/step_trace.py measure FIT.json --programs fit,loop --threads 0,1
    python benchmarks/step_trace.py draw STEP.json PICTURE.png

`measure` starts two ranks for each program and number of threads. `draw` needs matplotlib:
pip install 'rdmacoll[plot]'. The programs are in `traced_steps.py`; "operations" is the step of
`rdmacoll bench step` with a backward pass that waits. The engine's times are from rank 0's timeline, which
requests to asynchronous servers are not in.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from traced_steps import PROGRAMS, SERVERS, traced_steps

from rdmacoll._base.text import counted
from rdmacoll.benchmarks import resnet50
from rdmacoll.benchmarks.machine import machine_facts

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "measurements"
STEP = FOLDER / "2026-11-28-step-trace.json"
RANKS = 2
LIMIT_S = 120.0

# A bucket's times in ms: {bytes, gradients, first, ready, submitted, agreed, moved, back}.
Bucket = dict[str, Any]
# The phases of a bucket: its begin, its end, colour, meaning.
PHASES = (
    ("first", "ready", "#d0d7de", "its gradients become ready"),
    ("ready", "submitted", "#e16f24", "TensorFlow has not started the operation"),
    ("submitted", "agreed", "#eac54f", "waits for the other rank, or for earlier buckets"),
    ("agreed", "moved", "#1a7f8e", "is summed"),
    ("moved", "back", "#8250df", "TensorFlow has not started what follows"),
)


def engine_times(events: Sequence[dict[str, Any]]) -> dict[int, list[tuple[float, float, float]]]:
    """The times of a timeline by the number of the bucket: submitted, agreed, moved in each step, in ms."""
    epoch = 0.0
    bucket_of: dict[int, int] = {}
    spans: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event["name"] == "start_time_since_epoch_in_micros":
            epoch = event["args"]["start_time_since_epoch_in_micros"]
        elif event["name"] == "process_name":
            name = event["args"]["name"]
            if "/bucket_" in name:
                bucket_of[event["pid"]] = int(name.split("/bucket_")[1].split("/")[0])
        elif event["ph"] == "X" and event["pid"] in bucket_of:
            spans.setdefault(bucket_of[event["pid"]], []).append(event)
    found: dict[int, list[tuple[float, float, float]]] = {}
    for bucket, of_bucket in spans.items():
        waits = [each for each in of_bucket if each["name"].startswith("NEGOTIATE_")]
        sums = [each for each in of_bucket if not each["name"].startswith("NEGOTIATE_")]
        found[bucket] = [
            tuple((epoch + time) / 1e3 for time in (wait["ts"], run["ts"], run["ts"] + run["dur"]))
            for wait, run in zip(waits, sums)
        ]  # type: ignore[misc]
    return found


def median_step(found: dict[str, Any]) -> dict[str, Any]:
    """The step of median length, in ms from its begin: {threads, ready, buckets, end}."""
    stamps = found["stamps"]
    lengths = [end - ready[0] for ready, _, end in stamps]
    which = lengths.index(statistics.median_low(lengths))
    (begin, *ready), back, end = stamps[which]
    of_engine = engine_times(found["events"])
    sizes = [4 * math.prod(shape) for shape in resnet50.shapes()]
    buckets: list[Bucket] = []
    for number, indices in enumerate(found["indices"]):
        first, last = min(ready[index] for index in indices), max(ready[index] for index in indices)
        # A request to asynchronous servers counts as agreed when its last gradient is ready.
        submitted, agreed, moved = (
            of_engine[number][which] if number in of_engine else (last, last, back[number])
        )
        times = {
            "first": first,
            "ready": last,
            "submitted": submitted,
            "agreed": agreed,
            "moved": moved,
            "back": back[number],
        }
        bucket: Bucket = {name: round(time - begin, 3) for name, time in times.items()}
        buckets.append({"bytes": sum(sizes[i] for i in indices), "gradients": len(indices), **bucket})
    return {
        "program": found["program"],
        "threads": found["threads"],
        "ready": [round(time - begin, 3) for time in sorted(ready)],
        "buckets": buckets,
        "end": round(end - begin, 3),
    }


def measure(programs: Sequence[str], counts: Sequence[int]) -> dict[str, Any]:
    """Starts two ranks for each program and number of threads. Returns machine and steps, for JSON."""
    steps = []
    for program, threads in itertools.product(programs, counts):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "steps.json"
            ranks = RANKS + (program in SERVERS)
            run = [sys.executable, "-m", "rdmacoll", "run", "-np", str(ranks)]
            subprocess.run(
                [*run, sys.executable, __file__, "rank", program, str(threads), folder],
                check=True,
                timeout=LIMIT_S,
            )
            steps.append(median_step(json.loads(path.read_text())))
    return {**machine_facts(), "ranks": RANKS, "steps": steps}


def title_of(step: dict[str, Any]) -> str:
    """The title of a panel.

    >>> title_of({"program": "fit", "threads": 0})
    "fit: TensorFlow's default of threads"
    """
    threads = counted(step["threads"], "thread") if step["threads"] else None
    text = "TensorFlow's default of threads" if threads is None else f"{threads} for operations"
    return f"{step['program']}: {text}"


def size_text(size: int) -> str:
    """A size in words.

    >>> size_text(4000), size_text(26_000_000)
    ('4 KiB', '24.8 MiB')
    """
    return f"{size / 2**10:.0f} KiB" if size < 2**20 / 10 else f"{size / 2**20:.1f} MiB"


def text_of(found: dict[str, Any]) -> str:
    """The JSON, with a line for each list of numbers and for each bucket."""
    steps = []
    for step in found["steps"]:
        buckets = ",\n   ".join(json.dumps(bucket) for bucket in step["buckets"])
        others = {name: value for name, value in step.items() if name != "buckets"}
        steps.append(f'{json.dumps(others)[:-1]},\n  "buckets": [\n   {buckets}]}}')
    facts = {name: value for name, value in found.items() if name != "steps"}
    return f'{json.dumps(facts)[:-1]},\n "steps": [\n {f",{chr(10)} ".join(steps)}]}}\n'


def draw(found: dict[str, Any]) -> Any:
    """Returns the figure, with a panel for each number of threads."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    steps = found["steps"]
    figure, panels = pyplot.subplots(
        len(steps), 1, figsize=(11, 3.4 * len(steps)), sharex=True, squeeze=False
    )
    for (axis,), step in zip(panels, steps):
        last = step["ready"][-1]
        rows = len(step["buckets"])
        axis.axvspan(0, last, color="#f3f5f7", zorder=0)
        axis.plot(step["ready"], [0] * len(step["ready"]), "|", color="#57606a", markersize=9)
        for row, bucket in enumerate(step["buckets"], 1):
            for begin, end, colour, _ in PHASES:
                axis.barh(row, max(0.0, bucket[end] - bucket[begin]), 0.72, bucket[begin], color=colour)
        axis.axvline(last, color="#57606a", linewidth=1)
        axis.axvline(step["end"], color="#cf222e", linewidth=1.5)
        exposed = step["end"] - last
        axis.text(step["end"], -0.9, f" {exposed:.1f} ms exposed", color="#cf222e", va="center")
        labels = [f"sum of {size_text(bucket['bytes'])}" for bucket in step["buckets"]]
        axis.set(ylim=(rows + 0.6, -1.4), yticks=range(rows + 1), yticklabels=["gradients", *labels])
        axis.tick_params(axis="y", length=0)
        axis.set_title(title_of(step), loc="left", fontsize=11)
        for side in ("top", "right", "left"):
            axis.spines[side].set_visible(False)
    panels[-1][0].set_xlabel(
        "ms since the step's begin; the backward pass is grey, the step ends at the red line"
    )
    handles = [Patch(color=colour, label=meaning) for _, _, colour, meaning in PHASES]
    figure.legend(handles=handles, loc="lower center", ncols=3, frameon=False)
    figure.suptitle(
        f"One training step, {found['ranks']} ranks, {found['processor']}, {found['cores']} cores"
    )
    inch = 1 / figure.get_figheight()  # as a share of the height
    figure.tight_layout(rect=(0, 0.6 * inch, 1, 1 - 0.2 * inch))
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["measure", "draw", "rank"])
    parser.add_argument("arguments", nargs="+", metavar="FILE")
    parser.add_argument(
        "--programs", default=PROGRAMS[0], help=f"measure: programs, in turn, of {', '.join(PROGRAMS)}"
    )
    parser.add_argument(
        "--threads", default="1,2,4", help="measure: threads for operations, in turn; 0: the default"
    )
    options = parser.parse_args()
    if options.what == "measure":
        counts = [int(count) for count in options.threads.split(",")]
        found = measure(options.programs.split(","), counts)
        Path(options.arguments[0]).write_text(text_of(found))
    elif options.what == "draw":
        draw(json.loads(Path(options.arguments[0]).read_text())).savefig(options.arguments[1], dpi=80)
    else:
        program, threads, folder = options.arguments
        steps = traced_steps(program, int(threads), Path(folder))
        if steps is not None:
            (Path(folder) / "steps.json").write_text(json.dumps(steps))


if __name__ == "__main__":
    main()
