"""The benchmarks that start their own ranks, and those of single collectives, from end to end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from command_lines import command_line
from marks import slow
from ranks import clean_environment

from rdmacoll.benchmarks.team_rank import __main__ as team_rank, job, kinds
from rdmacoll.benchmarks.team_rank.values import pattern
from rdmacoll.cli import measure
from rdmacoll.cli.main import commands

QUICK = ["--turns", "1", "--burst", "0.001", "--foreign", "1"]


def test_libraries_take_turns_in_one_run(tmp_path):
    code, found, output = command_line(
        tmp_path,
        *["bench", "compare", "--ours", "rdmacoll", "--peers", "openmpi", "--ranks", "2"],
        *["--links", "machine", "--sizes", "8,64K", "--seconds", "100", *QUICK],
    )
    assert code == 0, output
    (part,) = found["parts"]
    small, large = part["rows"]
    assert set(small["time_us"]) == {"rdmacoll", "openmpi", "rdmacoll plain", "openmpi plain"}
    assert set(large["time_us"]) == {"rdmacoll", "openmpi", "memory"}
    for row in part["rows"]:
        assert row["best"]["numpy"]["ratio"] == row["ratio"]["openmpi"] > 0
    assert small["best_plain"]["numpy"]["ratio"] > 0
    assert found["wrong"] == 0
    assert found["left_out"] == []
    assert "Open MPI" in part["libraries"]["openmpi"]["version"]
    assert "allreduce, 2 ranks on one machine" in output
    assert re.search(r"^bytes +rdmacoll +plain call +Open MPI", output, re.M), output


def test_other_collectives_are_compared(tmp_path):
    code, found, output = command_line(
        tmp_path,
        *["bench", "compare", "--collectives", "gather,broadcast"],
        *["--ours", "rdmacoll", "--peers", "openmpi"],
        *["--ranks", "3", "--links", "machine", "--inputs", "written", "--sizes", "20,64K", *QUICK],
    )
    assert code == 0, output
    assert [(part["collective"], [row["bytes"] for row in part["rows"]]) for part in found["parts"]] == [
        ("gather", [12, 65532]),  # the same for each rank
        ("broadcast", [20, 65536]),
    ]
    small, large = found["parts"][0]["rows"]
    assert set(small["time_us"]) == {"rdmacoll", "openmpi", "rdmacoll plain", "openmpi plain"}
    assert set(large["time_us"]) == {"rdmacoll", "openmpi"}
    assert found["wrong"] == 0
    assert "gather, 3 ranks on one machine" in output


@pytest.mark.parametrize("inputs", ["kept", "written"])
def test_roots_of_a_compared_collective(inputs):
    class World:
        rank, ranks = 0, 3

        def barrier(self):
            order.append("barrier")

    order = []

    def prepare(array, count, place):
        assert count == 6
        return lambda: order.append((place.root, array.tolist())) or (array if place.root == 0 else None)

    work = {"what": "scatter", "bytes": 24, "inputs": inputs}
    one = job.Collective(work, World(), prepare)
    assert one.check(1) == 1  # rank 0 must get two elements
    (root, values) = order.pop()
    assert (root, values) == (1 if inputs == "kept" else 0, list(pattern(0, 1, 6)))
    for _ in range(2):
        if one.before is not None:
            one.before()
        one.call()
    zeros = [0.0] * 6
    wanted = {
        "written": ["barrier", (0, zeros), "barrier", (0, zeros)],
        "kept": [(0, values), (1, values)],
    }
    assert order == wanted[inputs]


def test_what_is_not_measured_in_time_is_said(tmp_path):
    code, found, _ = command_line(
        tmp_path,
        *["bench", "compare", "--ours", "rdmacoll", "--peers", "", "--ranks", "2"],
        *["--links", "machine", "--sizes", "8,16", "--seconds", "0", *QUICK],
    )
    assert code == 1
    assert found["left_out"] == ["not measured within 0 s: allreduce, 2 ranks on one machine"]


def test_a_terminated_comparison_leaves_nobody_behind(tmp_path):
    def left() -> list[str]:
        lines = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        return [line for line in lines if str(tmp_path) in line]

    options = ["--ours", "rdmacoll", "--peers", "openmpi", "--ranks", "2", "--links", "machine"]
    run = subprocess.Popen(
        [sys.executable, "-m", "rdmacoll", "bench", "compare", *options, "--burst", "5"],
        env=clean_environment({"TMPDIR": str(tmp_path)}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 60
        while len(left()) < 6:  # two ranks each of rdmacoll, Open MPI (and its launcher), and the limit
            assert time.monotonic() < end, left()
            time.sleep(0.05)
        run.terminate()
        assert run.wait(60) == 128 + signal.SIGTERM
    finally:
        run.kill()
        run.wait()
    assert left() == []
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_that_is_terminated_amid_a_fork_ends(tmp_path):
    program = """
