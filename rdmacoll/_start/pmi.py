"""The start under Hydra, the mpirun of MPICH and of Intel MPI, without its MPI: Hydra carries rank 0's
address and a secret from rank 0 to the others.

Hydra and its processes speak PMI 1 over an inherited socket: requests and answers are lines of words like
name=value. After the exchange the process says that it needs PMI no more. Otherwise Hydra would end all ranks
when the first one ends.
"""

from __future__ import annotations

import os
import random
import secrets
import select
import socket
from collections.abc import Mapping
from dataclasses import replace

from rdmacoll._base.external_values import shown
from rdmacoll._base.log import Log
from rdmacoll._start.launch import PORT_FIRST, PORTS, Launch, join_address, split_address
from rdmacoll._start.secret import SECRET_BYTES
from rdmacoll._start.start_deadline import StartDeadline
from rdmacoll.errors import ConfigError

_SOCKET, _LOCAL_SIZE = "PMI_FD", "MPI_LOCALNRANKS"
# The name by which Hydra reaches this host: of MPICH 5, of MPICH 4, of Intel MPI.
_HOSTS = ("PMI_HOSTNAME", "MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "HYDRA_BSTRAP_LOCALHOST")
_KEY = "rdmacoll"
_LINE_MAX = 4096
# A process meets the others once: PMI ends then. Later starts of its world use the same address.
_MET: dict[str, Launch] = {}


def meet(launch: Launch, variables: Mapping[str, str], timeout_s: float | None) -> Launch | None:
    """The launch with rank 0's address and the job's secret. Returns when all ranks have called it. None if
    no process manager speaks PMI 1 with this process.

    Raises ConfigError if the process manager does not answer as PMI 1 asks, and after `timeout_s`.
    """
    descriptor = variables.get(_SOCKET, "")
    if not descriptor.isdecimal():
        return None
    if descriptor not in _MET:
        log = Log(variables.get("RDMACOLL_LOG", "warning"), launch.rank)
        manager = _Manager(int(descriptor), StartDeadline(timeout_s, log))
        address, secret, job = manager.exchanged(launch, variables)
        found = replace(launch, rendezvous=address, is_mpi=False, secret=secret, job=job)
        _MET[descriptor] = replace(found, source=f"{launch.source} without mpi4py")
    return _MET[descriptor]


class _Manager:
    """The process manager at the other end of the socket."""

    def __init__(self, descriptor: int, deadline: StartDeadline) -> None:
        self._descriptor, self._deadline = descriptor, deadline

    def exchanged(self, launch: Launch, variables: Mapping[str, str]) -> tuple[str, bytes, str]:
        """Rank 0's address, the secret, and the manager's name for the job."""
        self._ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")
        job = self._ask("cmd=get_my_kvsname", "my_kvsname").get("kvsname", "")
        if launch.rank == 0:
            value = f"{_own_address(launch, variables)},{secrets.token_hex(SECRET_BYTES)}"
            self._ask(f"cmd=put kvsname={job} key={_KEY} value={value}", "put_result")
        self._ask("cmd=barrier_in", "barrier_out")
        value = self._ask(f"cmd=get kvsname={job} key={_KEY}", "get_result").get("value", "")
        self._ask("cmd=finalize", "finalize_ack")
        address, _, secret = value.rpartition(",")
        try:
            split_address(address)
            return address, bytes.fromhex(secret), job
        except (ConfigError, ValueError):
            raise self._refusal("it gave no address of rank 0") from None

    def _ask(self, request: str, answer: str) -> dict[str, str]:
        try:
            os.write(self._descriptor, f"{request}\n".encode())
            line = self._line()
        except OSError as error:
            raise self._refusal(str(error.strerror)) from None
        words = dict(word.partition("=")[::2] for word in line.split())
        if words.get("cmd") != answer or words.get("rc", "0") != "0":
            raise self._refusal(f"it answered {shown(line)} to {request.split()[0]}")
        return words

    def _line(self) -> str:
        received = b""
        while not received.endswith(b"\n"):
            if select.select([self._descriptor], [], [], self._deadline.slice_s())[0]:
                chunk = os.read(self._descriptor, _LINE_MAX)
                received += chunk
                if not chunk or len(received) > _LINE_MAX:
                    raise self._refusal("it closed the connection" if not chunk else "its answer has no end")
                continue
            self._deadline.report("waiting for the other ranks of this job of mpirun to reach init()")
            if self._deadline.is_over():
                raise ConfigError(
                    f"not all ranks of this job of mpirun reached init() {self._deadline.limit_text()}: some "
                    "rank is late or has ended."
                )
        return received.decode(errors="replace").strip()

    def _refusal(self, reason: str) -> ConfigError:
        return ConfigError(
            f"mpirun's process manager ({_SOCKET}={self._descriptor}) does not carry the start: {reason}. "
            "pip install 'rdmacoll[mpi]', or give all ranks RDMACOLL_RENDEZVOUS=host:port of rank 0."
        )


def _own_address(launch: Launch, variables: Mapping[str, str]) -> str:
    """The address at which this rank listens, as other hosts reach it."""
    if variables.get(_LOCAL_SIZE) == str(launch.size):
        host = "127.0.0.1"
    else:
        host = next((variables[name] for name in _HOSTS if variables.get(name)), "") or socket.gethostname()
    for port in random.sample(range(PORT_FIRST, PORT_FIRST + PORTS), 200):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return join_address(host, port)
    raise ConfigError(f"no port from {PORT_FIRST} to {PORT_FIRST + PORTS - 1} is free on {host}.")
