"""The address at which a rank listens for the other ranks."""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Any

from rdmacoll._start.launch import Launch, parse_address
from rdmacoll.errors import ConfigError

_ANY_ADDRESS = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}
_BACKLOG = 4096  # for all ranks, and foreign callers before them
_SIOCGIFADDR = 0x8915


class AddressTakenError(ConfigError):
    """Another socket on this machine has the port."""


def bridge_of(address: str) -> str:
    """The local bridge (docker0) that has this IPv4 address, or "".

    Other hosts cannot reach such an address.
    """
    for _, name in socket.if_nameindex():
        if not (Path("/sys/class/net") / name / "bridge").is_dir():
            continue
        request = struct.pack("256s", name.encode()[:15])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query_socket:
            try:
                answer = fcntl.ioctl(query_socket.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # this bridge has no IPv4 address
        if socket.inet_ntoa(answer[20:24]) == address:
            return name
    return ""


def unreachable_remark(address: str) -> str:
    """A remark for messages on an address that other hosts cannot reach, or ""."""
    bridge = bridge_of(address)
    return (
        f" (other hosts cannot reach it: {address} is the address of the bridge {bridge})" if bridge else ""
    )


def connect_remark(address: str, error: OSError) -> str:
    """A remark for the message on a connection to this address that failed, or ""."""
    bridge = bridge_of(address)
    if bridge:
        return f" (the address of this host's bridge {bridge}, which no other host reaches)"
    is_loopback = ipaddress.ip_address(address.partition("%")[0]).is_loopback
    if is_loopback and error.errno == errno.ENETUNREACH:
        return ' (the loopback interface is down: bring it up by "ip link set lo up")'
    return ""


def _is_unreachable(host: str, address: str) -> bool:
    """Whether a host's own name resolves to an address that others cannot reach: loopback, or a bridge."""
    if host == "localhost":
        return False
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:  # a name
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback or bool(bridge_of(address))
    return False


def own_listen_address(launch: Launch) -> tuple[socket.AddressFamily, Any]:
    """The address at which this rank listens: family, and the socket's address. Raises ConfigError."""
    address = launch.hosts[launch.rank] if launch.hosts else launch.rendezvous
    found = parse_address(address)
    assert found is not None, address  # `launch` is already checked
    host, port = found
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            f"{launch.name(launch.rank)} cannot resolve {host} of its address {address}: {error.strerror}. "
            f"Give a name or an IP address of its host in {launch.address_source(launch.rank)}."
        ) from None
    family, _, _, _, sockaddr = resolved[0]
    if _is_unreachable(host, str(sockaddr[0])):
        return family, (_ANY_ADDRESS[family], port)
    return family, sockaddr


def engine_listen_settings(launch: Launch) -> dict[str, object]:
    """The settings that make the engine listen at the rendezvous address.

    Then a firewall has to let only addresses from the lists through. Raises ConfigError.
    """
    _, (host, port, *_rest) = own_listen_address(launch)
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_unspecified:
        return {"port": port}
    if address.is_link_local or (address.is_loopback and host not in ("127.0.0.1", "::1")):
        return {}  # the engine knows no interface with this address
    return {"port": port, "interface": host}


def listen(launch: Launch) -> socket.socket:
    """A listening socket at this rank's address. Raises ConfigError."""
    family, sockaddr = own_listen_address(launch)
    address = launch.hosts[launch.rank] if launch.hosts else launch.rendezvous
    me, source = launch.name(launch.rank), launch.address_source(launch.rank)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(sockaddr)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            twice = f"Is {me} started twice? Otherwise choose" if launch.hosts else "Choose"
            raise AddressTakenError(
                f"{me} cannot listen at {address}: another program has port {sockaddr[1]}. {twice} another "
                f"one in {source}."
            ) from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(
                f"{me} cannot listen at {address}: this machine does not have that address. Give an address "
                f"of the host of {me} in {source}."
            ) from None
        raise ConfigError(f"{me} cannot listen at {address}: {error.strerror}.") from None
    listener.setblocking(False)
    return listener
