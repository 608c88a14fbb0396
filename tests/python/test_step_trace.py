"""The picture of a training step: which times of TensorFlow and of the engine belong together."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from ranks import ROOT

from rdmacoll.benchmarks import resnet50

sys.path.insert(0, str(ROOT / "benchmarks"))

import step_trace

COUNT = len(resnet50.shapes())
LAST, OTHERS = [COUNT - 1], list(range(COUNT - 2, -1, -1))


def spans(row: int, name: str, steps: list[tuple[float, float, float]]) -> list[dict[str, Any]]:
    """The events of a bucket in a timeline. Times: submitted, agreed, moved, in microseconds."""
    found = [{"name": "process_name", "ph": "M", "pid": row, "args": {"name": f"allreduce.{name}"}}]
    for begin, start, end in steps:
        found += [
            {"name": "NEGOTIATE_ALLREDUCE", "ph": "X", "pid": row, "ts": begin, "dur": start - begin},
            {"name": "ALLREDUCE", "ph": "X", "pid": row, "ts": start, "dur": end - start},
        ]
    return found


def test_a_bucket_has_the_times_of_its_gradients_and_of_its_sum():
    epoch = {"start_time_since_epoch_in_micros": 5_000_000}
    events = [
        {"name": "start_time_since_epoch_in_micros", "ph": "M", "pid": 0, "args": epoch},
        *spans(1, "step/bucket_0", [(1000, 2000, 3000), (101_000, 102_000, 103_000)]),
        *spans(2, "another", [(0, 0, 1)]),
        *spans(3, "step/bucket_1", [(4000, 5000, 6000), (104_000, 105_000, 106_000)]),
    ]

    def stamps(begin: float, length: float) -> list[Any]:
        return [
            [begin, *(begin + 0.01 * (COUNT - i) for i in range(COUNT))],
            [begin + 7, begin + 8],
            begin + length,
        ]

    # The second step is longer, so the first one has the median length.
    found = {
        "program": "operations",
        "threads": 2,
        "indices": [LAST, OTHERS],
        "stamps": [stamps(5000.0, 9), stamps(5100.0, 19)],
        "events": events,
    }
    step = step_trace.median_step(json.loads(json.dumps(found)))
    assert (step["threads"], step["end"], len(step["ready"])) == (2, 9.0, COUNT)
    first, second = step["buckets"]
    shapes = resnet50.shapes()
    assert first == {
        "bytes": 4 * math.prod(shapes[-1]),
        "gradients": 1,
        "first": 0.01,
        "ready": 0.01,
        "submitted": 1.0,
        "agreed": 2.0,
        "moved": 3.0,
        "back": 7.0,
    }
    assert first["bytes"] + second["bytes"] == resnet50.total_bytes()
    assert (second["first"], second["ready"]) == (0.02, round(0.01 * COUNT, 3))
    assert [second[name] for name in ("submitted", "agreed", "moved", "back")] == [4.0, 5.0, 6.0, 8.0]


def test_the_written_text_is_what_was_found():
    found = json.loads(step_trace.STEP.read_text())
    assert json.loads(step_trace.text_of(found)) == found
    for step in found["steps"]:
        assert len(step["ready"]) == COUNT
        for bucket in step["buckets"]:
            times = [bucket[name] for name in ("first", "ready", "moved", "back")]
            assert times == sorted(times)
            assert bucket["submitted"] <= bucket["agreed"] <= bucket["moved"]
