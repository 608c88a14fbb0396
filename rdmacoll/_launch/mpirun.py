"""The command line of mpirun that starts the same ranks, for `rdmacoll run --mpi`."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from rdmacoll._launch.hosts import Host
from rdmacoll.errors import ConfigError

_VERSION_S = 30.0
# Variables that Open MPI's own processes set. They must not reach another job.
_OWN = ("OMPI_", "PMIX_", "PRTE_", "BASH_FUNC_")


def version_text() -> str:
    """The output of `mpirun --version`. Raises ConfigError if there is no mpirun."""
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        raise ConfigError(
            "--mpi needs mpirun, which is not in PATH: install an MPI, or leave --mpi out; ranks start over "
            "ssh without it."
        )
    done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=_VERSION_S)
    return done.stdout + done.stderr


def mpirun_command(
    command: Sequence[str],
    *,
    version: str,
    size: int,
    hosts: Sequence[Host],
    variables: Mapping[str, str],
    mpi_args: str = "",
    binding_args: str = "",
    output_folder: str | None = None,
    has_timestamps: bool = False,
    ssh: Sequence[str] = (),
) -> list[str]:
    """The command line. hosts: [] starts all ranks here. ssh: further arguments of ssh. Raises ConfigError.

    version: what mpirun says of itself. Open MPI gets the names of `variables`, and never their values.
    """
    words = ["mpirun"]
    if "Open MPI" in version or "OpenRTE" in version:
        words += ["--tag-output", "--allow-run-as-root"] if os.geteuid() == 0 else ["--tag-output"]
        words += ["--timestamp-output"] if has_timestamps else []
        words += ["-np", str(size)]
        words += (
            ["-H", ",".join(f"{host.name}:{host.slots}" for host in hosts)] if hosts else ["--oversubscribe"]
        )
        words += shlex.split(binding_args) if binding_args else ["--bind-to", "none", "--map-by", "slot"]
        words += ["-mca", "plm_rsh_args", shlex.join(ssh)] if ssh else []
        words += ["--output-filename", output_folder] if output_folder else []
        for name in sorted(variables):
            words += ["-x", name] if not name.startswith(_OWN) and "=" not in name else []
    else:
        words += ["-l", "-np", str(size)]
        if hosts:
            if len({host.slots for host in hosts}) > 1:
                raise ConfigError(
                    "this mpirun takes the same number of slots on each host: give equal numbers in -H, or "
                    "leave --mpi out."
                )
            words += ["-hosts", ",".join(host.name for host in hosts), "-ppn", str(hosts[0].slots)]
        words += ["-bootstrap", "ssh", "-bootstrap-exec-args", shlex.join(ssh)] if ssh else []
        words += ["-outfile-pattern", output_folder] if output_folder else []
    return [*words, *shlex.split(mpi_args), *command]
