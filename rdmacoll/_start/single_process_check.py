"""Refuses a world of one if variables say that the job has more processes. Pure, but for LSF's host file:
the variables come as a mapping."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from rdmacoll._start.launch import MPI_VARIABLES, OTHER_VARIABLES, TORCHRUN_VARIABLES
from rdmacoll._start.lsf import JOB, hosts_of_job
from rdmacoll.errors import ConfigError

_LAUNCHERS = (*MPI_VARIABLES, *OTHER_VARIABLES, TORCHRUN_VARIABLES)
# Settings of a Slurm job with several tasks. A job with several nodes has at least one task on each.
_SLURM_COUNTS = (
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NNODES",
)
_ALLOW = "For one process alone, set RDMACOLL_SIZE=1."
_BY_HAND = "RDMACOLL_RANK, RDMACOLL_SIZE and RDMACOLL_RENDEZVOUS (host:port of rank 0)"


def check_single_process(variables: Mapping[str, str], *, is_launched: bool) -> None:
    """Raises ConfigError if this process is one of several but would be a world of one.

    Otherwise each process would train a model of its own. is_launched: a launcher says that it has started
    one process. Such a process may have started others that have only Horovod's variables.
    """
    checks = (_horovod,) if is_launched else (_horovod, _slurm, _lsf, _launchers, _tf_config)
    for check in checks:
        if refusal := check(variables):
            raise ConfigError(f"{refusal} {_ALLOW}")


def _number(variables: Mapping[str, str], name: str) -> int:
    found = re.match(r"\s*(\d{1,9})", variables.get(name, ""))
    return int(found.group(1)) if found else 0


def _horovod(variables: Mapping[str, str]) -> str:
    size, rank = _number(variables, "HOROVOD_SIZE"), _number(variables, "HOROVOD_RANK")
    if size <= 1 and rank == 0:
        return ""
    variables_text = [
        f"{name}={variables[name]}" for name in ("HOROVOD_RANK", "HOROVOD_SIZE") if name in variables
    ]
    return (
        f"{' and '.join(variables_text)} come from a launcher of Horovod (horovodrun, Ray or Spark), which "
        "names no address of rank 0: each process would be a world of its own. Start with mpirun, srun or "
        "torchrun, or set RDMACOLL_RANK=$HOROVOD_RANK, RDMACOLL_SIZE=$HOROVOD_SIZE and "
        "RDMACOLL_RENDEZVOUS=host:port of rank 0."
    )


def _slurm(variables: Mapping[str, str]) -> str:
    if not variables.get("SLURM_JOB_ID"):
        return ""
    name = next((name for name in _SLURM_COUNTS if _number(variables, name) > 1), None)
    if name is None:
        return ""
    return (
        f"{name}={variables[name]} says that Slurm's job {variables['SLURM_JOB_ID']} has several tasks, but "
        "srun has not started this process: it would be a world of its own. Start it with srun or mpirun "
        f"(srun python train.py), or give {_BY_HAND}."
    )


def _lsf(variables: Mapping[str, str]) -> str:
    source, hosts = hosts_of_job(variables)
    if len(hosts) < 2:
        return ""  # slots of one host may be the cores of one process
    return (
        f"{source} says that LSF's job {variables[JOB]} has {len(hosts)} hosts ({hosts[0][0]} to "
        f"{hosts[-1][0]}), but no launcher has started this process: it would be a world of its own. Start "
        f"it with mpirun, jsrun or rdmacoll run, which reads LSF's hosts, or give {_BY_HAND}."
    )


def _launchers(variables: Mapping[str, str]) -> str:
    for source, size, rank in _LAUNCHERS:
        name = next(
            (name for name, least in ((size, 2), (rank, 1)) if _number(variables, name) >= least), None
        )
        if name is not None:
            other = rank if name == size else size
            return (
                f"{name}={variables[name]} says that {source} has started several processes, but {other} is "
                f"{variables.get(other) or 'not set'}: each would be a world of its own. Start with mpirun, "
                f"srun or torchrun, or give {_BY_HAND}."
            )
    return ""


def _tf_config(variables: Mapping[str, str]) -> str:
    try:
        document = json.loads(variables.get("TF_CONFIG") or "{}")
        cluster = dict(document.get("cluster") or {})
        tasks = sum(len(cluster.get(job) or ()) for job in ("chief", "master", "worker"))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ""  # broken: this start does not use it, and parameter servers refuse it
    if tasks <= 1:
        return ""
    return (
        f'TF_CONFIG names {tasks} workers, but it starts only worlds with parameter servers (mode="ps"): '
        f"each process would be a world of its own. Start with mpirun, srun or torchrun, or give {_BY_HAND}."
    )
