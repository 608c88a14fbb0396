"""Timelines: rank 0 writes the operations with their times as a list of Chrome's trace format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rank_program import program
from ranks import run

from rdmacoll._horovod.timeline import start_timeline, stop_timeline
from rdmacoll.errors import ConfigError

START = "from pathlib import Path\nfrom rdmacoll._horovod.timeline import start_timeline, stop_timeline\n"
ODD_NAME = 'layer "1"\\bias\nü'


def spans(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The spans of a file, by the name of their row. Fails unless the file is a valid trace."""
    events = json.loads(path.read_text(encoding="utf-8"))
    assert events[0]["name"] == "start_time_since_epoch_in_micros"
    rows = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert len(set(rows.values())) == len(rows)
    found: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        assert event["ph"] in ("M", "X"), event
        if event["ph"] == "X":
            assert event["ts"] >= 0, event
            assert event["dur"] >= 0, event
            found.setdefault(rows[event["pid"]], []).append(event)
    return found


def ranks_of(body: str, folder: Path, **environ: str) -> list[Any]:
    """Runs `body` on two ranks, with `folder` as a path. Returns their reports."""
    start = START + f"folder = Path({str(folder)!r})\n"
    outcome = run(program(start + body), 2, env=environ)
    assert all(report["error"] is None for report in outcome.succeeded()), outcome.text()
    return outcome.reports


def test_the_file_has_the_operations_between_start_and_stop(tmp_path: Path) -> None:
    body = f"""
engine.allreduce(np.ones(3), name="before")
start_timeline(folder / f"rank-{{me}}.json", mark_cycles=True)
for step in range(3):
    engine.allreduce(np.ones(5, np.float32), name={ODD_NAME!r})
engine.broadcast(np.ones(2), root_rank=1, name="weights")
engine.allreduce(np.ones(7))
engine.allgather(np.ones((me + 1, 2)))
stop_timeline()
engine.allreduce(np.ones(3), name="after")
"""
    ranks_of(body, tmp_path)
    assert not (tmp_path / "rank-1.json").exists()
    found = spans(tmp_path / "rank-0.json")
    unnamed = {"allreduce without a name", "allgather without a name"}
    assert set(found) == {f"allreduce.{ODD_NAME}", "broadcast.weights", *unnamed}
    own = found[f"allreduce.{ODD_NAME}"]
    assert [event["name"] for event in own] == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE"] * 3
    for before, after in zip(own, own[1:]):
        assert before["ts"] + before["dur"] <= after["ts"] + 0.01  # microseconds, rounded
    arguments = {"bytes": 20, "dtype": "float32", "tensors": 1, "process_set": 0}
    assert [event["args"] for event in own] == [arguments] * 6
    assert [event["name"] for event in found["broadcast.weights"]] == ["NEGOTIATE_BROADCAST", "BROADCAST"]


def test_the_wait_for_a_late_rank_is_the_negotiation(tmp_path: Path) -> None:
    body = """
start_timeline(folder / "trace.json")
time.sleep(0.3 * me)
engine.allreduce(np.ones(5, np.float32), name="late")
stop_timeline()
"""
    ranks_of(body, tmp_path)
    wait, run = spans(tmp_path / "trace.json")["allreduce.late"]
    assert (wait["name"], run["name"]) == ("NEGOTIATE_ALLREDUCE", "ALLREDUCE")
    assert wait["dur"] > 200_000
    assert abs(wait["ts"] + wait["dur"] - run["ts"]) < 0.01


def test_another_path_completes_the_file_and_the_same_path_goes_on(tmp_path: Path) -> None:
    body = """
stop_timeline()
start_timeline(folder / "first")
engine.allreduce(np.ones(3), name="a")
start_timeline(folder / "first")
engine.allreduce(np.ones(3), name="b")
start_timeline(str(folder / "second"))
engine.allreduce(np.ones(3), name="c")
stop_timeline()
stop_timeline()
start_timeline(folder / "third")
engine.allreduce(np.ones(3), name="d")
"""
    ranks_of(body, tmp_path)
    names = {name: set(spans(tmp_path / name)) for name in ("first", "second")}
    assert names == {"first": {"allreduce.a", "allreduce.b"}, "second": {"allreduce.c"}}
    assert "allreduce.d" in spans(tmp_path / "third")


