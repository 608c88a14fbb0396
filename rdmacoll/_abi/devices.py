"""The RDMA devices of this machine, as the engine, the kernel and pyverbs each see them.

The words are those of cpp/transport/rdma/facts.h. A `View` is one observer's account. If views differ, a
container, a library or a driver shows only part of the machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rdmacoll.errors import RdmacollError

if TYPE_CHECKING:
    from rdmacoll._abi.library import Library

ENGINE, SYSFS, PYVERBS = "the engine", "sysfs", "pyverbs"  # the observers
LINK_TEXT = {"infiniband": "InfiniBand", "ethernet": "Ethernet", "unknown": "unknown link layer"}
# The engine's texts that differ from this module's words.
_STATE_OF_TEXT = {"initializing": "init", "in an unknown state": "other"}
GID_TYPE_TEXT = {"infiniband": "InfiniBand", "roce_v1": "RoCE v1", "roce_v2": "RoCE v2", "unknown": "unknown"}


@dataclass(frozen=True)
class Gid:
    """A set entry of a port's GID table. `gid` has the form of `gid_text`."""

    index: int
    gid: str
    type: str = "unknown"  # infiniband, roce_v1, roce_v2, unknown
    interface: str = ""

    @property
    def is_link_local(self) -> bool:
        """fe80::/10: valid on one link only, without routers."""
        return ipaddress.IPv6Address(self.gid).is_link_local

    @property
    def is_ipv4(self) -> bool:
        """::ffff:a.b.c.d: made from an IPv4 address of the interface."""
        return ipaddress.IPv6Address(self.gid).ipv4_mapped is not None

    def text(self) -> str:
        """Index, value and type, for a person."""
        return f"GID {self.index} {self.gid} ({GID_TYPE_TEXT.get(self.type, self.type)})"


@dataclass(frozen=True)
class Port:
    """A port. A value that the observer cannot see is None, or "unknown"."""

    number: int
    state: str = "other"  # down, init, armed, active, other
    link: str = "unknown"  # infiniband, ethernet, unknown
    active_mtu: int | None = None  # bytes
    gbit_per_s: float | None = None
    lid: int | None = None  # InfiniBand
    gids: tuple[Gid, ...] = ()
    unusable: str | None = None  # from the engine only: why it cannot carry data; empty if it can


@dataclass(frozen=True)
class Device:
    """A device. A value that the observer cannot see is None or empty."""

    name: str
    firmware: str = ""
    node_guid: str = ""  # "0011:2233:4455:6677"
    is_software: bool | None = None  # soft-RoCE, soft-iWARP
    numa_node: int | None = None
    ports: tuple[Port, ...] = ()
    unusable: str = ""  # from the engine only: why it cannot carry data ("is an iWARP device")


@dataclass(frozen=True)
class Rail:
    """A port that the engine would use. `text` and `reason` are the engine's words."""

    device: str
    port: int
    gid: str
    text: str
    reason: str
    is_software: bool = False

    @property
    def is_link_local(self) -> bool:
        """Whether its GID is valid on one link only."""
        address = ipaddress.IPv6Address(self.gid)
        return (address.ipv4_mapped or address).is_link_local


@dataclass(frozen=True)
class View:
    """The devices as one observer sees them. `problem` is a sentence why the observer sees nothing at all."""

    by: str
    devices: tuple[Device, ...] = ()
    problem: str = ""
    is_broken: bool = False  # the problem was unexpected
    # From the engine only: the ports that its settings choose, or the sentence why there are none.
    rails: tuple[Rail, ...] = ()
    refusal: str = ""
    warning: str = ""  # from the engine only: a choice that works less well than it should

    def fields(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)


def gid_text(text: str) -> str:
    """The short form of a GID.

    >>> gid_text("0000:0000:0000:0000:0000:ffff:0a09:0001"), gid_text("fe80:0:0:0:0:0:0:1")
    ('::ffff:10.9.0.1', 'fe80::1')
    """
    address = ipaddress.IPv6Address(text.strip())
    mapped = address.ipv4_mapped  # the same text on all versions: only Python 3.13 writes these with dots
    return f"::ffff:{mapped}" if mapped else address.compressed


_LINK_OF_TEXT = {text: name for name, text in LINK_TEXT.items()}
_GID_TYPE_OF_TEXT = {text: name for name, text in GID_TYPE_TEXT.items()}


def _gid(fields: Mapping[str, Any]) -> Gid:
    return Gid(
        int(fields["index"]),
        gid_text(str(fields["gid"])),
        _GID_TYPE_OF_TEXT.get(str(fields["type"]), "unknown"),
        fields["interface"] or "",
    )


def _port(fields: Mapping[str, Any]) -> Port:
    state = str(fields["state"])
    return Port(
        int(fields["number"]),
        _STATE_OF_TEXT.get(state, state),
        _LINK_OF_TEXT.get(str(fields["link_layer"]), "unknown"),
        int(fields["mtu"]) or None,
        float(fields["gbit_per_s"]) or None,
        int(fields["lid"]),
        tuple(_gid(gid) for gid in fields["gids"]),
        fields["unusable"] or "",
    )


def _device(fields: Mapping[str, Any]) -> Device:
    return Device(
        str(fields["name"]),
        str(fields["firmware"]),
        str(fields["node_guid"]),
        bool(fields["software"]),
        int(fields["numa_node"]),
        tuple(_port(port) for port in fields["ports"]),
        fields["unusable"] or "",
    )


def _rail(fields: Mapping[str, Any]) -> Rail:
    gid = gid_text(str(fields["gid"]))
    texts = (str(fields["text"]), str(fields["reason"]))
    return Rail(str(fields["device"]), int(fields["port"]), gid, *texts, bool(fields["software"]))


def engine_view(library: Library | None) -> View:
    """The devices that the engine's own verbs see, and the ports that its settings choose.

    library: None if it cannot be loaded.
    """
    if library is None:
        return View(ENGINE, problem="librdmacoll cannot be loaded")
    try:
        fields = library.devices()
    except RdmacollError as error:  # wrong settings; the message has the cure
        return View(ENGINE, problem=str(error))
    return View(
        ENGINE,
        tuple(_device(device) for device in fields["devices"]),
        problem=fields["error"] or "",
        rails=tuple(_rail(rail) for rail in fields["rails"]),
        refusal=fields["choice_error"] or "",
        warning=fields["warning"] or "",
    )
