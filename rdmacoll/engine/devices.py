"""What is known of the RDMA devices of this machine, as the engine, the kernel and pyverbs each see it.

The words are those of cpp/transport/rdma/facts.h. A `View` is one observer's account; views that differ point
at a container, a library or a driver that shows only part of the machine.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

ENGINE, SYSFS, PYVERBS = "the engine", "sysfs", "pyverbs"  # who looks
LINK_TEXT = {"infiniband": "InfiniBand", "ethernet": "Ethernet", "unknown": "unknown link layer"}
GID_TYPE_TEXT = {"infiniband": "InfiniBand", "roce_v1": "RoCE v1", "roce_v2": "RoCE v2", "unknown": "unknown"}


@dataclass(frozen=True)
class Gid:
    """An entry of a port's GID table that is set; `gid` as `gid_text` writes it."""

    index: int
    gid: str
    type: str = "unknown"  # infiniband, roce_v1, roce_v2, unknown
    interface: str = ""

    @property
    def is_link_local(self) -> bool:
        """fe80::/10: good on one link only, where no router is between."""
        return ipaddress.IPv6Address(self.gid).is_link_local

    @property
    def is_ipv4(self) -> bool:
        """::ffff:a.b.c.d: made from an IPv4 address of the interface."""
        return ipaddress.IPv6Address(self.gid).ipv4_mapped is not None

    def text(self) -> str:
        """For a person: index, value and type."""
        return f"GID {self.index} {self.gid} ({GID_TYPE_TEXT.get(self.type, self.type)})"


@dataclass(frozen=True)
class Port:
    """A port. What an observer cannot see is None, or "unknown"."""

    number: int
    state: str = "other"  # down, init, armed, active, other
    link: str = "unknown"  # infiniband, ethernet, unknown
    active_mtu: int | None = None  # bytes
    gbit_per_s: float | None = None
    lid: int | None = None  # InfiniBand
    gids: tuple[Gid, ...] = ()


@dataclass(frozen=True)
class Device:
    """A device. What an observer cannot see is None or empty."""

    name: str
    firmware: str = ""
    node_guid: str = ""  # "0011:2233:4455:6677"
    is_software: bool | None = None  # soft-RoCE, soft-iWARP
    numa_node: int | None = None
    ports: tuple[Port, ...] = ()


@dataclass(frozen=True)
class View:
    """The devices as one observer sees them. `problem` says, in a sentence, why it sees nothing at all."""

    by: str
    devices: tuple[Device, ...] = ()
    problem: str = ""
    is_broken: bool = False  # the problem came unexpectedly
    # The engine alone: what its transport would use, in its own words, or why it would use none.
    choice: str = ""
    refusal: str = ""

    def fields(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def gid_text(text: str) -> str:
    """The short form of a GID.

    >>> gid_text("0000:0000:0000:0000:0000:ffff:0a09:0001"), gid_text("fe80:0:0:0:0:0:0:1")
    ('::ffff:10.9.0.1', 'fe80::1')
    """
    address = ipaddress.IPv6Address(text.strip())
    mapped = address.ipv4_mapped  # Python 3.13 writes these with dots, earlier ones do not
    return f"::ffff:{mapped}" if mapped else address.compressed


def _gid(fields: Mapping[str, Any]) -> Gid:
    return Gid(
        int(fields["index"]),
        gid_text(str(fields["gid"])),
        str(fields.get("type", "unknown")),
        str(fields.get("interface", "")),
    )


def _port(fields: Mapping[str, Any]) -> Port:
    return Port(
        int(fields["number"]),
        str(fields["state"]),
        str(fields["link"]),
        fields.get("active_mtu"),
        fields.get("gbit_per_s"),
        fields.get("lid"),
        tuple(_gid(gid) for gid in fields.get("gids", ())),
    )


def _device(fields: Mapping[str, Any]) -> Device:
    return Device(
        str(fields["name"]),
        str(fields.get("firmware", "")),
        str(fields.get("node_guid", "")),
        fields.get("is_software"),
        fields.get("numa_node"),
        tuple(_port(port) for port in fields.get("ports", ())),
    )


def engine_view(library: object | None) -> View:
    """What the engine's own verbs see, from `library.devices_json()`, where the loaded library has that.

    Its text is an object. "devices" is a list whose keys, and whose names of states, links and types,
    are those of facts.h; "problem" (optional) says why nothing can be known; "choice" and "refusal"
    (optional) are the text with the reason of the rails that its settings choose, or the error instead.
    `library` is None when it cannot be loaded.
    """
    if library is None:
        return View(ENGINE, problem="librdmacoll cannot be loaded")
    ask = getattr(library, "devices_json", None)
    if ask is None:
        return View(ENGINE, problem="this librdmacoll has no RDMA transport")
    fields = json.loads(ask())
    return View(
        ENGINE,
        tuple(_device(device) for device in fields.get("devices", ())),
        problem=str(fields.get("problem", "")),
        choice=str(fields.get("choice", "")),
        refusal=str(fields.get("refusal", "")),
    )
