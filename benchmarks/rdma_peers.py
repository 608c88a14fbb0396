"""Compares RDMA with perftest and Open MPI, over the same two devices, in one run.

    tests/rdma/guest --env PYTHONPATH=$PWD:$PWD/tests -- .venv/bin/python benchmarks/rdma_peers.py

Rank 0 and perftest's server use the first device of RDMACOLL_TEST_DEVICE. Rank 1 and perftest's client use
the second. First the devices' packet counters must show that each library's allreduce uses the devices. Point
to point, perftest and `rdmacoll bench pair` take turns. For allreduce, both libraries take turns in the same
processes (`rdmacoll bench allreduce --peers openmpi`). All received data and all sums are checked.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import perftest
import rdma_goals
from ranks import mpirun_command
from rdma.pingpong import gid_index
from rdma.scene import ARE_SOFT, DEVICES, Traffic

from rdmacoll._base.text import counted
from rdmacoll.cli.bench_pair import sizes_of
from rdmacoll.cli.report import parse_bytes
from rdmacoll.version import __version__

TURNS_MIN = 7
ITERATIONS_MIN, ITERATIONS_MAX = 10, 1000  # limits for perftest
REPEATS = 3  # bursts of `bench pair` in one turn
PAIR = (DEVICES[0], DEVICES[1 % len(DEVICES)])
PROCESSORS = os.cpu_count() or 1
DEADLINE_S = 900.0
OPEN_MPI = {
    "OMPI_MCA_pml": "ucx",
    "OMPI_MCA_pml_ucx_tls": "any",
    "OMPI_MCA_pml_ucx_devices": "any",
    "OMPI_MCA_osc": "^ucx",
    # A waiting rank yields the processor to the other rank and to the device's software.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "UCX_TLS": "rc_verbs,ud_verbs,self",
}
SEEN_BYTES = 1 << 20
SEEN_CALLS = 10
PEER_ALONE = f"""
from mpi4py import MPI
import numpy
values = numpy.ones({SEEN_BYTES} // 4, numpy.float32)
for _ in range({SEEN_CALLS}):
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, values)
assert (values == 2.0**{SEEN_CALLS}).all()
"""
OURS_ALONE = f"""
import numpy
import rdmacoll
rdmacoll.init()
values = numpy.ones({SEEN_BYTES} // 4, numpy.float32)
for _ in range({SEEN_CALLS}):
    values = rdmacoll.engine.allreduce(values, rdmacoll.Sum)
assert (values == 2.0**{SEEN_CALLS}).all()
rdmacoll.shutdown()
"""


def settings() -> dict[str, str]:
    """Returns the ranks' environment settings. The caller's own settings take precedence."""
    names = ("RDMACOLL_", "TF_RDMA_", "OMPI_MCA_", "UCX_")
    given = {name: value for name, value in os.environ.items() if name.startswith(names)}
    return {**OPEN_MPI, "RDMACOLL_TRANSPORT": "rdma", **given}


def gid_of(device: str) -> int | None:
    """Returns the GID index for all programs.

    With soft-RoCE this is the first GID, since UCX loses its datagrams with an IPv4 GID.
    """
    return 0 if ARE_SOFT else gid_index(device)


def of_device(device: str) -> dict[str, str]:
    """Returns one rank's settings for both libraries."""
    index = gid_of(device)
    gid = {} if index is None else {"UCX_IB_GID_INDEX": str(index), "RDMACOLL_GID_INDEX": str(index)}
    return {"RDMACOLL_DEVICE": device, "UCX_NET_DEVICES": f"{device}:1", **gid}


def on_two_ranks(*arguments: str) -> None:
    """Runs Python with these arguments under mpirun, each rank on its own device."""
    command = mpirun_command(1)
    for number, device in enumerate(PAIR):
        own = [f"{name}={value}" for name, value in of_device(device).items()]
        command += [*([":", "-np", "1"] if number else []), "env", *own, sys.executable, *arguments]
    what = " ".join(arguments[:4])
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **settings()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=DEADLINE_S,
        )
    except subprocess.TimeoutExpired:
        raise SystemExit(
            f"{what} was not done in {DEADLINE_S:g} s: smaller sizes with --sizes or --max"
        ) from None
    if done.returncode:
        raise SystemExit(f"{what} failed ({done.returncode}) on {' and '.join(PAIR)}: {done.stdout[-1500:]}")


