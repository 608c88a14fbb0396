"""The benchmarks over RDMA: their reading of perftest's output, and their judgement."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ranks import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import perftest
import rdma_goals

RECORDED = Path(__file__).with_name("perftest")
LATENCY = (RECORDED / "ib_send_lat.txt").read_text()
BANDWIDTH = (RECORDED / "ib_write_bw.txt").read_text()


def test_the_median_latency_is_read() -> None:
    found = perftest.columns(LATENCY)
    assert found["#bytes"] == 8
    assert found["99.9% percentile[usec]"] == 15014.78
    assert len(found) == 9
    assert perftest.latency_us(LATENCY) == 75.28


@pytest.mark.parametrize("unit", ["MB/sec", "MiB/sec"])
def test_the_average_bandwidth_is_read_in_decimal_bytes(unit: str) -> None:
    output = BANDWIDTH.replace("MB/sec", unit)
    assert perftest.gigabytes_per_s(output) == pytest.approx(6.19 * 1048576 / 1e9)


@pytest.mark.parametrize(
    "output", ["", " #bytes #iterations\n 8 500 1.0\n", "Couldn't connect to 127.0.0.1\n"]
)
def test_output_without_numbers_is_refused(output: str) -> None:
    with pytest.raises(ValueError, match="no row of numbers"):
        perftest.columns(output)


def test_a_gid_is_named_where_there_is_one_to_choose() -> None:
    plan = perftest.Plan([perftest.End("rxe1", 3), perftest.End("mlx5_0", None)], 8, 20)
    with_gid, without = (plan.command("ib_send_lat", end, 4711) for end in plan.ends)
    assert " ".join(with_gid) == "ib_send_lat -d rxe1 -p 4711 -s 8 -n 20 -x 3 -F"
    assert " ".join(without) == "ib_send_lat -d mlx5_0 -p 4711 -s 8 -n 20 -F"


@pytest.mark.parametrize(("lines", "tries"), [(["inf", "75.28"], 2), (["inf"] * 9, 5)])
def test_times_without_a_clock_are_measured_again(
    monkeypatch: pytest.MonkeyPatch, lines: list[str], tries: int
) -> None:
    outputs = iter([LATENCY.replace("75.28", value) for value in lines])
    ran: list[str] = []

    def run(program: str, _: perftest.Plan) -> str:
        ran.append(program)
        return next(outputs)

    monkeypatch.setattr(perftest, "run", run)
    plan = perftest.Plan([perftest.End("rxe1", 0)] * 2, 8, 20)
    if "75.28" in lines:
        assert perftest.measured("ib_send_lat", plan, perftest.latency_us) == 75.28
    else:
        with pytest.raises(SystemExit, match=r"ib_send_lat measured inf 5 times"):
            perftest.measured("ib_send_lat", plan, perftest.latency_us)
    assert ran == ["ib_send_lat"] * tries


def turn(latency: tuple[float, float], bandwidth: tuple[float, float]) -> rdma_goals.Turn:
    return {
        "latency_us": dict(zip(("ours", "peer"), latency)),
        "GB_per_s": dict(zip(("ours", "peer"), bandwidth)),
    }


def test_ratios_are_medians_of_the_turns_own() -> None:
    # The ratio of the medians would be 1.
    turns = [turn((10, 20), (1, 1)), turn((20, 10), (1, 2)), turn((30, 40), (1, 4))]
    row = rdma_goals.pair_row(64, turns, judge_latency=True)
    each = {"ours": [10, 20, 30], "peer": [20, 10, 40]}
    assert row["latency_us"] == {"ours": 20, "peer": 20, "ratio": 0.75, "turns": each}
    assert row["GB_per_s"]["ratio"] == 0.5
    assert row["reached"] is None


@pytest.mark.parametrize(
    ("size", "latency", "bandwidth", "judge_latency", "reached"),
    [
        (8, (15, 10), (1, 9), True, True),
        (8, (16, 10), (1, 1), True, False),
        (8, (16, 10), (1, 1), False, None),
        (1 << 19, (9, 1), (1, 9), True, None),
        (1 << 20, (9, 1), (9, 10), True, True),
        (1 << 20, (1, 1), (8, 10), False, False),
    ],
)
def test_goals_are_for_their_sizes(
    size: int,
    latency: tuple[float, float],
    bandwidth: tuple[float, float],
    judge_latency: bool,
    reached: bool | None,
) -> None:
    row = rdma_goals.pair_row(size, [turn(latency, bandwidth)], judge_latency=judge_latency)
    assert row["reached"] is reached
    (line,) = rdma_goals.pair_table([row])[2:]
    assert line.endswith({True: "| reached |", False: "| missed |", None: "|  |"}[reached])


@pytest.mark.parametrize(("ratio", "reached"), [(1.0, True), (0.99, False)])
def test_an_allreduce_is_to_be_ahead(ratio: float, reached: bool) -> None:
    measured = {
        "bytes": 1024,
        "time_us": {"median": 10.0},
        "peers": {"openmpi": {"time_us": {"median": 10.0 * ratio}}},
        "ratio": {"openmpi": ratio},
    }
    row = rdma_goals.allreduce_row(measured, "openmpi")
    assert row["reached"] is reached
    assert rdma_goals.allreduce_table([row])[2].startswith("| 1K | 10 µs | ")
