"""Runs perftest's programs between two devices of this machine, and reads their output."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ranks import free_port
from rdma.pingpong import wait_for_listener

_DEADLINE_S = 120.0
_TRIES = 5
# "#bytes", "BW average[MB/sec]", "99.9% percentile[usec]": a name may contain spaces, and a single space may
# separate two names.
_COLUMN = re.compile(r"#\w+|[\w.%]+(?: [\w.%]+)*\[[\w/]+\]")


def columns(output: str) -> dict[str, float]:
    """Returns the last row of numbers by the column names above it. Raises ValueError if there is none."""
    lines = output.splitlines()
    for head, row in zip(lines, lines[1:]):
        if head.lstrip().startswith("#bytes"):
            names, values = _COLUMN.findall(head), row.split()
            if len(names) == len(values):
                return {name: float(value) for name, value in zip(names, values)}
    raise ValueError(f"no row of numbers in {output[-400:]!r}")


def latency_us(output: str) -> float:
    """Returns ib_send_lat's median one-way latency in microseconds. ib_send_lat calls it typical."""
    return columns(output)["t_typical[usec]"]


def gigabytes_per_s(output: str) -> float:
    """Returns ib_write_bw's average bandwidth in 10^9 bytes per second.

    ib_write_bw counts in units of 2^20 bytes. It calls them MB or, in newer versions, MiB.
    """
    found = columns(output)
    (average,) = (value for name, value in found.items() if re.match(r"BW average\[Mi?B/sec\]", name))
    return average * 2**20 / 1e9


@dataclass(frozen=True)
class End:
    """A device and the index of its GID. The index is None on InfiniBand, which needs no such choice."""

    device: str
    gid_index: int | None


@dataclass(frozen=True)
class Plan:
    """The arguments of one run: the server's end, the client's end, bytes and iterations.

    Both ends poll. With -e, perftest waits for events and may hang.
    """

    ends: Sequence[End]
    size: int
    iterations: int

    def command(self, program: str, end: End, port: int) -> list[str]:
        """Returns the command of one end. The caller appends the server's address for the client."""
        named = {"-d": end.device, "-p": port, "-s": self.size, "-n": self.iterations}
        words = [word for name, value in named.items() for word in (name, str(value))]
        words += [] if end.gid_index is None else ["-x", str(end.gid_index)]
        return [program, *words, "-F"]


def measured(program: str, plan: Plan, read: Callable[[str], float]) -> float:
    """Runs the program and returns the value that `read` finds in its output.

    perftest first measures the rate of the processor's clock. On a busy machine this measurement can fail.
    All times are inf then, and the program runs again.
    """
    for _ in range(_TRIES):
        value = read(run(program, plan))
        if math.isfinite(value) and value > 0:
            return value
    raise SystemExit(f"{program} measured {value} {_TRIES} times: the machine is too busy for its clock")


def run(program: str, plan: Plan) -> str:
    """Runs server and client. Returns the client's output; ends the benchmark if one of them fails."""
    port = free_port()
    server = _start(plan.command(program, plan.ends[0], port))
    try:
        wait_for_listener(port, server)
        client = _start([*plan.command(program, plan.ends[1], port), "127.0.0.1"])
        try:
            output, _ = client.communicate(timeout=_DEADLINE_S)
            server.communicate(timeout=_DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise SystemExit(
                f"{program}, {plan.iterations} times {plan.size} B, was not done in {_DEADLINE_S:g} s: "
                "give it fewer bytes with --volume"
            ) from None
        finally:
            client.kill()
    finally:
        server.kill()
    text = output.decode(errors="replace")
    if client.returncode or server.returncode:
        raise SystemExit(
            f"{program} failed on {' and '.join(end.device for end in plan.ends)} "
            f"({server.returncode}, {client.returncode}): {text[-600:]}"
        )
    return text


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
