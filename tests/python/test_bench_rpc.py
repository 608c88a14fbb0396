"""The benchmarks of parameter servers' traffic: payloads, starts, what is said, and tiny runs."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from marks import slow
from ranks import ROOT, command_line, run
from test_by_hand import ByHand

from rdmacoll import ps
from rdmacoll.benchmarks.libraries import Place, Start, commands
from rdmacoll.benchmarks.rpc import judge, measure, payloads, record
from rdmacoll.benchmarks.rpc.libraries import libraries
from rdmacoll.benchmarks.team_rank.rpc import routes
from rdmacoll.benchmarks.turns import Burst, Cell
from rdmacoll.cli import main
from rdmacoll.engine.errors import ConfigError

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
    here = routes.Here(0, ["a:1", "b:2", "c:3"], 2)
    assert here.routes([4]) == [(1, [0])]  # a server without a buffer is not called
    everybody = routes.Here(1, ["a:1", "b:2", "c:3"], 0)
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
    place = Place([0, 0, 1], ["10.77.0.1", "10.77.0.2"], ["h0", "h1"], prefixes, "/tmp/on_host", servers=1)
    start = Start(Path("/env/bin/python"), Path("/tmp/x/socket"), 4000, True)
    for name in ("grpcio", "tf-grpc"):
        words = commands(libraries(everybody=False)[name], place, start)
        told = [json.loads(command[-1]) for command in words]
        assert [entry["rank"] for entry in told] == [0, 1, 2]
        assert told[2]["addresses"] == ["10.77.0.1:4000", "10.77.0.1:4001", "10.77.0.2:4002"]
        assert told[2]["servers"] == 1
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
    said = judge.missed("ps-throughput", [slower])
    assert said == [
        "push of uniform: rdmacoll is 4.00 times as fast as TensorFlow's gRPC, and means to be 4.5 times",
        "push of uniform: rdmacoll over TCP is 1.33 times as fast as TensorFlow's gRPC, and means to be "
        "4.5 times",
    ]
    with_sockets = row(
        "push", rdmacoll=cell(2e-4), rdmacoll_tcp=cell(3e-3), tf_grpc=cell(4e-3), sockets=cell(1e-3)
    )
    (missed,) = judge.missed("ps-throughput", [with_sockets])
    assert missed.endswith("and means to be 4.5 times (plain sockets: 4.00 times)")
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
    # One worker: the bursts of two need not overlap, and then each has the server's link for itself.
    options = ["--workers", "1", "--links", link, "--payload", "", "--sizes", "4M", "--peer", "all"]
    code, found, output = command_line(tmp_path, "bench", "ps-throughput", *options, *QUICK)
    assert code == 0, output
    checked(found, {"rdmacoll", "tf-grpc", "grpcio", "sockets"}, [("pull", "4M"), ("push", "4M")])
    # The bucket lets some bytes through at once.
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


TRAINS = """
import json, os, sys
import numpy as np, rdmacoll
import keras
assert sys.argv[1:] == ["--epochs", "1"], sys.argv
rdmacoll.init(**json.loads(os.environ["RANKS_ARGUMENTS"]))
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(5), keras.layers.Dense(2)])
model.compile(rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
model.fit(np.ones((8, 3), np.float32), np.ones((8, 2), np.float32), 4, 1, 0)
rdmacoll.shutdown()
"""

TRAINS_V1 = """
import json, os
import numpy as np, rdmacoll
import tensorflow.compat.v1 as tf
rdmacoll.init(**json.loads(os.environ["RANKS_ARGUMENTS"]))
with tf.Graph().as_default(), tf.Session() as session:
    made = [tf.get_variable(f"w{i}", shape) for i, shape in enumerate([(3, 5), (5,), (5, 2), (2,)])]
    plain, loss = tf.train.GradientDescentOptimizer(0.1), sum(tf.reduce_sum(one * one) for one in made)
    step = rdmacoll.DistributedOptimizer(plain).minimize(loss)
    session.run(tf.global_variables_initializer())
    session.run(step)
rdmacoll.shutdown()
"""
SUM, SERVED = {"mode": "ps"}, {"mode": "ps", "sync": False}


@pytest.mark.parametrize(
    ("text", "ranks", "arguments", "launcher"),
    [
        (TRAINS, 1, {}, "tcp"),
        (TRAINS, 2, SERVED, "tcp"),
        (TRAINS_V1, 2, SERVED, "tcp"),
        slow(TRAINS, 2, {}, "mpirun"),
        slow(TRAINS, 2, SUM, "mpirun"),
    ],
)
def test_a_training_is_recorded_and_its_sizes_can_be_replayed(tmp_path, text, ranks, arguments, launcher):
    program, sizes = tmp_path / "train.py", tmp_path / "sizes.json"
    program.write_text(text)
    outcome = run(
        ROOT / "rdmacoll" / "cli" / "main.py",
        ranks,
        launcher=launcher,
        # Options behind the program are its own.
        arguments=["bench", "record", "--out", str(sizes), str(program), "--epochs", "1"],
        env={"RANKS_ARGUMENTS": json.dumps(arguments)},
        deadline_s=200,
        warm=launcher == "tcp",
    )
    outcome.succeeded()
    output = outcome.ranks[0].output
    found = json.loads(sizes.read_text())
    assert sorted(tensor["bytes"] for tensor in found["tensors"]) == [8, 20, 40, 60]
    assert len({tensor["name"] for tensor in found["tensors"]}) == 4
    assert found["lists"] == 1
    assert "4 tensors, 128 bytes" in output
    (payload,) = payloads.payloads_of(str(sizes), payloads.Recipe())
    assert payload.total == 128


PUSHES = """
import numpy as np, rdmacoll
from rdmacoll import ps
rdmacoll.init(argv=True, sync=False)
ps.declare({"w": np.zeros(10)}, ps.Rule("optimizer=sgd\\ninitial_learning_rate=1\\n"))
ps.exchange({"w": np.ones(10)})
rdmacoll.shutdown()
"""


def test_by_hand_worker_0_alone_writes_what_was_recorded(tmp_path):
    program, hand = tmp_path / "train.py", ByHand(2, 1)
    program.write_text(PUSHES)

    def words(place: int) -> list[str]:
        files = ["--out", str(tmp_path / f"sizes-{place}.json"), "--json", str(tmp_path / f"{place}.json")]
        return ["bench", "record", *files, str(program), *hand.flags(place)]

    with hand.run(tmp_path, arguments_of={place: words(place) for place in range(3)}) as started:
        outcome = started.finish(200)
    outcome.succeeded()
    assert ["1 tensor, 80 bytes" in rank.output for rank in outcome.ranks] == [True, False, False]
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["0.json", "sizes-0.json"]


@pytest.fixture
def without_tensorflow(monkeypatch):
    """Its import would take seconds, and leave variables behind that tests after this one inherit."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)


@pytest.mark.usefixtures("without_tensorflow")
def test_exchanges_with_servers_are_recorded(monkeypatch):
    monkeypatch.setattr(ps, "exchange", lambda gradients, out=None: out or gradients)
    with record.recording() as seen:
        ps.exchange({"small": np.zeros(1)})
        ps.exchange({"a": np.zeros((2, 3), np.float32), "b": np.zeros(5)})
        values = {"a": np.ones((2, 3), np.float32)}
        assert ps.exchange({"a": np.zeros((2, 3), np.float32)}, out=values) is values
    assert seen.tensors == [{"name": "a", "bytes": 24}, {"name": "b", "bytes": 40}]
    assert seen.lists == 3


def test_the_sizes_of_a_known_model_need_no_training(tmp_path):
    sizes = tmp_path / "resnet50.json"
    code, found, output = command_line(
        tmp_path, "bench", "record", "--model", "resnet50", "--out", str(sizes)
    )
    assert code == 0, output
    (payload,) = payloads.payloads_of(str(sizes), payloads.Recipe())
    assert (len(payload.sizes), payload.total) == (161, 102_228_128)
    assert found["tensors"] == json.loads(sizes.read_text())["tensors"]


@pytest.mark.usefixtures("without_tensorflow")
@pytest.mark.parametrize("words", [[], ["--model", "resnet50", "train.py"], ["nowhere.py"]])
def test_what_cannot_be_recorded_is_wrong_usage(tmp_path, words):
    result = CliRunner().invoke(main.commands, ["bench", "record", "--out", str(tmp_path / "x"), *words])
    assert result.exit_code == 2, result.output


@pytest.mark.usefixtures("without_tensorflow")
def test_a_program_without_gradients_is_said(tmp_path):
    program, sizes = tmp_path / "nothing.py", str(tmp_path / "x")
    program.write_text("import sys\nsys.exit(0)\n")
    result = CliRunner().invoke(main.commands, ["bench", "record", "--out", sizes, str(program)])
    assert result.exit_code == 1
    assert "reduced no gradients" in result.output


@pytest.mark.usefixtures("without_tensorflow")
def test_what_a_program_that_fails_has_shown_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(ps, "exchange", lambda gradients, out=None: out or gradients)
    program, sizes = tmp_path / "fails.py", tmp_path / "x"
    program.write_text(
        "import numpy, sys\nfrom rdmacoll import ps\nps.exchange({'a': numpy.ones(2)})\nsys.exit(3)\n"
    )
    result = CliRunner().invoke(main.commands, ["bench", "record", "--out", str(sizes), str(program)])
    assert result.exit_code == 1
    assert "ended with 3" in result.output
    assert json.loads(sizes.read_text())["tensors"] == [{"name": "a", "bytes": 16}]
