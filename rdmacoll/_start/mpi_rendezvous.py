"""The start under an MPI launcher without its MPI: rank 0's address and the secret, from the launcher's
variables. Pure: the variables come as a mapping.

The address has to follow from variables that are equal on all ranks. On one node it is a port of loopback.
On several nodes Open MPI names the node of mpirun, where rank 0 usually is, and a batch system names the
first node. On rank 0 a wrong guess is an error with the cure, and the launcher then ends the other ranks.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import replace

from rdmacoll._base.external_values import text_of
from rdmacoll._start.launch import PORT_FIRST, PORTS, Launch, by_mpi, first_host, join_address, split_address
from rdmacoll.errors import ConfigError

# The number of ranks on this node, by launcher.
_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
# The name of the job, different for all jobs of a machine.
_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
# Open MPI draws this key for each job, and gives it to the job's processes alone.
_KEY = "OMPI_MCA_orte_precondition_transports"
_KEY_FORM = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}")
_MPIRUN, _DAEMON = "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_orte_local_daemon_uri"
_LOOPBACK = "127.0.0.1"


def launch_without_mpi(launch: Launch, variables: Mapping[str, str], reason: str) -> Launch:
    """The launch of an MPI launcher, with the address at which its ranks meet without MPI.

    reason: why MPI cannot be used, for messages. Raises ConfigError if no variable tells the address.
    """
    job = next((variables[name] for name in _JOBS if variables.get(name)), "")
    try:
        host = _host(launch, variables)
        if not job:
            raise LookupError("no variable names the job")
    except LookupError as error:
        raise ConfigError(
            f"{launch.source} says that this is rank {launch.rank} of {launch.size}, but mpi4py cannot be "
            f"imported ({reason}), and its ranks cannot meet without it: {error}. "
            "pip install 'rdmacoll[mpi]', or give all ranks RDMACOLL_RENDEZVOUS=host:port of rank 0 "
            "(mpirun -x RDMACOLL_RENDEZVOUS=node1:4000)."
        ) from None
    digest = hashlib.sha256(job.encode(errors="backslashreplace")).digest()
    port = PORT_FIRST + int.from_bytes(digest[:4], "big") % PORTS
    found = _at(launch, variables, join_address(host, port))
    return replace(found, source=f"{launch.source} without mpi4py")


def by_mpi_and_address(variables: Mapping[str, str], address: object = None) -> Launch | None:
    """The launch of an MPI launcher whose ranks meet at RDMACOLL_RENDEZVOUS, or at `address`, and not by MPI.

    None if there is no address, or a rank or a size beside it. Raises ConfigError.
    """
    if address is None:
        address = variables.get("RDMACOLL_RENDEZVOUS")
    if address is None or "RDMACOLL_RANK" in variables or "RDMACOLL_SIZE" in variables:
        return None
    launch = by_mpi(variables)
    if launch is None or launch.size == 1:
        return None
    found = _at(launch, variables, text_of("RDMACOLL_RENDEZVOUS", address))
    return replace(found, source=f"{launch.source} and RDMACOLL_RENDEZVOUS")


def _at(launch: Launch, variables: Mapping[str, str], address: str) -> Launch:
    split_address(address)
    return replace(launch, rendezvous=address, is_mpi=False, secret=_secret(variables))


def _secret(variables: Mapping[str, str]) -> bytes:
    """The job's secret, from Open MPI's key. Empty without one."""
    key = variables.get(_KEY, "")
    return hashlib.sha256(f"rdmacoll {key}".encode()).digest() if _KEY_FORM.fullmatch(key) else b""


def _host(launch: Launch, variables: Mapping[str, str]) -> str:
    """The host of rank 0, as all ranks see it. Raises LookupError."""
    if any(variables.get(name) == str(launch.size) for name in _LOCAL_SIZES):
        return _LOOPBACK
    nodes = variables.get("SLURM_JOB_NODELIST") or variables.get("SLURM_NODELIST", "")
    if nodes:
        return first_host(nodes)
    address = _address_of_mpirun(variables.get(_MPIRUN, ""))
    if not address:
        raise LookupError("no variable names the host of rank 0")
    if launch.rank == 0 and variables.get(_DAEMON) != variables[_MPIRUN]:
        raise LookupError("rank 0 is on another host than mpirun")
    return address


def _address_of_mpirun(uri: str) -> str:
    """The first address of mpirun that other hosts can reach; "" if there is none.

    >>> _address_of_mpirun("1520893952.0;tcp://127.0.0.1,10.1.2.3:45577;tcp6://[fd00::2]:35521")
    '10.1.2.3'
    """
    found = re.search(r";tcp://([^:;]+):\d+", uri)
    for text in found.group(1).split(",") if found else ():
        try:
            if not ipaddress.ip_address(text).is_loopback:
                return text
        except ValueError:
            continue
    return ""