def bench(*arguments: str) -> dict[str, Any]:
    """Runs `rdmacoll bench` on two ranks and returns its JSON. Ends the program on wrong values."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        on_two_ranks("-m", "rdmacoll", "bench", *arguments, "--json", str(path))
        found: dict[str, Any] = json.loads(path.read_text())
    if not found["ok"]:
        raise SystemExit(f"bench {' '.join(arguments)} found wrong values: {found}")
    return found


def packets_seen() -> dict[str, dict[str, int]]:
    """Counts the packets of each library's allreduces on the soft-RoCE devices.

    Ends the benchmark if a library's count is too small. Devices without such counters are not checked.
    """
    if not ARE_SOFT:
        print("these devices count no packets in software: that both libraries use them is not checked")
        return {}
    seen = {}
    for name, program in (("rdmacoll", OURS_ALONE), ("openmpi", PEER_ALONE)):
        traffic = Traffic()
        on_two_ranks("-c", program)
        seen[name] = {device: traffic.packets(device) for device in PAIR}
        # Each rank receives the bytes at least once. A packet has at most 4 KiB.
        needed = SEEN_CALLS * SEEN_BYTES // 4096
        if min(seen[name].values()) < needed:
            raise SystemExit(
                f"{name} did not go over the devices: they counted {seen[name]} packets for {SEEN_CALLS} "
                f"allreduces of {SEEN_BYTES} B, which need {needed}: its settings are {settings()}"
            )
        print(f"{name}: {SEEN_CALLS} allreduces of {SEEN_BYTES} B are packets {seen[name]}", flush=True)
    return seen


def by_perftest(size: int, iterations: int) -> tuple[float, float]:
    """Measures perftest at one size. Returns the one-way latency in microseconds and GB/s."""
    ends = [perftest.End(device, gid_of(device)) for device in PAIR]
    plan = perftest.Plan(ends, size, iterations)
    return (
        perftest.measured("ib_send_lat", plan, perftest.latency_us),
        perftest.measured("ib_write_bw", plan, perftest.gigabytes_per_s),
    )


def pair_turn(options: argparse.Namespace) -> list[rdma_goals.Turn]:
    """Runs one turn: perftest at every size, then `rdmacoll bench pair`."""
    volume = parse_bytes(options.volume)
    turns: list[rdma_goals.Turn] = []
    for size in options.sizes:
        latency, bandwidth = by_perftest(size, max(ITERATIONS_MIN, min(ITERATIONS_MAX, volume // size)))
        turns.append({"latency_us": {"peer": latency}, "GB_per_s": {"peer": bandwidth}})
    sizes = ",".join(map(str, options.sizes))
    burst = ["--repeat", str(REPEATS), "--burst", str(options.burst)]
    found = bench("pair", "--transport", "rdma", "--sizes", sizes, *burst)
    rows = {row["bytes"]: row for row in found["rows"]}
    for size, turn in zip(options.sizes, turns):
        turn["latency_us"]["ours"] = rows[size]["latency_us"]
        turn["GB_per_s"]["ours"] = rows[size]["GB_per_s_forward"]
    return turns


def pairs(options: argparse.Namespace) -> list[rdma_goals.Row]:
    """Measures all turns point to point. Returns the table's rows."""
    by_turn = []
    for number in range(options.turns):
        by_turn.append(pair_turn(options))
        print(f"turn {number + 1} of {options.turns}, point to point", file=sys.stderr, flush=True)
    return [
        rdma_goals.pair_row(size, of_size, judge_latency=PROCESSORS > 1)
        for size, of_size in zip(options.sizes, map(list, zip(*by_turn)))
    ]


def allreduces(options: argparse.Namespace) -> tuple[list[rdma_goals.Row], str]:
    """Measures allreduce. Returns the table's rows and Open MPI's version."""
    sizes = ["--min", options.min, "--max", options.max, "--step", str(options.step)]
    measured = ["--turns", str(options.turns), "--burst", str(options.burst)]
    found = bench("allreduce", "--peers", "openmpi", *sizes, *measured)
    rows = [rdma_goals.allreduce_row(row, "openmpi") for row in found["rows"]]
    return rows, found["peers"]["openmpi"]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--what", choices=["both", "pair", "allreduce"], default="both")
    parser.add_argument("--turns", type=int, default=TURNS_MIN)
    parser.add_argument("--sizes", default="8,1K,16K,256K,1M,4M", help="point to point")
    parser.add_argument("--volume", default="64M", help="bytes of one turn of perftest")
    parser.add_argument("--min", default="8", help="of allreduce, and so are the following")
    parser.add_argument("--max", default="16M")
    parser.add_argument("--step", type=int, default=4)
    parser.add_argument("--burst", type=float, default=0.05, help="seconds that ours measures at once")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.sizes = sizes_of(options.sizes)
    if options.turns < TURNS_MIN:
        parser.error(f"--turns {options.turns}: at least {TURNS_MIN}, since ratios are medians over turns")
    return options


def main() -> None:
    """Prints the tables and writes the same values as JSON. The exit code is 0 if all goals are reached."""
    options = parsed()
    print(f"{counted(PROCESSORS, 'processor')}, {' and '.join(PAIR)}, Linux {platform.release()}", flush=True)
    report: dict[str, Any] = {
        "command": "rdma_peers",
        "version": __version__,
        "machine": platform.platform(),
        "processors": PROCESSORS,
        "devices": PAIR,
        "turns": options.turns,
        "settings": settings(),
    }
    rows: list[rdma_goals.Row] = []
    if options.what in ("both", "allreduce"):
        report["packets"] = packets_seen()
        report["allreduce"], report["peer"] = allreduces(options)
        rows += report["allreduce"]
        print(f"\nAllreduce, {report['peer']}\n")
        print("\n".join(rdma_goals.allreduce_table(report["allreduce"])), flush=True)
    if options.what in ("both", "pair"):
        report["pair"] = pairs(options)
        rows += report["pair"]
        print("\nPoint to point\n")
        print("\n".join(rdma_goals.pair_table(report["pair"])), flush=True)
    missed = [row for row in rows if row["reached"] is False]
    report["ok"] = not missed
    print(f"\n{len(missed)} of {sum(row['reached'] is not None for row in rows)} goals missed")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
