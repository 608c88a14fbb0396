"""Several hosts on one machine: network namespaces joined by virtual cables. Needs root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

_CALL_S = 20
# The bytes that a token bucket lets pass at once. They hold at least two of the largest packets that a sender
# hands over.
BURST_BYTES = 192_000
_QUEUE_MS = 50
_CONGESTION_CONTROL = "cubic"


def ip(*arguments: str) -> None:
    """`ip` from iproute2. Raises CalledProcessError."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=_CALL_S)


class Hosts:
    """Namespaces joined by a bridge. The bridge has a namespace of its own, so the machine's network stays
    as it is. They exist within a `with` statement."""

    def __init__(self, count: int) -> None:
        tag = f"rc{os.getpid() % 100000}"
        self.switch = f"{tag}s"
        self.names = [f"{tag}h{number}" for number in range(count)]
        self.addresses = [f"10.77.0.{number + 1}" for number in range(count)]
        self.congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text("utf-8").strip()
        self._namespaces: list[str] = []

    def __enter__(self) -> Hosts:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Creates the hosts and their cables. Raises CalledProcessError."""
        self._add_namespace(self.switch)
        ip("-n", self.switch, "link", "add", "bridge0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge0", "up")
        for number, name in enumerate(self.names):
            self._add_namespace(name)
            port = f"p{number}"
            ip("-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", self.switch, "link", "set", port, "master", "bridge0", "up")
            ip("-n", name, "address", "add", f"{self.addresses[number]}/24", "dev", "eth0")
            ip("-n", name, "address", "add", f"fd77::{number + 1}/64", "dev", "eth0", "nodad")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def _add_namespace(self, name: str) -> None:
        self._namespaces.append(name)  # noted first: a call that times out may have created the namespace
        ip("netns", "add", name)

    def shape(
        self,
        gigabits: float,
        *,
        both_ways: bool = False,
        queue_ms: int = _QUEUE_MS,
        burst_bytes: int = BURST_BYTES,
    ) -> None:
        """Limits the sending rate of each host to `gigabits` Gbit/s through a token bucket. both_ways: the
        switch sends to each host at this rate, too. burst_bytes: the bytes that pass at once after a pause.
        Packets that would wait longer than `queue_ms` milliseconds are dropped.

        TCP uses Linux's default congestion control, if the kernel has it: BBR pauses for milliseconds at
        times (docs/measurements). Raises CalledProcessError.
        """
        bucket = f"tbf rate {gigabits:g}gbit burst {burst_bytes} latency {queue_ms}ms".split()
        ends = [(name, "eth0") for name in self.names]
        if both_ways:
            ends += [(self.switch, f"p{number}") for number in range(len(self.names))]
        for namespace, port in ends:
            subprocess.run(
                ["tc", "-n", namespace, "qdisc", "replace", "dev", port, "root", *bucket],
                check=True,
                capture_output=True,
                timeout=_CALL_S,
            )
        with contextlib.suppress(subprocess.CalledProcessError):
            self._send_by(_CONGESTION_CONTROL)
            self.congestion = _CONGESTION_CONTROL

    def _send_by(self, control: str) -> None:
        """Sets the congestion control of all TCP connections between hosts."""
        for name, address in zip(self.names, self.addresses):
            plain = ["10.77.0.0/24", "dev", "eth0", "proto", "kernel", "scope", "link", "src", address]
            ip("-n", name, "route", "replace", *plain, "congctl", control)
            six = ["fd77::/64", "dev", "eth0", "proto", "kernel", "metric", "256"]
            ip("-n", name, "-6", "route", "replace", *six, "congctl", control)

    def mtu(self) -> int:
        """The MTU of the first host's cable, in bytes."""
        words = subprocess.run(
            ["ip", "-n", self.names[0], "link", "show", "eth0"],
            check=True,
            capture_output=True,
            text=True,
            timeout=_CALL_S,
        ).stdout.split()
        return int(words[words.index("mtu") + 1])

    def prefixes(self, host_of: Sequence[int]) -> dict[int, list[str]]:
        """Returns, by rank, the prefix of a command that starts the rank on its host."""
        return {rank: ["ip", "netns", "exec", self.names[host]] for rank, host in enumerate(host_of)}

    def shell(self, folder: Path) -> Path:
        """A program that runs a command on a host, `PROGRAM [-OPTION ...] ADDRESS COMMAND...`. Launchers
        use it in place of ssh. Each host has a name of its own, by which MPIs tell hosts apart."""
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
        """Pulls the cable of a host out: neither end is told."""
        ip("-n", self.switch, "link", "set", f"p{host}", "down")

    def close(self) -> None:
        """Deletes the hosts."""
        for name in self._namespaces:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=_CALL_S)
