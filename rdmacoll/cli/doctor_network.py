"""The checks of `rdmacoll doctor` about the network: loopback, the host's name, interfaces. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from rdmacoll.cli.doctor_facts import Interface, Machine
from rdmacoll.cli.doctor_findings import Finding, note, ok, problem

_LOOPBACK = "lo"


def loopback(machine: Machine) -> Iterator[Finding]:
    """Whether processes of this host reach each other."""
    found = machine.network.interfaces
    if not found:
        return
    one = next((interface for interface in found if interface.name == _LOOPBACK), None)
    if one is not None and one.is_up:
        why = "ranks of one host meet over it"
        yield ok("loopback", f"lo is up (MTU {one.mtu})", why=why, check="ip addr show lo")
        return
    yield problem(
        "loopback",
        "lo is down" if one else "there is no lo",
        why="ranks of one host meet over it, and 127.0.0.1 leads nowhere",
        cure="as root: ip link set lo up (in a new network namespace it begins down)",
        check="ip addr show lo",
    )


def host_name(machine: Machine) -> Iterator[Finding]:
    """The address of this host's name, by which other ranks may connect to it."""
    found, name = machine.network, machine.host
    several = machine.start.launch is not None and machine.start.launch.size > 1
    make = problem if several else note
    check = f"getent ahosts {name}"
    why = "launchers name rank 0's host, and the other ranks look its address up"
    if found.problem:
        yield make(
            "host name",
            f"{name} has no address here: {found.problem}",
            why=why,
            cure=f"add a line 'ADDRESS {name}' to /etc/hosts on all hosts, or give rank 0's address itself: "
            "RDMACOLL_RENDEZVOUS=ADDRESS:PORT",
            check=check,
        )
        return
    if not found.addresses:
        return
    bridges = {one.address: one for one in found.interfaces if one.is_bridge}
    first = found.addresses[0]
    if first in bridges:
        yield make(
            "host name",
            f"{name} is {first}, the address of the bridge {bridges[first].name}, which other hosts do not "
            "reach",
            why=why,
            cure=f"give {name} the address of the network between the hosts in /etc/hosts, or give that "
            "itself: RDMACOLL_RENDEZVOUS=ADDRESS:PORT",
            check=check,
        )
        return
    yield ok(
        "host name", f"{name} is {', '.join(found.addresses[:3])}{_is_local(first)}", why=why, check=check
    )


def _is_local(address: str) -> str:
    is_loopback = ipaddress.ip_address(address.partition("%")[0]).is_loopback
    return " (on this host alone: other hosts must know another address)" if is_loopback else ""


def _text(one: Interface) -> str:
    return f"{one.name} {one.address} (MTU {one.mtu})"


def interfaces(machine: Machine) -> Iterator[Finding]:
    """The interfaces on which the engine listens, and why."""
    request = machine.settings.set_text("RDMACOLL_INTERFACE")
    port = machine.settings.set_text("RDMACOLL_PORT") or "any free port"
    present = [one for one in machine.network.interfaces if one.address and one.name != _LOOPBACK]
    up = [one for one in present if one.is_up]
    why, check = "ranks of other hosts connect there", "ip addr; rdmacoll config RDMACOLL_INTERFACE"
    if not machine.network.interfaces:
        return
    chosen = [one for one in up if _fits(one, machine.settings.set_value("RDMACOLL_INTERFACE"))]
    if request and not chosen:
        yield problem(
            "interfaces",
            f"{request}, and no interface that is up has that name or network; there are: "
            f"{', '.join(map(_text, present)) or 'none'}",
            why=why,
            cure="name one of these, or a network (10.1.0.0/16), or unset it",
            check=check,
        )
    elif not chosen:
        yield note(
            "interfaces",
            "lo is the only interface with an address that is up",
            why="ranks of other hosts cannot connect; those of this host can",
            cure="ip link set INTERFACE up, and give it an address",
            check=check,
            is_standing=True,
        )
    else:
        by = f"as {request} says" if request else "all that are up"
        yield ok("interfaces", f"{', '.join(map(_text, chosen))}: {by}; {port}", why=why, check=check)


def _fits(one: Interface, request: str) -> bool:
    if not request:
        return True
    for item in request.split(","):
        try:
            if ipaddress.ip_address(one.address) in ipaddress.ip_network(item.strip(), strict=False):
                return True
        except ValueError:
            if item.strip() == one.name:
                return True
    return False