import os, signal, sys
from rdmacoll.cli.main import main
ending = [signal.SIGTERM]
os.register_at_fork(before=lambda: ending and os.kill(os.getpid(), ending.pop()))
sys.argv[1:] = "bench compare --ours rdmacoll --peers openmpi --ranks 2 --links machine --burst 5".split()
main()
"""
    environment = clean_environment({"TMPDIR": str(tmp_path)})
    run = subprocess.run([sys.executable, "-c", program], env=environment, timeout=60, check=False)
    assert run.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("link", [slow("1"), slow("10")])
def test_links_are_shaped_and_streams_show_their_rate(tmp_path, link):
    code, found, output = command_line(
        tmp_path,
        *["bench", "compare", "--ours", "rdmacoll", "--peers", "openmpi", "--ranks", "4"],
        *["--links", link, "--sizes", "4M", "--seconds", "200", *QUICK],
    )
    assert code == 0, output
    (row,) = found["parts"][0]["rows"]
    assert set(row["time_us"]) == {"rdmacoll", "openmpi", "stream"}
    assert found["parts"][0]["mtu"] == 1500
    assert f"{link} Gbit/s, MTU 1500, cubic" in output
    assert re.search(r"^bytes +rdmacoll +Open MPI +best peer", output, re.M)
    assert re.search(r"^cores busy +rdmacoll +Open MPI", output, re.M)
    # A shorter time would mean that the link is not shaped. The token bucket lets some bytes through at
    # once, and a slice may begin while bytes of the one before are under way, so the median counts.
    assert row["time_us"]["stream"]["median"] >= 0.8 * (4 << 20) * 8 / (float(link) * 1e3)


def test_overhead_is_one_page(tmp_path):
    code, found, output = command_line(
        tmp_path, "bench", "overhead", "--starts", "1", "--rest", "0.1", *QUICK
    )
    assert code == 0, output
    values = {row["what"]: row for row in found["rows"]}
    assert len(values) == 12
    assert values["start until all ranks have joined"]["goal"] == 300
    assert all(row["value"] > 0 for name, row in values.items() if "idle" not in name)


@pytest.mark.parametrize("manner", [slow("wait"), slow("compute")])
def test_a_step_hides_what_it_can(tmp_path, manner):
    code, found, output = command_line(
        tmp_path,
        *["bench", "step", "--peers", "openmpi", "--backward", manner, "--buckets", "4M,25M"],
        *["--threads", "0,2", "--backward-ms", "50", "--seconds", "200", *QUICK],
    )
    assert code == 0, output
    assert [part["threads"] for part in found["parts"]] == [0, 2]
    for part in found["parts"]:
        ours = [row for row in part["rows"] if row["library"] == "rdmacoll-op"]
        assert {row["bucket_bytes"] for row in ours} == {4 << 20, 25 << 20}
        assert all(0 <= row["hidden"] <= 1 for row in ours)
        assert all(row["exposed"] == row["step"] - row["backward"] for row in ours)
        assert part["best_bucket_bytes"] in (4 << 20, 25 << 20)
        assert part["ratio"]["openmpi"] > 0
    threads = [part["libraries"]["rdmacoll-op"]["threads"] for part in found["parts"]]
    assert threads == ["TensorFlow's defaults", "intra 1, inter 2"]


def test_consistency_says_what_does_not_hold_and_ends_well(tmp_path):
    arguments = ["bench", "consistency", "--min", "1K", "--max", "2K", "--turns", "1", "--burst", "0.001"]
    code, found, output = command_line(tmp_path, *arguments, ranks=2)
    assert code == 0, output
    assert [row["bytes"] for row in found["rows"]] == [1024, 2048]
    assert {len(row["time_us"]) for row in found["rows"]} == {5}
    assert found["wrong"] == 0


@pytest.mark.parametrize(
    "collective",
    [
        "alltoall",
        "reduce",
        slow("reducescatter"),
        slow("allgather"),
        slow("broadcast"),
        slow("gather"),
        slow("scatter"),
    ],
)
@pytest.mark.parametrize("calls", ["plain", slow("prepared")])
def test_every_collective_is_measured_beside_the_peer(tmp_path, collective, calls):
    inputs = "written" if collective in ("reduce", "allgather", "scatter") else "kept"
    code, found, output = command_line(
        tmp_path,
        *["bench", collective, "--min", "8", "--max", "4K", "--step", "64", "--burst", "0.001"],
        *["--peers", "openmpi", "--calls", calls, "--inputs", inputs],
        ranks=3,
    )
    assert code == 0, output
    assert [row["wrong"] for row in found["rows"]] == [0, 0]
    assert set(found["ratio"]["openmpi"]) == {str(row["bytes"]) for row in found["rows"]}


@pytest.mark.parametrize("root", range(3))
@pytest.mark.parametrize("name", kinds.KINDS)
def test_what_each_rank_must_get(name, root):
    ranks, kind = 3, kinds.KINDS[name]
    places = [kinds.RankOfWorld(rank, ranks, root) for rank in range(ranks)]
    values = [
        np.arange(kind.input_elements(6, place), dtype=np.float32) + 100 * place.rank for place in places
    ]
    got = [kind.expected(values, place) for place in places]
    total = values[0] + values[1] + values[2]
    wanted = {
        "allreduce": [total] * 3,
        "reducescatter": [total[:2], total[2:4], total[4:]],
        "allgather": [[0, 1, 100, 101, 200, 201]] * 3,
        "alltoall": [[0, 1, 100, 101, 200, 201], [2, 3, 102, 103, 202, 203], [4, 5, 104, 105, 204, 205]],
        "broadcast": [values[root]] * 3,
        "reduce": [total if rank == root else None for rank in range(ranks)],
        "gather": [[0, 1, 100, 101, 200, 201] if rank == root else None for rank in range(ranks)],
        "scatter": [values[root][2 * rank : 2 * rank + 2] for rank in range(ranks)],
    }[name]
    for mine, right in zip(got, wanted):
        assert (mine is None) == (right is None)
        assert mine is None or mine.tolist() == list(right)


class Clock:
    """Stands still, but for what tests add."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.seconds += seconds

    def perf_counter(self) -> float:
        return self.seconds


