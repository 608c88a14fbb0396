"""From options, as horovodrun and horovod.run name them, to a job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rdmacoll._base.external_values import whole_of
from rdmacoll._launch.elastic_options import is_elastic, limits_of
from rdmacoll._launch.horovodrun_options import settings_of
from rdmacoll._launch.hosts import Host, assign, parse_hosts, read_host_file
from rdmacoll._launch.job import START_TIMEOUT_S, ElasticOptions, JobOptions, say
from rdmacoll._start.lsf import hosts_of_job
from rdmacoll.errors import ConfigError

# The workers of an elastic job's next world have asked for their places, so they meet soon.
_WORLD_START_S = "60"


def hosts_of(given: Mapping[str, Any], environ: Mapping[str, str]) -> list[Host]:
    """The hosts of --hosts or --hostfile, or of LSF's job, or this host with a slot for each rank.

    Raises ConfigError.
    """
    if given.get("hosts") and given.get("hostfile"):
        raise ConfigError("--hosts and --hostfile exclude each other: give one of them.")
    if given.get("hosts"):
        return parse_hosts(given["hosts"])
    if given.get("hostfile"):
        return read_host_file(given["hostfile"])
    source, found = hosts_of_job(environ)
    if found:
        names = ",".join(f"{name}:{slots}" for name, slots in found)
        say(f"{source} names the hosts {names}. -H names others.")
        return [Host(name, slots) for name, slots in found]
    slots = [given.get(name) or 0 for name in ("num_proc", "min_num_proc", "max_num_proc")]
    return [Host("localhost", max(1, *slots))]


def ssh_arguments(given: Mapping[str, Any]) -> list[str]:
    """The arguments of ssh that the user gave."""
    port = ["-p", str(given["ssh_port"])] if given.get("ssh_port") else []
    return port + (["-i", given["ssh_identity_file"]] if given.get("ssh_identity_file") else [])


def job_options(given: Mapping[str, Any], command: Sequence[str], environ: Mapping[str, str]) -> JobOptions:
    """The job that the options describe. Says which of them have no effect. Raises ConfigError."""
    elastic = _elastic_options(given, environ)
    if given.get("use_jsrun"):
        raise ConfigError("--jsrun: start ranks with jsrun itself (jsrun -n 8 python train.py).")
    if given.get("use_gloo") and given.get("use_mpi"):
        raise ConfigError("--gloo and --mpi exclude each other: give one of them.")
    nics = [name for names in given.get("nics") or () for name in names.split(",") if name]
    variables, notes = settings_of({**given, "nics": nics})
    timeout_s = given.get("start_timeout")
    if timeout_s is None and environ.get("HOROVOD_START_TIMEOUT"):
        timeout_s = whole_of("HOROVOD_START_TIMEOUT", environ["HOROVOD_START_TIMEOUT"])
    if timeout_s is not None:
        variables["RDMACOLL_START_TIMEOUT_S"] = str(timeout_s)
    if elastic:
        start_s = environ.get("RDMACOLL_START_TIMEOUT_S") or _WORLD_START_S
        variables = {"HOROVOD_ELASTIC": "1", "RDMACOLL_START_TIMEOUT_S": start_s, **variables}
    if given.get("with_horovod"):
        variables["PYTHONPATH"] = _with_horovod(environ.get("PYTHONPATH", ""))
    for note in notes:
        say(note)
    return JobOptions(
        command=command,
        slots=[] if elastic else assign(hosts_of(given, environ), given.get("num_proc")),
        elastic=elastic,
        environ=environ,
        variables=variables,
        ssh_port=given.get("ssh_port"),
        ssh_identity_file=given.get("ssh_identity_file"),
        start_timeout_s=START_TIMEOUT_S if timeout_s is None else float(timeout_s),
        output_folder=given.get("output_filename"),
        has_timestamps=bool(given.get("prefix_output_with_timestamp")),
        is_verbose=bool(given.get("verbose")),
    )


def _elastic_options(given: Mapping[str, Any], environ: Mapping[str, str]) -> ElasticOptions | None:
    """The options of an elastic job; None for another one. Raises ConfigError."""
    if not is_elastic(given):
        return None
    if given.get("use_mpi"):
        raise ConfigError("--mpi: MPI ends a job with its first rank. Leave out --mpi for an elastic job.")
    script = given.get("host_discovery_script")
    if script and (given.get("hosts") or given.get("hostfile")):
        raise ConfigError("--host-discovery-script names the hosts: leave out -H and --hostfile.")
    hosts = [] if script else hosts_of(given, environ)
    limits = limits_of(given, slots=None if script else sum(host.slots for host in hosts))
    return ElasticOptions(limits, hosts, script, given.get("slots"))


def horovod_folder() -> Path:
    """The folder with the package `horovod`: in a wheel beside this package, and in the tree in compat/.

    Raises ConfigError if it is not there.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_horovod_package", package.parent / "compat" / "horovod"):
        if (folder / "horovod" / "__init__.py").is_file():
            return folder
    raise ConfigError(f"--horovod: the package horovod is not in {package}: pip install rdmacoll-horovod")


def _with_horovod(python_path: str) -> str:
    return os.pathsep.join([str(horovod_folder()), *([python_path] if python_path else [])])
