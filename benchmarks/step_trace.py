"""Shows one training step as a picture: when each gradient was ready, and what its sum waited for.

    python benchmarks/step_trace.py measure STEP.json
    python benchmarks/step_trace.py draw STEP.json PICTURE.png

`measure` starts two ranks for each number of threads. `draw` needs matplotlib: pip install 'rdmacoll[plot]'.
The step is that of `rdmacoll bench step` with a backward pass that waits: the 161 gradients of ResNet-50.
TensorFlow stamps each gradient and each sum with its own operation `Timestamp`. The engine's times are from
rank 0's timeline.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rdmacoll.benchmarks import resnet50
from rdmacoll.benchmarks.machine import machine_facts
from rdmacoll.benchmarks.team_rank.tensorflow_ops import pause

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "measurements"
STEP = FOLDER / "2026-11-28-step-trace.json"
RANKS = 2
BACKWARD_S = 0.1
WARM_UP, STEPS = 20, 15
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


def traced_steps(threads: int) -> dict[str, Any]:
    """Runs steps as one of two ranks. Returns rank 0's steps, with clock times in ms."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    import rdmacoll
    from rdmacoll.optimizer.reduce import GradientReducer

    rdmacoll.init()
    reducer = GradientReducer(name="step", op=rdmacoll.Sum)
    shapes = resnet50.shapes()
    values = [tf.fill(shape, 1.0) for shape in shapes]
    wait = pause(tf, "wait", BACKWARD_S / sum(len(shape) > 1 for shape in shapes))

    def stamp(*after: Any) -> Any:
        with tf.control_dependencies(after):
            return tf.timestamp()

    def traced(one: Any) -> Any:
        gradients = list(values)
        begin = stamp(one)
        for index in range(len(shapes) - 1, -1, -1):
            one = wait(one) if len(shapes[index]) > 1 else one
            gradients[index] = values[index] * one
        ready = [stamp(gradient) for gradient in gradients]
        sums = reducer(gradients)
        back = [stamp(sums[bucket.indices[0]]) for bucket in reducer.buckets]
        return tf.stack([begin, *ready]), tf.stack(back), stamp(*sums)

    # A tf.function would run the stamps, which have state, one after the other in the order of the program.
    step = tf.compat.v1.wrap_function(traced, [tf.TensorSpec((), tf.float32)])
    one = tf.constant(1.0)
    for _ in range(WARM_UP):
        step(one)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "timeline.json"
        rdmacoll.tensorflow.start_timeline(str(path))
        stamps = [[1e3 * value.numpy() for value in step(one)] for _ in range(STEPS)]
        rdmacoll.tensorflow.stop_timeline()
        found = {
            "threads": threads,
            "indices": [list(bucket.indices) for bucket in reducer.buckets],
            "stamps": [[ready.tolist(), back.tolist(), float(end)] for ready, back, end in stamps],
            "events": json.loads(path.read_text()) if rdmacoll.rank() == 0 else [],
        }
    rdmacoll.shutdown()
    return found


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
        submitted, agreed, moved = of_engine[number][which]
        times = {
            "first": min(ready[index] for index in indices),
            "ready": max(ready[index] for index in indices),
            "submitted": submitted,
            "agreed": agreed,
            "moved": moved,
            "back": back[number],
        }
        bucket: Bucket = {name: round(time - begin, 3) for name, time in times.items()}
        buckets.append({"bytes": sum(sizes[i] for i in indices), "gradients": len(indices), **bucket})
    return {
        "threads": found["threads"],
        "ready": [round(time - begin, 3) for time in sorted(ready)],
        "buckets": buckets,
        "end": round(end - begin, 3),
    }


def measure(counts: Sequence[int]) -> dict[str, Any]:
    """Starts two ranks for each number of threads. Returns machine and steps, for JSON."""
    steps = []
    for threads in counts:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "steps.json"
            run = [sys.executable, "-m", "rdmacoll.cli.main", "run", "-np", str(RANKS)]
            subprocess.run(
                [*run, sys.executable, __file__, "rank", str(threads), str(path)], check=True, timeout=LIMIT_S
            )
            steps.append(median_step(json.loads(path.read_text())))
    return {**machine_facts(), "ranks": RANKS, "steps": steps}


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
        threads = step["threads"]
        axis.set_title(
            f"{threads} thread{'s' if threads > 1 else ''} for operations", loc="left", fontsize=11
        )
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
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["measure", "draw", "rank"])
    parser.add_argument("arguments", nargs="+", metavar="FILE")
    parser.add_argument("--threads", default="1,2,4", help="measure: threads for operations, in turn")
    options = parser.parse_args()
    if options.what == "measure":
        found = measure([int(count) for count in options.threads.split(",")])
        Path(options.arguments[0]).write_text(text_of(found))
    elif options.what == "draw":
        draw(json.loads(Path(options.arguments[0]).read_text())).savefig(options.arguments[1], dpi=80)
    else:
        steps = traced_steps(int(options.arguments[0]))
        if steps["events"]:
            Path(options.arguments[1]).write_text(json.dumps(steps))


if __name__ == "__main__":
    main()
