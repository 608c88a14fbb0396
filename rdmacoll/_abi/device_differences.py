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
    first = {device.name: device for device in one.devices}
    second = {device.name: device for device in other.devices}
    for name in sorted(set(first) | set(second)):
        if name not in second:
            found.append(f"{one.by} has {name}, {other.by} has not")
        elif name not in first:
            found.append(f"{other.by} has {name}, {one.by} has not")
        else:
            found += [
                f"{property_name} is {first_value} in {one.by} and {other_value} in {other.by}"
                for property_name, first_value, other_value in _device_differences(first[name], second[name])
            ]
    return found


def _device_differences(one: Device, other: Device) -> Iterator[tuple[str, str, str]]:
    if one.is_software is not None and other.is_software is not None and one.is_software != other.is_software:
        kinds = {True: "software", False: "hardware"}
        yield f"{one.name}", kinds[one.is_software], kinds[other.is_software]
    if one.unusable or other.unusable:
        return  # the engine reads no ports of a device that cannot carry data
    first = {port.number: port for port in one.ports}
    second = {port.number: port for port in other.ports}
    if set(first) != set(second):
        yield f"the list of {one.name}'s ports", str(sorted(first)), str(sorted(second))
    for number in sorted(set(first) & set(second)):
        yield from _port_differences(f"{one.name} port {number}", first[number], second[number])


def _port_differences(port_name: str, one: Port, other: Port) -> Iterator[tuple[str, str, str]]:
    for property_name, first_value, second_value, absent in (
        ("state", one.state, other.state, "other"),
        ("link layer", one.link, other.link, "unknown"),
        ("LID", one.lid, other.lid, None),
        ("MTU", one.active_mtu, other.active_mtu, None),
    ):
        if first_value != second_value and absent not in (first_value, second_value):
            yield f"{port_name}: {property_name}", str(first_value), str(second_value)
    if one.gbit_per_s and other.gbit_per_s:
        largest = max(one.gbit_per_s, other.gbit_per_s)
        if abs(one.gbit_per_s - other.gbit_per_s) > _RATE_TOLERANCE * largest:
            yield f"{port_name}: rate", f"{one.gbit_per_s:g} Gbit/s", f"{other.gbit_per_s:g} Gbit/s"
    first = {gid.index: gid for gid in one.gids}
    second = {gid.index: gid for gid in other.gids}
    for index in sorted(set(first) | set(second)):
        own, other_one = first.get(index), second.get(index)
        if not _is_same_gid(own, other_one):
            yield f"{port_name}: GID {index}", _gid_text(own), _gid_text(other_one)


def _is_same_gid(one: Gid | None, other: Gid | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.gid == other.gid and (one.type == other.type or "unknown" in (one.type, other.type))


def _gid_text(gid: Gid | None) -> str:
    return "not set" if gid is None else f"{gid.gid} ({GID_TYPE_TEXT.get(gid.type, gid.type)})"
