"""`rdmacoll plan`: the choice, the costs and the schedules, as JSON and as text."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from command_lines import command_line
from ranks import clean_environment

COST = {
    "algorithm",
    "time_us",
    "formula_us",
    "messages",
    "network_bytes",
    "segment_bytes",
    "segments",
    "parts",
    "canonical",
}


def test_the_choice_its_reason_and_the_cost_of_each_algorithm(tmp_path):
    code, found, output = command_line(
        tmp_path, "plan", "--op", "allreduce", "--ranks", "8", "--nodes", "2", "--bytes", "1M"
    )
    assert code == 0, output
    assert (found["algorithm"], found["shown"]) == ("two_level", "two_level")
    assert found["nodes"] == [0, 0, 0, 0, 1, 1, 1, 1]
    costs = {row["algorithm"]: row for row in found["costs"]}
    by_levels = {"leaders", "two_level"}
    flat = {"ring", "direct", "one_shot", "recursive_doubling", "halving_doubling", "write_back"}
    assert set(costs) == flat | by_levels
    assert all(set(row) == COST and row["time_us"] > 0 for row in costs.values())
    # Each of the two nodes acts like one rank: it sends half of the bytes, and half of the sum.
    assert costs["two_level"]["network_bytes"] == 1 << 20
    assert costs["two_level"]["time_us"] < costs["direct"]["time_us"]
    assert not costs["ring"]["canonical"]
    formulas = {name: row["formula_us"] for name, row in costs.items() if row["formula_us"] is not None}
    assert set(formulas) == set(costs) - {"one_shot", "write_back"}
    assert min(formulas, key=formulas.__getitem__) == "two_level"
    assert "two_level is chosen. Between nodes: the lowest cost by latency and rate" in output
    assert "formula" in output
    assert "two_level *" in output
    # The written schedule, and the lowered one with publish and await for memory that ranks see.
    assert "await" not in found["schedule"]
    assert "await" in found["lowered"]
    for word in ("send", "publish", "await", "reduce"):
        assert f"  {word:<8} " in output, word


@pytest.mark.parametrize(
    ("operation", "ranks", "size", "chosen"),
    [
        ("allreduce", "8", "8", "recursive_doubling"),
        ("allreduce", "16", "4M", "halving_doubling"),
        ("broadcast", "8", "64M", "pipelined_tree"),
        ("allgather", "8", "1K", "doubling_allgather"),
        ("reducescatter", "8", "64M", "ring_reduce_scatter"),
        ("reduce", "8", "1K", "binomial_reduce"),
        ("gather", "8", "1M", "direct_gather"),
        ("scatter", "8", "1M", "direct_scatter"),
        ("alltoall", "32", "1K", "bruck_alltoall"),
        ("alltoall", "32", "64M", "pairwise_alltoall"),
    ],
)
def test_every_operation_has_its_algorithms(tmp_path, operation, ranks, size, chosen):
    arguments = ["--op", operation, "--ranks", ranks, "--nodes", ranks, "--bytes", size]
    code, found, output = command_line(tmp_path, "plan", *arguments)
    assert code == 0, output
    assert found["algorithm"] == chosen
    assert chosen in {row["algorithm"] for row in found["costs"]}


def test_sums_of_16_bits_are_float32_until_they_are_whole(tmp_path):
    ask = ("plan", "--ranks", "8", "--nodes", "2", "--bytes", "1M", "--algorithm", "two_level", "--dtype")
    code, found, output = command_line(tmp_path, *ask, "bfloat16")
    assert code == 0, output
    assert found["dtype"] == "bfloat16"
    assert "allreduce of 1M bytes of bfloat16" in output
    costs = {row["algorithm"]: row for row in found["costs"]}
    # A sum goes out in float32, twice as long, and comes back in 16 bits.
    assert costs["two_level"]["network_bytes"] == 3 << 19
    assert "sums[" in found["schedule"]
    assert "in float32" in found["schedule"]
    code, found, output = command_line(tmp_path, *ask, "float61")
    assert code == 2
    assert "'float61' is not one of" in output


def test_what_an_alltoall_sends_is_counted_by_rank(tmp_path):
    code, found, output = command_line(
        tmp_path, "plan", "--op", "alltoall", "--ranks", "32", "--nodes", "32", "--bytes", "32K"
    )
    assert code == 0, output
    costs = {row["algorithm"]: row for row in found["costs"]}
    # Each rank has 1 KiB for each peer. It sends 31 parts directly, or half of its parts five times.
    assert (costs["pairwise_alltoall"]["messages"], costs["pairwise_alltoall"]["network_bytes"]) == (
        31,
        31 << 10,
    )
    assert (costs["bruck_alltoall"]["messages"], costs["bruck_alltoall"]["network_bytes"]) == (5, 80 << 10)


def test_another_algorithm_of_another_rank_can_be_shown(tmp_path):
    arguments = ["--ranks", "4", "--nodes", "4", "--bytes", "64M", "--algorithm", "ring", "--rank", "2"]
    code, found, output = command_line(tmp_path, "plan", *arguments, "--network", "tcp", "--gbit", "1")
    assert code == 0, output
    assert found["shown"] == "ring"
    assert found["schedule"].startswith("rank 2 of 4, 4 parts")
    assert "The steps of rank 2 in each segment of ring" in output
    # A ring sends 2 (p-1)/p of the bytes, at 125 bytes per microsecond.
    ring = next(row for row in found["costs"] if row["algorithm"] == "ring")
    wire_us = 1.5 * (64 << 20) / 125
    assert wire_us < ring["time_us"] < 1.1 * wire_us


def test_settings_count(tmp_path):
    environ = {"RDMACOLL_ALLREDUCE_ALGORITHM": "ring:4k:halving_doubling", "RDMACOLL_SEGMENT_BYTES": "64K"}
    code, found, output = command_line(tmp_path, "plan", "--bytes", "1M", "--nodes", "8", env=environ)
    assert code == 0, output
    assert found["algorithm"] == "halving_doubling"
    assert "forced by RDMACOLL_ALLREDUCE_ALGORITHM" in found["reason"]
    assert {row["segments"] for row in found["costs"]} == {16}
    small = ("plan", "--ranks", "4", "--nodes", "2", "--network", "tcp", "--bytes", "16K")
    chosen = [
        command_line(tmp_path, *small, *more, env={"RDMACOLL_LINK_GBIT": gbit})[1]["algorithm"]
        for gbit, more in (("10", ()), ("1", ()), ("10", ("--gbit", "1")))
    ]
    assert chosen == ["leaders", "halving_doubling", "halving_doubling"]
    for environ, network in (
        ({"RDMACOLL_TRANSPORT": "shm,tcp"}, "tcp"),
        ({"TF_RDMA_ENABLED": "0"}, "tcp"),
        ({"RDMACOLL_TRANSPORT": "rdma"}, "rdma"),
    ):
        output = command_line(tmp_path, "plan", "--ranks", "4", "--nodes", "2", env=environ)[2]
        assert f"joined by {network}" in output


@pytest.mark.parametrize(
    ("arguments", "environ", "cheapest", "why"),
    [
        (["--nodes", "8", "--bytes", "64M"], {"RDMACOLL_ORDER": "canonical"}, "ring", "canonical order"),
        (
            ["--nodes", "8", "--bytes", "8"],
            {"RDMACOLL_ALLREDUCE_ALGORITHM": "ring"},
            "one_shot",
            "RDMACOLL_ALLREDUCE_ALGORITHM forces the choice",
        ),
        (
            ["--ranks", "12", "--nodes", "12", "--bytes", "512K", "--network", "tcp"],
            {},
            "direct",
            "if so many hosts send",
        ),
        (["--ranks", "3", "--nodes", "3", "--bytes", "8"], {}, "one_shot", "measured: between hosts"),
        (
            ["--op", "alltoall", "--ranks", "64", "--nodes", "64", "--bytes", "16"],
            {},
            "bruck_alltoall",
            "needs parts of equal size",
        ),
        (
            ["--ranks", "4", "--nodes", "4", "--bytes", "64M", "--servers", "1"],
            {},
            "ring",
            "parameter servers",
        ),
        (
            ["--ranks", "3", "--nodes", "2", "--bytes", "1M"],
            {},
            "",
            "simpler than the model",
        ),
    ],
)
def test_a_choice_that_is_not_the_cheapest_of_the_model_says_why(tmp_path, arguments, environ, cheapest, why):
    code, found, output = command_line(tmp_path, "plan", *arguments, env=environ)
    assert code == 0, output
    times = {row["algorithm"]: row["time_us"] for row in found["costs"]}
    assert found["cheapest"] in ({cheapest} if cheapest else set(times))
    assert times[found["cheapest"]] == min(times.values()) < times[found["algorithm"]]
    assert why in found["why_not_cheapest"]
    (line,) = [line for line in output.splitlines() if line.startswith("In the model ")]
    assert line.startswith(f"In the model {found['cheapest']} takes ")
    assert line.endswith(f" less: {found['why_not_cheapest']}.")


@pytest.mark.parametrize(
    ("operation", "ranks", "size", "chosen"),
    [
        ("allreduce", "2", "16K", "recursive_doubling"),
        ("allreduce", "2", "64K", "write_back"),
        ("allreduce", "4", "8K", "one_shot"),
        ("allreduce", "8", "1M", "direct"),
        ("broadcast", "8", "256K", "flat_broadcast"),
        ("broadcast", "8", "1M", "pipelined_tree"),
        ("reduce", "4", "1K", "flat_reduce"),
    ],
)
def test_within_a_node_the_least_cost_of_the_formulas_is_chosen(tmp_path, operation, ranks, size, chosen):
    code, found, output = command_line(
        tmp_path, "plan", "--op", operation, "--ranks", ranks, "--nodes", "1", "--bytes", size
    )
    assert code == 0, output
    assert found["algorithm"] == chosen
    formulas = {row["algorithm"]: row["formula_us"] for row in found["costs"]}
    assert formulas[chosen] == min(cost for cost in formulas.values() if cost is not None)
    # Only algorithms that add in canonical order are candidates.
    assert all(formulas[name] is None for name in ("ring", "two_level") if name in formulas)
    assert "lowest cost by the rates of its memory" in output
    assert "formula" in output
    assert "no candidate" in output or operation != "allreduce"


def test_between_nodes_the_least_cost_of_the_formulas_is_chosen(tmp_path):
    for nodes in (8, 4):
        for operation in ("broadcast", "allreduce", "reducescatter"):
            arguments = ("--op", operation, "--ranks", "8", "--nodes", str(nodes), "--bytes", "1M")
            code, found, output = command_line(tmp_path, "plan", *arguments)
            assert code == 0, output
            formulas = {row["algorithm"]: row["formula_us"] for row in found["costs"]}
            candidates = {name: cost for name, cost in formulas.items() if cost is not None}
            assert found["algorithm"] == min(candidates, key=candidates.__getitem__)
            assert "lowest cost by latency and rate of the links" in output
            for name in ("flat_broadcast", "one_shot"):
                assert formulas.get(name) is None


def test_nothing_is_said_where_the_cheapest_is_chosen(tmp_path):
    code, found, output = command_line(tmp_path, "plan", "--nodes", "2")
    assert code == 0, output
    assert (found["cheapest"], found["why_not_cheapest"]) == ("two_level", "")
    assert "In the model" not in output


@pytest.mark.parametrize("operation", ["broadcast", "gather", "scatter", "alltoall", "allgather"])
def test_what_adds_nothing_has_no_order_of_additions(tmp_path, operation):
    code, found, output = command_line(tmp_path, "plan", "--op", operation, "--nodes", "8")
    assert code == 0, output
    assert {row["canonical"] for row in found["costs"]} == {None}
    assert "canonical" not in output
    assert "order" not in output.lower()


@pytest.mark.parametrize("operation", ["allreduce", "reduce", "reducescatter"])
def test_sums_have_one(tmp_path, operation):
    code, found, output = command_line(tmp_path, "plan", "--op", operation, "--nodes", "8")
    assert code == 0, output
    assert {row["canonical"] for row in found["costs"]} <= {True, False}
    assert "order: canonical, or the algorithm's own." in output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ranks", "4", "--nodes", "5"], "4 ranks cannot be on 5 nodes: give 1 to 4."),
        (["--ranks", "4", "--rank", "4"], "there is no rank 4 among 4: give 0 to 3."),
        (
            ["--algorithm", "pipelined_tree"],
            "pipelined_tree is no algorithm for this: choose one of recursive_doubling, one_shot",
        ),
        (["--bytes", "0"], "0 bytes need no algorithm: give 1 or more."),
        (["--ranks", "100000"], "give 1 to 256."),
    ],
)
def test_what_cannot_be_planned_is_said(tmp_path, arguments, sentence):
    code, found, output = command_line(tmp_path, "plan", *arguments)
    assert code == 1
    assert sentence in found["error"]["message"]
    assert sentence in output


def test_parameter_servers_are_planned_beside_the_rest(tmp_path):
    arguments = ["--ranks", "4", "--nodes", "4", "--servers", "2", "--bytes", "64M", "--rank", "5"]
    code, found, output = command_line(tmp_path, "plan", *arguments)
    assert code == 0, output
    assert found["algorithm"] == "parameter_server"
    costs = {row["algorithm"]: row for row in found["costs"]}
    assert set(costs) > {"ring", "direct", "parameter_server"}
    # A server's port receives the parts of four workers and sends them back, so twice a worker's bytes.
    assert costs["parameter_server"]["network_bytes"] == 2 * (64 << 20)
    assert costs["parameter_server"]["parts"] == 2
    # Rank 5 is the second server, which has no input.
    assert "input" not in found["schedule"]
    assert "reduce" in found["schedule"]


def test_no_servers_are_planned_where_none_are_asked_for(tmp_path):
    code, found, output = command_line(tmp_path, "plan", "--algorithm", "parameter_server")
    assert code == 1, output
    assert "parameter_server is no algorithm for this" in output
    code, found, output = command_line(tmp_path, "plan", "--ranks", "4")
    assert "parameter_server" not in {row["algorithm"] for row in found["costs"]}


def test_a_reader_that_has_gone_is_no_error(tmp_path):
    # The reader leaves like `| head`. More output than a pipe holds, and other work, are still to be done.
    path = tmp_path / "plan.json"
    command = [sys.executable, "-m", "rdmacoll", "plan", "--ranks", "192", "--algorithm", "direct"]
    with subprocess.Popen(
        [*command, "--json", str(path)],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 0
    found = json.loads(path.read_text())
    assert found["ok"]
    assert len(found["schedule"]) + len(found["lowered"]) > 80_000, "all that is printed fits into a pipe"
