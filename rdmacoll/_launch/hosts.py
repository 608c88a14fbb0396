"""Hosts with slots, and the ranks that they get. Pure, but for reading a host file."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rdmacoll._base.external_values import file_text, shown
from rdmacoll._base.text import counted
from rdmacoll.errors import ConfigError

MORE_SLOTS = "Give them more (-H node1:4), or start fewer ranks."  # the cure of too few
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.%\w]+\]|\w[\w.-]*)(?::(?P<slots>[0-9]{1,6}))?")
_SLOTS = re.compile(r"(?<!\S)slots\s*=\s*([0-9]{1,6})(?!\S)")
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Host:
    """A host and the number of ranks that it may get."""

    name: str
    slots: int


@dataclass(frozen=True)
class Slot:
    """A rank's place: its host, and its numbers there and among the ranks of the same local rank."""

    rank: int
    size: int
    host: str
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def variables(self) -> dict[str, str]:
        """Horovod's variables of this place, which programs read."""
        return {
            "HOROVOD_HOSTNAME": self.host,
            "HOROVOD_RANK": str(self.rank),
            "HOROVOD_SIZE": str(self.size),
            "HOROVOD_LOCAL_RANK": str(self.local_rank),
            "HOROVOD_LOCAL_SIZE": str(self.local_size),
            "HOROVOD_CROSS_RANK": str(self.cross_rank),
            "HOROVOD_CROSS_SIZE": str(self.cross_size),
        }


def parse_hosts(text: str, source: str = "-H") -> list[Host]:
    """The hosts of "node1:4,node2:4". A host without a number has one slot. Raises ConfigError.

    >>> parse_hosts("node1:4, node2")
    [Host(name='node1', slots=4), Host(name='node2', slots=1)]
    """
    hosts = []
    for item in text.split(","):
        found = _HOST.fullmatch(item.strip())
        if found is None:
            raise ConfigError(f"{source} {shown(text)} has {shown(item.strip())}: give node1:4,node2:4.")
        hosts.append(Host(found["name"].strip("[]"), int(found["slots"] or 1)))
    return _merged(hosts)


def read_host_file(path: str) -> list[Host]:
    """The hosts of a file with lines like "node1 slots=4". A "#" begins a comment. Raises ConfigError."""
    hosts = []
    for line in file_text(Path(path), "give a file with lines like: node1 slots=4").splitlines():
        name, *rest = line.partition("#")[0].split(None, 1) or [""]
        if name and not rest:
            hosts += parse_hosts(name, path)
        elif name:
            name = f"[{name.strip('[]')}]" if name.count(":") > 1 else name
            host, slots = _HOST.fullmatch(name), _SLOTS.search(rest[0])
            if host is None or host["slots"] or slots is None:
                raise ConfigError(f"{path} has the line {shown(line)}: write node1 slots=4.")
            hosts.append(Host(host["name"].strip("[]"), int(slots[1])))
    if not hosts:
        raise ConfigError(f"{path} names no hosts: write lines like: node1 slots=4")
    return _merged(hosts)


def discovered_hosts(text: str, slots_per_host: int | None) -> list[Host]:
    """The hosts of a discovery script's lines, like "node1:4". slots_per_host: of lines without a number.

    A line may occur twice. Raises ConfigError.

    >>> discovered_hosts("node1:4\\nnode2\\n", 2)
    [Host(name='node1', slots=4), Host(name='node2', slots=2)]
    """
    slots: dict[str, int] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        found = _HOST.fullmatch(line)
        if found is None or not (found["slots"] or slots_per_host):
            raise ConfigError(f"it prints {shown(line)}: print lines like node1:4, or give --slots-per-host.")
        name, count = found["name"].strip("[]"), int(found["slots"] or slots_per_host or 0)
        if slots.setdefault(name, count) != count:
            raise ConfigError(
                f"it prints {name} with {slots[name]} slots and with {count}: print each host once."
            )
    return [Host(name, count) for name, count in slots.items()]


def _merged(hosts: Sequence[Host]) -> list[Host]:
    """The hosts, each once: slots of a host that is named again are added."""
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return [Host(name, count) for name, count in slots.items()]


def assign(hosts: Sequence[Host], size: int | None) -> list[Slot]:
    """The places of `size` ranks, or of one rank in each slot: hosts are filled in their order.

    Raises ConfigError if there are too few slots.
    """
    slots = sum(host.slots for host in hosts)
    size = slots if size is None else size
    if not 1 <= size <= slots:
        names = ",".join(f"{host.name}:{host.slots}" for host in hosts)
        raise ConfigError(f"-np {size}: the hosts {names} have {counted(slots, 'slot')}. {MORE_SLOTS}")
    filled: list[tuple[str, int]] = []
    left = size
    for host in hosts:
        filled.append((host.name, min(left, host.slots)))
        left -= filled[-1][1]
    return placed(filled)


def placed(filled: Sequence[tuple[str, int]]) -> list[Slot]:
    """The places of the ranks of hosts with so many ranks each.

    >>> [(slot.rank, slot.host, slot.local_rank) for slot in placed([("a", 2), ("b", 1)])]
    [(0, 'a', 0), (1, 'a', 1), (2, 'b', 0)]
    """
    size = sum(count for _, count in filled)
    places: list[Slot] = []
    for number, (name, local_size) in enumerate(filled):
        for local_rank in range(local_size):
            places.append(
                Slot(
                    rank=len(places),
                    size=size,
                    host=name,
                    local_rank=local_rank,
                    local_size=local_size,
                    cross_rank=sum(count > local_rank for _, count in filled[:number]),
                    cross_size=sum(count > local_rank for _, count in filled),
                )
            )
    return places


def is_local(name: str) -> bool:
    """Whether the name is this machine's: a socket can be bound to an address of its own only."""
    if name in LOCAL_NAMES or name == socket.gethostname():
        return True
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    for family, _, _, _, address in found:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind(address)
            return True
        except OSError:
            continue
    return False
