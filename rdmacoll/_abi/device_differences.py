"""Differences between two views of the devices. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rdmacoll._abi.devices import GID_TYPE_TEXT, Device, Gid, Port, View

# Sysfs rounds rates: FDR has 14.0625 Gbit/s per lane, and sysfs shows 14.
_RATE_TOLERANCE = 0.02


def differences(one: View, other: View) -> list[str]:
    """The differences between two observers, each a phrase with both values.

    A value that one observer cannot see is no difference.
    """
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
    if one.unusable or other.unusable:
        return  # the engine reads no ports of a device that cannot carry data
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
        own, other_one = ours.get(index), theirs.get(index)
        if not _is_same_gid(own, other_one):
            yield f"{where}: GID {index}", _gid_text(own), _gid_text(other_one)


def _is_same_gid(one: Gid | None, other: Gid | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.gid == other.gid and (one.type == other.type or "unknown" in (one.type, other.type))


def _gid_text(gid: Gid | None) -> str:
    return "not set" if gid is None else f"{gid.gid} ({GID_TYPE_TEXT.get(gid.type, gid.type)})"
