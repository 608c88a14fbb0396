"""Gathers the facts of `rdmacoll doctor` about the network, threads and variables."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

from rdmacoll._start import cluster
from rdmacoll._start.secret import read_secret
from rdmacoll.cli.doctor_facts import UNLIMITED, Interface, Limit, Network, Threads, Variables
from rdmacoll.errors import RdmacollError

_SIOCGIFADDR = 0x8915  # returns the first IPv4 address of an interface, by its name
_SIOCGIFFLAGS = 0x8913
_SIOCGIFMTU = 0x8921
_IFF_UP = 1
_RANKS_OF_A_NODE = (
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "LOCAL_WORLD_SIZE",
    "SLURM_NTASKS_PER_NODE",
)


def _asked(query: socket.socket, request: int, name: str) -> bytes:
    """The answer of the kernel about an interface, behind its name. Empty if there is none."""
    try:
        answer = fcntl.ioctl(query, request, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return b""
    return answer[16:]


def interfaces(sys: Path) -> tuple[Interface, ...]:
    """The interfaces of this process's network namespace. `sys` tells which of them are bridges.

    A process in a namespace of its own may see another namespace's interfaces in /sys.
    """
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        for name in sorted(name for _, name in socket.if_nameindex()):
            address = _asked(query, _SIOCGIFADDR, name)
            (flags,) = struct.unpack_from("H", _asked(query, _SIOCGIFFLAGS, name) or bytes(2))
            (mtu,) = struct.unpack_from("i", _asked(query, _SIOCGIFMTU, name) or bytes(4))
            is_bridge = (sys / "class/net" / name / "bridge").is_dir()
            text = socket.inet_ntoa(address[4:8]) if address else ""
            found.append(Interface(name, text, mtu, bool(flags & _IFF_UP), is_bridge))
    return tuple(found)


def network(sys: Path, name: str) -> Network:
    """The interfaces, and the addresses of the host's name."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return Network(interfaces(sys), problem=reason or str(error))
    return Network(interfaces(sys), tuple(dict.fromkeys(str(entry[4][0]) for entry in found)))


def _number(text: str) -> int | None:
    digits = text.strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else None


def threads(variables: Mapping[str, str], limit: Limit) -> Threads:
    """The facts about threads, from the variables of OpenMP and of launchers."""
    ranks = (_number(variables.get(name, "")) for name in _RANKS_OF_A_NODE)
    omp_threads = variables.get("OMP_NUM_THREADS", "").partition(",")[0]
    return Threads(_number(omp_threads), next((count for count in ranks if count), 1), limit)


def limit_of(kind: int) -> Limit:
    """A resource limit of this process."""
    soft, hard = resource.getrlimit(kind)
    return Limit(*(UNLIMITED if value == resource.RLIM_INFINITY else value for value in (soft, hard)))


def variables(found: Mapping[str, str], secret_file: str) -> Variables:
    """The variables of other programs, and the faults of TF_CONFIG and of the secret. This creates no
    file."""
    tf_config = secret = ""
    if found.get("TF_CONFIG", "").strip():
        try:
            cluster.tf_config_options(found["TF_CONFIG"])
        except RdmacollError as error:
            tf_config = str(error)
    if secret_file and os.path.lexists(os.path.expanduser(secret_file)):
        try:
            read_secret(secret_file)
        except RdmacollError as error:
            secret = str(error)
    # Variables of Horovod's launchers belong to a finding of the start.
    horovod = sorted(name for name in found if name.startswith("HOROVOD_"))
    return Variables(tuple(horovod), tf_config, secret)
