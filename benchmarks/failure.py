"""Measures how long the surviving ranks take to name a failed rank, beside the promised times.

    python benchmarks/failure.py [--ranks 3] [--turns 7] [--transport shm] [--json FILE]

Each turn starts a fresh world and signals one rank in the middle of a stream of allreduces. The signal is
SIGKILL or SIGSTOP. Every survivor takes the time from the signal to its RankFailedError. A turn counts only
if the error names the right rank.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROMISES_S = {"kill": 1.0, "stop": 6.0}  # stop: RDMACOLL_PEER_TIMEOUT_S and one second


def survive(victim: int, signal_name: str, marker: Path) -> None:
    """Runs allreduces on one rank until a rank fails. A survivor prints the error's rank, cause and time."""
    import numpy

    import rdmacoll

    rdmacoll.init()
    rank = rdmacoll.rank()
    gradient = numpy.ones(1 << 18, dtype=numpy.float32)
    try:
        for step in range(10**9):
            rdmacoll.engine.allreduce(gradient, op=rdmacoll.Sum, name="gradient")
            if rank == victim and step == 50:
                marker.write_text(repr(time.time()))
                os.kill(os.getpid(), getattr(signal, f"SIG{signal_name.upper()}"))
    except rdmacoll.RankFailedError as error:
        seen = time.time()
        print(json.dumps({"rank": rank, "seen": seen, "named": error.rank, "cause": error.cause}), flush=True)
    # The parent kills the victim of SIGSTOP. Survivors need no orderly shutdown.
    os._exit(0)


def one_turn(ranks: int, signal_name: str, transport: str) -> list[float]:
    """Runs one turn. Returns the seconds from the signal to each survivor's error."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    victim = ranks - 1
    with tempfile.TemporaryDirectory() as folder:
        marker = Path(folder) / "signalled_at"
        processes = []
        for rank in range(ranks):
            environ = {
                **os.environ,
                "RDMACOLL_RANK": str(rank),
                "RDMACOLL_SIZE": str(ranks),
                "RDMACOLL_RENDEZVOUS": f"127.0.0.1:{port}",
                "RDMACOLL_SECRET_FILE": str(Path(folder) / "secret"),
                "RDMACOLL_TRANSPORT": transport,
            }
            command = [sys.executable, __file__, "--survive", str(victim), signal_name, str(marker)]
            processes.append(
                subprocess.Popen(
                    command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )
            )
        try:
            reports = [json.loads(process.communicate(timeout=120)[0]) for process in processes[:victim]]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        signalled_at = float(marker.read_text())
    for report in reports:
        if report["named"] != victim:
            raise SystemExit(
                f"rank {report['rank']} named rank {report['named']} instead of {victim}: {report}"
            )
    return [report["seen"] - signalled_at for report in reports]


def main() -> None:
    """Prints a table and writes the same values as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--transport", default="shm", choices=["shm", "tcp"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--survive", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.survive:
        victim, signal_name, marker = options.survive
        survive(int(victim), signal_name, Path(marker))

    rows = []
    print(f"{options.ranks} ranks over {options.transport}, {options.turns} turns, {os.cpu_count()} cores")
    print(
        f"{'signal':>8} {'median':>9} {'min':>9} {'max':>9} {'promise':>9}  (seconds until a survivor knows)"
    )
    for signal_name, promise in PROMISES_S.items():
        times = [
            seconds
            for _ in range(options.turns)
            for seconds in one_turn(options.ranks, signal_name, options.transport)
        ]
        row = {
            "signal": f"SIG{signal_name.upper()}",
            "median_s": statistics.median(times),
            "min_s": min(times),
            "max_s": max(times),
            "promise_s": promise,
        }
        rows.append(row)
        print(
            f"{row['signal']:>8} {row['median_s']:9.4f} {row['min_s']:9.4f} "
            f"{row['max_s']:9.4f} {promise:9.1f}",
            flush=True,
        )
    kept = all(row["max_s"] <= row["promise_s"] for row in rows)
    if options.json:
        report = {"command": "failure", "ok": kept, "machine": platform.platform(), "rows": rows}
        options.json.write_text(
            json.dumps({**report, "ranks": options.ranks, "transport": options.transport})
        )
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
