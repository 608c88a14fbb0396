"""Which device would carry the data, and where two views of the devices differ. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rdmacoll.engine.devices import GID_TYPE_TEXT, Device, Gid, Port, View

# Rates are rounded differently: FDR's 14.0625 Gbit/s per lane are 14 in sysfs.
_RATE_TOLERANCE = 0.02


@dataclass(frozen=True)
class Choice:
    """The port and GID that would carry the data, and why; or in `refusal` why there is none."""

    device: str = ""
    port: int = 0
    gid: Gid | None = None
    reason: str = ""
    is_software: bool = False
    refusal: str = ""


def _best_gid(port: Port) -> Gid | None:
    """The GID of an Ethernet port: RoCE v2 and not link-local, IPv4 before IPv6, then the lowest index."""
    usable = [gid for gid in port.gids if gid.type == "roce_v2"]
    usable.sort(key=lambda gid: (gid.is_link_local, not gid.is_ipv4, gid.index))
    return usable[0] if usable else None


def unusable(port: Port) -> str:
    """Why a port cannot carry data; empty when it can."""
    if port.state != "active":
        return f"its state is {port.state}, not active"
    if port.link == "ethernet" and _best_gid(port) is None:
        return "it has no GID of RoCE v2"
    if port.link == "infiniband" and port.lid == 0:
        return "it has no LID"
    return ""


def _wanted(devices: Sequence[Device], wish: str) -> Iterator[tuple[Device, Port, str]]:
    """The ports in the order of preference, each with the reason for its rank."""
    name, colon, number = wish.partition(":")
    # A device that does not say whether it is software is taken for hardware.
    for device in sorted(devices, key=lambda device: bool(device.is_software)):
        for port in device.ports:
            if not wish:
                kind = "software device" if device.is_software else "hardware device"
                yield device, port, f"the first {kind} with a usable port"
            elif device.name == name and (not colon or str(port.number) == number):
                yield device, port, f"RDMACOLL_DEVICE={wish}"


def _refusal(devices: Sequence[Device], wish: str, refused: Sequence[str]) -> str:
    if not devices:
        return f"RDMACOLL_DEVICE={wish}, and there is no device" if wish else "there is no device"
    if refused:
        return "; ".join(refused)
    if wish:
        names = [f"{device.name}:{port.number}" for device in devices for port in device.ports]
        return f"RDMACOLL_DEVICE={wish} is none of the ports here: {', '.join(names) or 'no ports'}"
    return "no device has a port"


def choose(devices: Sequence[Device], wish: str = "") -> Choice:
    """Which port and GID would carry the data, by the rule of cpp/transport/rdma/choose_device.h, for one
    rail: `wish` is a name, or a name and a port ("mlx5_0:2"), or empty.

    >>> gid = Gid(1, "::ffff:10.9.0.1", "roce_v2")
    >>> choose([Device("rxe1", is_software=True, ports=(Port(1, "active", "ethernet", gids=(gid,)),))]).reason
    'the first software device with a usable port; RoCE v2, IPv4'
    """
    refused = []
    for device, port, reason in _wanted(devices, wish):
        why_not = unusable(port)
        if why_not:
            refused.append(f"{device.name} port {port.number}: {why_not}")
            continue
        software = bool(device.is_software)
        if port.link == "infiniband":
            return Choice(device.name, port.number, None, f"{reason}; LID {port.lid}", software)
        gid = _best_gid(port)
        if gid is not None:
            kind = "link-local" if gid.is_link_local else "IPv4" if gid.is_ipv4 else "IPv6"
            reason += f"; {GID_TYPE_TEXT[gid.type]}, {kind}"
        return Choice(device.name, port.number, gid, reason, software)
    return Choice(refusal=_refusal(devices, wish, refused))


def differences(one: View, other: View) -> list[str]:
    """What two observers say differently, each a phrase with both values. What one cannot see is no
    difference."""
    found = []
    ours = {device.name: device for device in one.devices}
    theirs = {device.name: device for device in other.devices}
    for name in sorted(set(ours) | set(theirs)):
        if name not in theirs:
            found.append(f"{one.by} has {name}, {other.by} has not")
        elif name not in ours:
            found.append(f"{other.by} has {name}, {one.by} has not")
        else:
            found += [
                f"{what} is {mine} in {one.by} and {other_value} in {other.by}"
                for what, mine, other_value in _device_differences(ours[name], theirs[name])
            ]
    return found


def _device_differences(one: Device, other: Device) -> Iterator[tuple[str, str, str]]:
    if one.is_software is not None and other.is_software is not None and one.is_software != other.is_software:
        kinds = {True: "software", False: "hardware"}
        yield f"{one.name}", kinds[one.is_software], kinds[other.is_software]
    ours = {port.number: port for port in one.ports}
    theirs = {port.number: port for port in other.ports}
    if set(ours) != set(theirs):
        yield f"the list of {one.name}'s ports", str(sorted(ours)), str(sorted(theirs))
    for number in sorted(set(ours) & set(theirs)):
        yield from _port_differences(f"{one.name} port {number}", ours[number], theirs[number])


def _port_differences(where: str, one: Port, other: Port) -> Iterator[tuple[str, str, str]]:
    for what, mine, yours, nothing in (
        ("state", one.state, other.state, "other"),
        ("link layer", one.link, other.link, "unknown"),
        ("LID", one.lid, other.lid, None),
        ("MTU", one.active_mtu, other.active_mtu, None),
    ):
        if mine != yours and nothing not in (mine, yours):
            yield f"{where}: {what}", str(mine), str(yours)
    if one.gbit_per_s and other.gbit_per_s:
        largest = max(one.gbit_per_s, other.gbit_per_s)
        if abs(one.gbit_per_s - other.gbit_per_s) > _RATE_TOLERANCE * largest:
            yield f"{where}: rate", f"{one.gbit_per_s:g} Gbit/s", f"{other.gbit_per_s:g} Gbit/s"
    ours = {gid.index: gid for gid in one.gids}
    theirs = {gid.index: gid for gid in other.gids}
    for index in sorted(set(ours) | set(theirs)):
        mine_text, theirs_text = _gid_text(ours.get(index)), _gid_text(theirs.get(index))
        if mine_text != theirs_text:
            yield f"{where}: GID {index}", mine_text, theirs_text


def _gid_text(gid: Gid | None) -> str:
    return "not set" if gid is None else f"{gid.gid} ({GID_TYPE_TEXT.get(gid.type, gid.type)})"
