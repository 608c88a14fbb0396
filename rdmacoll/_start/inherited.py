"""The variables that a program inherits from the rank that starts it, and that identify the rank. Pure: the
variables come as a mapping."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from rdmacoll._base.external_values import shown
from rdmacoll._start.horovod_variables import OF_LAUNCHERS as HOROVODS_OF_LAUNCHERS
from rdmacoll._start.launch import INIT_PIPE
from rdmacoll.errors import ConfigError

# Set in a rank while its world of several ranks stands: names the rank, with a digest of its variables.
MARK = "_RDMACOLL_RANK"
# Set in a worker of an elastic job: the folder of its agent, its number, and the number of its world.
ELASTIC_FOLDER, ELASTIC_WORKER = "_RDMACOLL_ELASTIC_FOLDER", "_RDMACOLL_WORKER"
ELASTIC_WORLD = "_RDMACOLL_WORLD"
# The values of these variables identify one process of one start.
_IDENTIFYING = (
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    *("PMI_RANK", "PMI_SIZE", "PMIX_RANK", "PMIX_SIZE", "PMIX_NAMESPACE"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    *("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
    *("RDMACOLL_RANK", "RDMACOLL_SIZE", "RDMACOLL_RENDEZVOUS", "RDMACOLL_JOB_ID", "TF_CONFIG"),
)
_RANKS = tuple(name for name in _IDENTIFYING if name.endswith(("RANK", "PROCID", "TF_CONFIG")))
_OF_LAUNCHERS = (
    *("OMPI_", "PMIX_", "PMI_", "PRTE_", "MV2_", "MPI_LOCAL", "HYDRA_", "JSM_NAMESPACE_", "FLUX_"),
    *("SLURM_", "TORCHELASTIC_", "GROUP_", "ROLE_"),
)
_NAMES = (
    *(*_IDENTIFYING, MARK, "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *(INIT_PIPE, ELASTIC_FOLDER, ELASTIC_WORKER, ELASTIC_WORLD),
    *("RDMACOLL_PORT", "RDMACOLL_MODE", "RDMACOLL_NUM_SERVERS"),
    *HOROVODS_OF_LAUNCHERS,
)


def without_launch(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables without those that identify this process in a job.

    >>> without_launch({"PATH": "/bin", "OMPI_COMM_WORLD_RANK": "1", "RDMACOLL_LOG": "info", "RANK": "1"})
    {'PATH': '/bin', 'RDMACOLL_LOG': 'info'}
    """
    return {
        name: value
        for name, value in variables.items()
        if name not in _NAMES and not name.startswith(_OF_LAUNCHERS)
    }


def _digest(variables: Mapping[str, str]) -> str:
    identity = "\0".join(f"{name}={variables.get(name, '')}" for name in _IDENTIFYING)
    return hashlib.sha256(identity.encode(errors="backslashreplace")).hexdigest()[:16]


def _stat_of(pid: int, proc: Path) -> tuple[str, int]:
    """The time at which a process began, in the kernel's ticks, and its parent.

    ("", 0) if it is not there.
    """
    try:
        fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[19], int(fields[1])
    except (OSError, IndexError, ValueError):
        return "", 0


def mark_of(rank: int, variables: Mapping[str, str]) -> str:
    """The value of MARK in this process, which is a rank."""
    return f"{os.getpid()}:{_stat_of(os.getpid(), Path('/proc'))[0]}:{rank}:{_digest(variables)}"


def _is_ancestor(pid: str, began: str, proc: Path) -> bool:
    here = os.getpid()
    while here > 1:
        _, here = _stat_of(here, proc)
        if str(here) == pid:
            return _stat_of(here, proc)[0] == began
    return False


def check_inherited(variables: Mapping[str, str], proc: Path = Path("/proc")) -> None:
    """Raises ConfigError if a rank of a running world has started this process.

    The inherited variables would make this process the same rank again.
    """
    parts = variables.get(MARK, "").split(":")
    if len(parts) != 4 or parts[0] == str(os.getpid()) or parts[3] != _digest(variables):
        return
    pid, began, rank, _ = parts
    if not any(variables.get(name) for name in _RANKS) or not _is_ancestor(pid, began, proc):
        return
    inherited = [f"{name}={shown(variables[name])}" for name in _IDENTIFYING if variables.get(name)]
    raise ConfigError(
        f"this process was started by rank {rank} of a running job (pid {pid}) and has inherited the "
        f"variables of its start ({', '.join(inherited[:3])}): init() would make it a second rank {rank}. "
        "Start it with env=rdmacoll.clean_environment(), so that it is a world of its own, or do not call "
        "init() in it."
    )
