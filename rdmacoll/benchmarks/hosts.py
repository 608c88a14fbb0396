"""Several hosts on one machine: network namespaces joined by virtual cables. Needs root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

_CALL_S = 20
# What a token bucket lets pass at once; two of the largest packets that a sender hands over would fit.
BURST_BYTES = 192_000
_QUEUE_MS = 50
_CONGESTION_CONTROL = "cubic"


def ip(*arguments: str) -> None:
    """`ip` from iproute2. Raises CalledProcessError."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=_CALL_S)


class Hosts:
    """Namespaces on one bridge of its own, which lives in a namespace too: nothing outside is touched."""

    def __init__(self, count: int) -> None:
        tag = f"rc{os.getpid() % 100000}"
        self.switch = f"{tag}s"
        self.names = [f"{tag}h{number}" for number in range(count)]
        self.addresses = [f"10.77.0.{number + 1}" for number in range(count)]
        self.congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text("utf-8").strip()
        self._made: list[str] = []

    def open(self) -> None:
        """Makes them."""
        self._make(self.switch)
        ip("-n", self.switch, "link", "add", "bridge0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge0", "up")
        for number, name in enumerate(self.names):
            self._make(name)
            port = f"p{number}"
            ip("-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", self.switch, "link", "set", port, "master", "bridge0", "up")
            ip("-n", name, "address", "add", f"{self.addresses[number]}/24", "dev", "eth0")
            ip("-n", name, "address", "add", f"fd77::{number + 1}/64", "dev", "eth0", "nodad")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def _make(self, name: str) -> None:
        self._made.append(name)  # before it is there: a call that runs into its limit may have made it
        ip("netns", "add", name)

    def shape(
        self,
        gigabits: float,
        *,
        both_ways: bool = False,
        queue_ms: int = _QUEUE_MS,
        burst_bytes: int = BURST_BYTES,
    ) -> None:
        """Every host sends at most so many Gbit/s, through a token bucket; `both_ways`: so does the switch
        to every host. `burst_bytes` pass at once where nothing was sent for a while. What would wait longer
        than `queue_ms` is dropped. TCP sends by Linux's own congestion control, where the kernel has it:
        under BBR pauses of milliseconds come and go (docs/measurements).
        """
        bucket = f"tbf rate {gigabits:g}gbit burst {burst_bytes} latency {queue_ms}ms".split()
        ends = [(name, "eth0") for name in self.names]
        if both_ways:
            ends += [(self.switch, f"p{number}") for number in range(len(self.names))]
        for where, port in ends:
            subprocess.run(
                ["tc", "-n", where, "qdisc", "replace", "dev", port, "root", *bucket],
                check=True,
                capture_output=True,
                timeout=_CALL_S,
            )
        with contextlib.suppress(subprocess.CalledProcessError):
            self._send_by(_CONGESTION_CONTROL)
            self.congestion = _CONGESTION_CONTROL

    def _send_by(self, control: str) -> None:
        """The congestion control of all TCP connections between hosts."""
        for name, address in zip(self.names, self.addresses):
            plain = ["10.77.0.0/24", "dev", "eth0", "proto", "kernel", "scope", "link", "src", address]
            ip("-n", name, "route", "replace", *plain, "congctl", control)
            six = ["fd77::/64", "dev", "eth0", "proto", "kernel", "metric", "256"]
            ip("-n", name, "-6", "route", "replace", *six, "congctl", control)

    def mtu(self) -> int:
        """Of the first host's cable, in bytes."""
        words = subprocess.run(
            ["ip", "-n", self.names[0], "link", "show", "eth0"],
            check=True,
            capture_output=True,
            text=True,
            timeout=_CALL_S,
        ).stdout.split()
        return int(words[words.index("mtu") + 1])

    def prefixes(self, host_of: Sequence[int]) -> dict[int, list[str]]:
        """How to start each rank on its host."""
        return {rank: ["ip", "netns", "exec", self.names[host]] for rank, host in enumerate(host_of)}

    def shell(self, folder: Path) -> Path:
        """A program that runs a command on a host, `PROGRAM [-OPTION ...] ADDRESS COMMAND...`, for
        launchers that use ssh. The host has a name of its own, by which MPIs tell hosts apart."""
        path = folder / "on_host"
        cases = "".join(f"  {address}) name={name};;\n" for address, name in zip(self.addresses, self.names))
        path.write_text(
            "#!/bin/sh\n"
            'while case "$1" in -*) true;; *) false;; esac; do shift; done\n'
            "address=$1; shift\n"
            f'case "$address" in\n{cases}  *) echo "no host has the address $address" >&2; exit 1;;\nesac\n'
            'exec ip netns exec "$name" unshare --uts sh -c \'hostname "$0"; exec sh -c "$1"\' "$name" "$*"\n'
        )
        path.chmod(0o755)
        return path

    def unplug(self, host: int) -> None:
        """Takes the cable out, without a word to anybody."""
        ip("-n", self.switch, "link", "set", f"p{host}", "down")

    def close(self) -> None:
        """Takes them away."""
        for name in self._made:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=_CALL_S)
