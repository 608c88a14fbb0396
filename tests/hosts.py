"""Hosts on one machine: network namespaces joined by virtual cables."""

from __future__ import annotations

import os
import subprocess


def call(*command: str) -> None:
    """Raises CalledProcessError, with what it said."""
    subprocess.run(command, check=True, capture_output=True, timeout=20)


def ip(*arguments: str) -> None:
    """The program of that name."""
    call("ip", *arguments)


class Hosts:
    """Namespaces on one bridge of its own, which lives in a namespace too: nothing outside is touched."""

    def __init__(self, count: int) -> None:
        tag = f"rc{os.getpid() % 100000}"
        self.switch = f"{tag}s"
        self.names = [f"{tag}h{number}" for number in range(count)]
        self._made: list[str] = []

    def open(self) -> None:
        self._make(self.switch)
        ip("-n", self.switch, "link", "add", "bridge0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge0", "up")
        for number, name in enumerate(self.names):
            self._make(name)
            port = f"p{number}"
            ip("-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", self.switch, "link", "set", port, "master", "bridge0", "up")
            ip("-n", name, "address", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
            ip("-n", name, "address", "add", f"fd77::{number + 1}/64", "dev", "eth0", "nodad")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def _make(self, name: str) -> None:
        self._made.append(name)  # before it is there: a call that runs into its limit may have made it
        ip("netns", "add", name)

    def prefixes(self, host_of: list[int]) -> dict[int, list[str]]:
        """How to start each rank on its host."""
        return {rank: ["ip", "netns", "exec", self.names[host]] for rank, host in enumerate(host_of)}

    def shape(self, rate: str, *, burst: str = "64kb", latency: str = "400ms") -> None:
        """Bounds every cable, in each direction; what waits longer than `latency` is dropped."""
        bound = ["root", "tbf", "rate", rate, "burst", burst, "latency", latency]
        for number, name in enumerate(self.names):
            for where, port in ((name, "eth0"), (self.switch, f"p{number}")):
                call("tc", "-n", where, "qdisc", "replace", "dev", port, *bound)

    def unplug(self, host: int) -> None:
        """Takes the cable out, without a word to anybody."""
        ip("-n", self.switch, "link", "set", f"p{host}", "down")

    def close(self) -> None:
        for name in self._made:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=20)