def test_writes_and_barriers_are_not_timed(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(team_rank, "time", clock)
    monkeypatch.setattr(measure, "time", clock)
    assert team_rank._seconds_after(lambda: clock.add(10), lambda: clock.add(1), 3) == 3
    monkeypatch.setattr(measure, "rank_of_world", lambda: kinds.RankOfWorld(0, 2, 0))
    runs, barrier = [lambda: clock.add(1)], lambda: clock.add(10)
    entry = measure.Entry(kinds.KINDS["gather"], runs, np.empty(2, np.float32), barrier=barrier)
    assert measure._written(entry, 4) == (4, None)


def test_memory_of_a_dropped_job_is_freed():
    class World:
        rank, ranks, barrier = 0, 2, staticmethod(lambda: None)

    work = {"what": "gather", "bytes": 16, "inputs": "written"}
    for make in (
        lambda: job.Collective(work, World(), lambda array, count, place: lambda: array),
        lambda: job.SumInPlace(work, np.zeros(4, np.float32), lambda: None, World()),
    ):
        one = make()
        assert one.before is not None
        left = weakref.ref(one)
        del one
        assert left() is None


def test_ranks_write_their_inputs_and_begin_together(monkeypatch):
    order = []
    monkeypatch.setattr(measure.engine, "barrier", lambda: None)
    monkeypatch.setattr(measure, "_slowest", lambda seconds: seconds)
    monkeypatch.setattr(measure, "rank_of_world", lambda: kinds.RankOfWorld(1, 2, 0))
    for name in ("gather", "broadcast"):
        array = np.ones(2, np.float32)

        def run(array=array):
            order.append(array.tolist())
            array[:] = 5

        entry = measure.Entry(kinds.KINDS[name], [run], array, barrier=lambda: order.append("barrier"))
        measure.timed(entry, 2)
    gather, broadcast = order[:4], order[4:]
    assert gather == ["barrier", [0, 0]] * 2
    assert broadcast == ["barrier", [0, 0], "barrier", [5, 5]]  # rank 1 is not the root


def test_the_root_moves_on_with_each_call(monkeypatch):
    called = []
    kind = kinds.KINDS["gather"]
    monkeypatch.setattr(measure.engine, "barrier", lambda: None)
    monkeypatch.setattr(measure, "_slowest", lambda seconds: seconds)
    runs = [lambda root=root: called.append(root) for root in kind.roots(3)]
    measure.timed(measure.Entry(kind, runs, np.empty(2, np.float32)), 5)
    assert called == [0, 1, 2, 0, 1]
    assert list(kinds.KINDS["allgather"].roots(3)) == [0]


@pytest.mark.parametrize(
    ("got", "expected", "differ"),
    [
        (None, None, 0),
        (None, [1.0], 1),
        ([1.0], None, 1),
        ([1.0, 2.0], [1.0], 1),
        ([1.0, 2.0], [2.0, 2.0], 1),
    ],
)
def test_a_missing_result_is_wrong_too(got, expected, differ):
    arrays = [None if values is None else np.array(values) for values in (got, expected)]
    assert kinds.wrong_values(*arrays) == differ


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "--peers", "nccl"],
        ["compare", "--ranks", "1"],
        ["compare", "--ranks", "3", "--links", "1"],
        ["compare", "--links", "wide"],
        ["compare", "--sizes", "big"],
        ["compare", "--collectives", "", "--links", "machine"],
        ["compare", "--collectives", "sum", "--links", "machine"],
        ["compare", "--collectives", "gather"],
        ["compare", "--collectives", "gather", "--links", "machine", "--ours", "rdmacoll-op"],
        ["compare", "--inputs", "written"],
        ["step", "--backward", "quickly"],
        ["step", "--buckets", "many"],
        ["step", "--threads", "-1"],
        ["step", "--threads", "all"],
        ["overhead", "--ranks", "1"],
        ["peers", "--install", "nccl"],
        ["consistency", "--min", "2"],
    ],
)
def test_wrong_usage_ends_with_2(arguments):
    ours = signal.getsignal(signal.SIGTERM)  # the commands set their own handler
    try:
        result = CliRunner().invoke(commands, ["bench", *arguments])
    finally:
        signal.signal(signal.SIGTERM, ours)
    assert result.exit_code == 2, result.output


def test_ranks_are_not_started_by_ranks(tmp_path):
    code, found, output = command_line(tmp_path, "bench", "compare", ranks=2)
    assert (code, found) == (2, None)
    assert "start it without" in output
