"""`rdmacoll doctor --pair` and `rdmacoll bench pair` on real ranks of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_lines import command_line
from marks import slow
from ranks import run

HAS_DEVICES = any(Path("/sys/class/infiniband").glob("*"))

BENCH_ROW = {"bytes", "latency_us", "latency_us_min", "latency_us_max", "exchange_us"}
BENCH_ROW |= {"GB_per_s_forward", "GB_per_s_back", "GB_per_s_both"}


@pytest.mark.parametrize("ranks", [slow(2), 3])
def test_doctor_tests_every_pair_over_tcp(tmp_path, ranks):
    code, found, output = command_line(tmp_path, "doctor", "--pair", ranks=ranks)
    assert code == 0, output
    assert found["ok"] is True
    assert len(found["ranks"]) == ranks
    over_tcp = [path for path in found["paths"] if path["transport"] == "TCP"]
    wanted = [[low, high] for low in range(ranks) for high in range(low + 1, ranks)]
    assert [path["ranks"] for path in over_tcp] == wanted
    for path in over_tcp:
        assert path["problems"] == ["", ""]
        assert min(path["latency_us"], path["forward"], path["back"], path["both"]) > 0
    assert "GB/s from row to column" in output
    named = {finding["name"]: finding for finding in found["findings"]}
    assert named["TCP"]["state"] == "ok"
    # With devices, the command has tested them. Without devices, the finding says why there is no test.
    assert named["RDMA"]["state"] == "ok", named["RDMA"]
    if not any(rank["has_devices"] for rank in found["ranks"]):
        assert "not tested" in named["RDMA"]["seen"]


def test_doctor_needs_no_mpi():
    program = "import sys; from rdmacoll.cli import main\nsys.argv[1:] = ['doctor', '--pair']\nmain.main()\n"
    outcome = run(program, 2, launcher="tcp")
    outcome.succeeded()
    assert "TCP" in outcome.ranks[0].output
    assert outcome.ranks[1].output == ""


def test_turned_off_rdma_is_said(tmp_path):
    code, found, output = command_line(
        tmp_path, "doctor", "--pair", ranks=2, launcher="tcp", env={"TF_RDMA_ENABLED": "false"}
    )
    assert code == 0, output
    assert all("TF_RDMA_ENABLED" in rank["obstacle"] for rank in found["ranks"])
    assert {path["transport"] for path in found["paths"]} == {"TCP"}


@pytest.mark.skipif(HAS_DEVICES, reason="needs no RDMA device")
def test_a_job_that_would_not_start_without_rdma_is_a_problem(tmp_path):
    code, found, output = command_line(tmp_path, "doctor", "--pair", ranks=2, env={"TF_RDMA_ENABLED": "yes"})
    assert (code, found["ok"]) == (1, False), output
    (finding,) = (finding for finding in found["findings"] if finding["state"] == "problem")
    assert "TF_RDMA_ENABLED=true demands it" in finding["seen"]


# One of the two ranks has another setting. The path cannot be tested, and the finding names both ranks.
DIFFERENT = """
import os, sys
if os.environ["OMPI_COMM_WORLD_RANK"] == "2":
    os.environ["RDMACOLL_CHUNK_SIZE"] = "1M"
from rdmacoll.cli import main
sys.argv[1:] = ["doctor", "--pair", "--json", os.environ["RANKS_FOLDER"] + "/report-0.json"]
main.main()
"""


def test_a_path_that_fails_leaves_the_others_their_numbers():
    outcome = run(DIFFERENT, 3, launcher="mpirun")
    assert outcome.ranks[0].code == 1, outcome.text()
    paths = {tuple(path["ranks"]): path for path in outcome.reports[0]["paths"] if path["transport"] == "TCP"}
    assert paths[0, 1]["problems"] == ["", ""]
    assert paths[0, 1]["forward"] > 0
    for pair in ((0, 2), (1, 2)):
        for problem in paths[pair]["problems"]:
            assert f"rank {pair[0]}: 4194304; rank 2: 1048576" in problem, problem
    broken = [finding for finding in outcome.reports[0]["findings"] if finding["state"] == "problem"]
    assert "no path of rank 2 works" in broken[0]["seen"], outcome.text()


@pytest.mark.parametrize("command", [["doctor", "--pair"], ["bench", "pair"]])
def test_one_rank_alone_is_told_how_to_start(tmp_path, command):
    code, found, output = command_line(tmp_path, *command)
    assert code == 1
    assert found["error"]["kind"] == "ConfigError"
    assert f"rdmacoll run -np 2 rdmacoll {' '.join(command)}" in output


def test_bench_pair_refuses_three_ranks(tmp_path):
    code, found, _ = command_line(tmp_path, "bench", "pair", ranks=3, launcher="tcp")
    assert code == 1
    assert "3 ranks started" in found["error"]["message"]


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_bench_pair_measures_each_size(tmp_path, transport):
    code, found, output = command_line(
        tmp_path,
        *["bench", "pair", "--transport", transport, "--sizes", "8:64K"],
        *["--repeat", "2", "--burst", "0.001"],
        ranks=2,
        launcher="tcp",
    )
    assert code == 0, output
    assert (found["command"], found["ok"], found["transport"]) == ("bench pair", True, transport)
    assert [row["bytes"] for row in found["rows"]] == [8 << power for power in range(14)]
    for row in found["rows"]:
        assert set(row) >= BENCH_ROW
        assert min(row[key] for key in BENCH_ROW) > 0
        assert row["latency_us_min"] <= row["latency_us"] <= row["latency_us_max"]


def test_bench_pair_over_rdma_without_a_device_says_why(tmp_path):
    environ = {"RDMACOLL_DEVICE": "none_of_this_name"}
    code, found, output = command_line(tmp_path, "bench", "pair", "--transport", "rdma", ranks=2, env=environ)
    assert code == 1, output
    assert "cannot use it" in found["error"]["message"]


@pytest.mark.parametrize("sizes", ["0:8", "16:8", "8:2G", "many"])
def test_wrong_sizes_are_usage(tmp_path, sizes):
    code, found, _ = command_line(tmp_path, "bench", "pair", "--sizes", sizes)
    assert (code, found) == (2, None)