@pytest.mark.parametrize("variable", ["HOROVOD_TIMELINE", "RDMACOLL_TIMELINE"])
def test_a_variable_starts_the_timeline_with_the_world_and_shutdown_completes_it(
    tmp_path: Path, variable: str
) -> None:
    path = tmp_path / "trace.json"
    body = """
for step in range(200):  # also in plan mode, where no rank asks
    engine.allreduce(np.ones(1000), name="gradient")
rdmacoll.shutdown()
rdmacoll.init(timeline="none")
"""
    ranks_of(body, tmp_path, **{variable: str(path)})
    found = spans(path)
    assert len(found["allreduce.gradient"]) == 400
    assert "barrier without a name" in found


def test_dynamic_writes_nothing_until_a_program_starts_a_timeline(tmp_path: Path) -> None:
    body = """
os.chdir(folder)
engine.allreduce(np.ones(3), name="a")
start_timeline("trace.json")
engine.allreduce(np.ones(3), name="b")
stop_timeline()
"""
    ranks_of(body, tmp_path, HOROVOD_TIMELINE="DYNAMIC")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    assert set(spans(tmp_path / "trace.json")) == {"allreduce.b"}


def test_the_file_of_a_process_that_dies_is_a_valid_list(tmp_path: Path) -> None:
    body = """
start_timeline(folder / "trace.json")
engine.allreduce(np.ones(3), name="a")
time.sleep(1.2)  # the file is written once a second
engine.allreduce(np.ones(3), name="b")
if me == 0:
    os._exit(7)
"""
    outcome = run(program(START + f"folder = Path({str(tmp_path)!r})\n" + body), 2)
    assert outcome.ranks[0].code == 7
    assert {"allreduce.a", "allreduce.b"} <= set(spans(tmp_path / "trace.json"))


def test_a_failed_operation_has_its_error(tmp_path: Path) -> None:
    body = """
start_timeline(folder / "trace.json")
try:
    engine.allreduce(np.ones(3 + me), name="a")
except rdmacoll.MismatchError:
    pass
stop_timeline()
"""
    ranks_of(body, tmp_path)
    (event,) = spans(tmp_path / "trace.json")["allreduce.a"]
    assert event["name"] == "NEGOTIATE_ALLREDUCE"  # ranks disagree, so it never begins
    assert "shape" in event["args"]["error"]


def test_a_file_that_cannot_be_written_is_a_config_error_and_the_world_goes_on(tmp_path: Path) -> None:
    body = """
kept = []
for path in (folder / "missing" / "trace.json", folder, "/dev/null", "", "a\\0b", 7):
    try:
        start_timeline(path)
    except rdmacoll.ConfigError as error:
        kept.append(str(error))
assert engine.allreduce(np.ones(3), name="a")[0] == 1
"""
    start = START + f"folder = Path({str(tmp_path)!r})\n"
    outcome = run(program(start + body, after="report(kept)"), 2)
    first, second = outcome.succeeded()
    assert [len(first), len(second)] == [6, 3]
    missing = tmp_path / "missing" / "trace.json"
    assert first[0] == (
        f"the timeline {missing} cannot be written: no such file or directory. Name a file that this user "
        "can write."
    )
    assert "is a directory" in first[1]
    assert "no regular file" in first[2]
    assert all("file_path" in text for text in first[3:])
    assert first[3:] == second


def test_a_variable_with_such_a_file_ends_the_start_on_every_rank(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "trace.json"
    outcome = run(program(""), 2, env={"HOROVOD_TIMELINE": str(path)})
    assert all(rank.code != 0 for rank in outcome.ranks)
    for rank in outcome.ranks:
        assert f"the timeline {path} cannot be written: no such file or directory" in rank.output


def test_before_init_both_are_value_errors(tmp_path: Path) -> None:
    for call in (lambda: start_timeline(tmp_path / "trace.json"), stop_timeline):
        with pytest.raises(ValueError, match="not initialised"):
            call()
    with pytest.raises(ConfigError, match="file_path"):
        start_timeline(3)
