"""The benchmarks of parameter servers' traffic: payloads, starts, output, and tiny runs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from command_lines import command_line
from marks import slow

from rdmacoll.benchmarks.libraries import HostLayout, LaunchContext, commands
from rdmacoll.benchmarks.rpc import judge, measure, payloads
from rdmacoll.benchmarks.rpc.libraries import libraries
from rdmacoll.benchmarks.team_rank.rpc import routes
from rdmacoll.benchmarks.turns import Burst, Cell
from rdmacoll.cli import main
from rdmacoll.errors import ConfigError

QUICK = ["--turns", "1", "--burst", "0.001", "--foreign", "1", "--seconds", "100"]
TINY = ["--medium", "1K", "--large", "70000"]


@pytest.mark.parametrize(
    ("kind", "iovec", "small", "medium", "large"),
    [
        ("uniform", 10, 4, 3, 3),
        ("uniform", 9, 3, 3, 3),
        ("uniform", 2, 1, 1, 0),
        ("skewed", 10, 1, 3, 6),
        ("skewed", 20, 2, 6, 12),
        ("skewed", 1, 0, 0, 1),
    ],
)
def test_a_payload_has_so_many_of_each_size(kind, iovec, small, medium, large):
    sizes = payloads.of_kind(kind, payloads.Recipe(iovec=iovec)).sizes
    assert sizes == [12] * small + [10 << 10] * medium + [1 << 20] * large


def test_random_payloads_are_those_of_their_seed():
    drawn = {seed: payloads.of_kind("random", payloads.Recipe(100, seed=seed)).sizes for seed in (1, 2)}
    assert drawn[1] == payloads.of_kind("random", payloads.Recipe(100, seed=1)).sizes != drawn[2]
    assert set(drawn[1]) == {12, 10 << 10, 1 << 20}


def test_recorded_sizes_are_one_step_in_whole_floats(tmp_path):
    path = tmp_path / "digits.json"
    path.write_text(json.dumps({"tensors": [{"name": "a", "bytes": 40}, {"name": "b", "bytes": 6}]}))
    (payload,) = payloads.payloads_of(str(path), payloads.Recipe())
    assert (payload.name, payload.sizes, payload.total) == ("digits", [40, 8], 48)


@pytest.mark.parametrize("text", ["", "[]", '{"tensors": []}', '{"tensors": [{"bytes": 0}]}'])
def test_what_has_no_sizes_is_refused_with_the_cure(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"rdmacoll bench record|record a training"):
        payloads.payloads_of(f"uniform,{path}", payloads.Recipe())


def test_servers_share_all_buffers_by_bytes():
    sizes = payloads.of_kind("skewed", payloads.Recipe()).sizes
    parts = routes.shared(sizes, 2)
    assert sorted(parts[0] + parts[1]) == list(range(10))
    assert [sum(sizes[number] == 1 << 20 for number in part) for part in parts] == [3, 3]
    here = routes.RankContext(0, ["a:1", "b:2", "c:3"], 2)
    assert here.routes([4]) == [(1, [0])]  # a server without a buffer is not called
    everybody = routes.RankContext(1, ["a:1", "b:2", "c:3"], 0)
    assert everybody.routes([4, 8]) == [(0, [0, 1]), (2, [0, 1])]


def test_payloads_differ_between_ranks_and_turns_and_sums_of_them_are_exact():
    first, again, later, other = (
        routes.buffers_of(rank, turn, [4 << 10, 4 << 10]) for rank, turn in ((0, 1), (0, 1), (0, 2), (1, 1))
    )
    assert routes.wrong_buffers(first, again) == 0
    assert routes.wrong_buffers(first, later) == routes.wrong_buffers(first, other) == 2
    assert not np.array_equal(*first)
    assert {value for buffer in first for value in buffer.tolist()} == {-2, -1, 0, 1, 2}


def test_ranks_are_told_where_everybody_listens():
    prefixes = {rank: ["ip", "netns", "exec", f"h{rank // 2}"] for rank in range(3)}
    place = HostLayout(
        [0, 0, 1], ["10.77.0.1", "10.77.0.2"], ["h0", "h1"], prefixes, "/tmp/on_host", servers=1
    )
    start = LaunchContext(Path("/env/bin/python"), Path("/tmp/x/socket"), 4000, True)
    for name in ("grpcio", "tf-grpc"):
        words = commands(libraries(everybody=False)[name], place, start)
        options = [json.loads(command[-1]) for command in words]
        assert [entry["rank"] for entry in options] == [0, 1, 2]
        assert options[2]["addresses"] == ["10.77.0.1:4000", "10.77.0.1:4001", "10.77.0.2:4002"]
        assert options[2]["servers"] == 1
        assert not any("RDMACOLL_RANK" in word for word in words[0])
    ours = commands(libraries(everybody=False)["rdmacoll-tcp"], place, start)
    assert {"RDMACOLL_TRANSPORT=tcp", "RDMACOLL_RANK=2", "RDMACOLL_RENDEZVOUS=10.77.0.1:4000"} <= set(ours[2])


def cell(*seconds: float, cpu: tuple[float, ...] = (1e-6, 2e-6, 4e-6)) -> Cell:
    return Cell(
        [Burst([each], 0.0, sum(cpu), True, list(cpu), [1 << 20, 2 << 20, 4 << 20]) for each in seconds]
    )


def row(exchange: str = "pull", kind: str = "uniform", servers: int = 1, **cells: Cell) -> measure.Row:
    payload = payloads.of_kind(kind, payloads.Recipe())
    named = {name.replace("_", "-"): one for name, one in cells.items()}
    return measure.row_of(exchange, payload, named, 3 - servers, servers)


def test_a_row_counts_what_all_workers_move():
    found = row(rdmacoll=cell(1e-3), grpcio=cell(4e-3))
    assert found["payloads_per_s"]["rdmacoll"] == pytest.approx(2000)
    assert found["MB_per_s"]["grpcio"] == pytest.approx(500 * found["bytes"] / 1e6)
    assert found["ratio"] == {"rdmacoll": {"grpcio": pytest.approx(4.0)}}
    assert found["cpu_us"]["rdmacoll"] == {"workers": pytest.approx(1.5), "servers": pytest.approx(2.0)}
    assert found["peak_bytes"]["rdmacoll"] == {"workers": 3 << 20, "servers": 4 << 20}
    everybody = row("push", servers=0, rdmacoll=cell(1e-3))
    assert everybody["payloads_per_s"]["rdmacoll"] == pytest.approx(3 * 2 * 1000)


def test_goals_are_for_their_rows():
    slower = row("push", rdmacoll=cell(1e-3), rdmacoll_tcp=cell(3e-3), tf_grpc=cell(4e-3))
    findings = judge.missed("ps-throughput", [slower])
    assert findings == [
        "push of uniform: rdmacoll is 4.00 times as fast as TensorFlow's gRPC; the goal is 4.5 times",
        "push of uniform: rdmacoll over TCP is 1.33 times as fast as TensorFlow's gRPC; the goal is "
        "4.5 times",
    ]
    with_sockets = row(
        "push", rdmacoll=cell(2e-4), rdmacoll_tcp=cell(3e-3), tf_grpc=cell(4e-3), sockets=cell(1e-3)
    )
    (missed,) = judge.missed("ps-throughput", [with_sockets])
    assert missed.endswith("the goal is 4.5 times (plain sockets: 4.00 times)")
    assert judge.missed("p2p-bandwidth", [slower]) == []
    skewed = row("push", "skewed", rdmacoll=cell(2e-3), grpcio=cell(4e-3))
    assert len(judge.missed("p2p-bandwidth", [skewed])) == 1
    # 2 workers, each 6.3 MB in 2 ms: 50 Gbit/s.
    assert judge.missed("p2p-bandwidth", [skewed], 50) == []
    assert len(judge.missed("p2p-bandwidth", [skewed], 100)) == 1
    assert judge.missed("p2p-latency", [skewed]) == []
    small = {**skewed, "bytes": 64 << 10, "buffers": 1}
    assert len(judge.missed("p2p-latency", [small])) == 1
    assert judge.missed("p2p-latency", [{**small, "bytes": 128 << 10}]) == []


def test_tables_have_a_line_for_each_row_and_a_mark_where_something_is_missing():
    rows = [row(rdmacoll=cell(1e-3), grpcio=cell(4e-3)), row("push", rdmacoll=cell(2e-6))]
    lines = judge.table("ps-throughput", rows)
    assert lines[0] == "|  | bytes | rdmacoll | grpcio | grpcio / rdmacoll |"
    assert lines[2].endswith("| 2000/s, 6353 MB/s | 500/s, 1588 MB/s | 4.00 |")
    assert lines[3].endswith("| - | - |")
    rows[0]["time_us"]["grpcio"]["quiet"] = False
    assert judge.table("ps-throughput", rows)[2].endswith("MB/s | 500/s, 1588 MB/s (L) | 4.00 |")
    rows[0]["time_us"]["grpcio"]["quiet"] = True
    assert judge.table("p2p-latency", rows)[2].endswith(
        "| 1000 (1000 to 1000) | 4000 (4000 to 4000) | 4.00 |"
    )
    assert judge.costs(rows)[2] == "| pull uniform | 1.5 + 2.0, 3 + 4 | 1.5 + 2.0, 3 + 4 |"


def checked(found, names: set[str], rows: list[tuple[str, str]]) -> None:
    assert found["wrong"] == 0
    assert found["left_out"] == []
    (part,) = found["parts"]
    assert [(each["exchange"], each["payload"]) for each in part["rows"]] == rows
    for each in part["rows"]:
        assert set(each["time_us"]) == names
        assert all(cost["workers"] > 0 for cost in each["cpu_us"].values())
        assert all(value > 0 for ratios in each["ratio"].values() for value in ratios.values())


@pytest.mark.parametrize(
    "peer", [["--peer", "grpcio", "--peer", "sockets"], slow([]), slow(["--peer", "tf-grpc"])]
)
@pytest.mark.parametrize(
    ("command", "options", "rows"),
    [
        (
            "p2p-latency",
            ["--sizes", "2,64K", "--payload", "uniform"],
            [("round-trip", "2"), ("round-trip", "64K"), ("round-trip", "uniform")],
        ),
        ("p2p-bandwidth", ["--sizes", "", "--payload", "skewed"], [("push", "skewed")]),
        (
            "ps-throughput",
            ["--workers", "2", "--servers", "2", "--payload", "random"],
            [("pull", "random"), ("push", "random")],
        ),
        ("fully-connected", ["--ranks", "3", "--sizes", "70000"], [("push", "70000")]),
    ],
)
def test_every_command_checks_what_it_times(tmp_path, command, options, rows, peer):
    code, found, output = command_line(
        tmp_path, "bench", command, *options, *peer, *TINY, "--ours", "rdmacoll", *QUICK
    )
    assert code == 0, output
    checked(found, {"rdmacoll", *peer[1::2]}, rows)
    servers = {"p2p-latency": 1, "p2p-bandwidth": 1, "ps-throughput": 2, "fully-connected": 0}[command]
    assert found["settings"]["servers"] == servers


def test_ours_may_have_several_pushes_under_way_over_tcp(tmp_path):
    options = ["--sizes", "", "--payload", "uniform", "--ours", "rdmacoll-tcp", "--ours-in-flight", "2"]
    code, found, output = command_line(tmp_path, "bench", "p2p-bandwidth", *options, *TINY, *QUICK)
    assert code == 0, output
    checked(found, {"rdmacoll-tcp"}, [("push", "uniform")])


@pytest.mark.slow
def test_large_payloads_are_new_in_every_turn(tmp_path):
    options = ["--sizes", "40M", "--payload", "", "--ours", "rdmacoll", "--peer", "grpcio", *QUICK]
    options += ["--turns", "2"]
    code, found, output = command_line(tmp_path, "bench", "p2p-bandwidth", "--in-flight", "1", *options)
    assert code == 0, output
    checked(found, {"rdmacoll", "grpcio"}, [("push", "40M")])
    (row,) = found["parts"][0]["rows"]
    assert all(len(summary["turns"]) == 2 for summary in row["time_us"].values())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("link", [slow("1"), slow("10")])
def test_links_are_shaped_for_servers_too(tmp_path, link):
    # There is one worker. The bursts of two workers need not overlap, and each might have the link alone.
    options = ["--workers", "1", "--links", link, "--payload", "", "--sizes", "4M", "--peer", "all"]
    code, found, output = command_line(tmp_path, "bench", "ps-throughput", *options, *QUICK)
    assert code == 0, output
    checked(found, {"rdmacoll", "tf-grpc", "grpcio", "sockets"}, [("pull", "4M"), ("push", "4M")])
    # The shaper of the link lets a burst through at once.
    least = 0.8 * ((4 << 20) - 192_000) * 8 / (float(link) * 1e3)
    for each in found["parts"][0]["rows"]:
        assert all(summary["median"] >= least for summary in each["time_us"].values())


@pytest.mark.parametrize(
    "arguments",
    [
        ["p2p-latency", "--peer", "zeromq"],
        ["p2p-latency", "--sizes", "", "--payload", ""],
        ["p2p-latency", "--small", "tiny"],
        ["ps-throughput", "--servers", "0"],
        ["fully-connected", "--ranks", "1"],
        ["p2p-bandwidth", "--links", "wide"],
    ],
)
def test_wrong_usage_ends_with_2(arguments):
    before = signal.getsignal(signal.SIGTERM)
    try:
        result = CliRunner().invoke(main.commands, ["bench", *arguments])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert result.exit_code == 2, result.output
