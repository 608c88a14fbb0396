"""The checks of `rdmacoll doctor` about the start of ranks: launcher, variables, secret, MPI. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rdmacoll._start.horovod_variables import without_effect
from rdmacoll.cli.doctor_facts import Machine, Mpi
from rdmacoll.cli.doctor_findings import Finding, note, ok, problem

# A launcher and a library of one family work together.
_FAMILIES = {"Open MPI": "Open MPI", "MPICH": "PMI", "Intel MPI": "PMI", "MVAPICH": "PMI"}


def start(machine: Machine) -> Iterator[Finding]:
    """How this process was started."""
    check = "env | grep -E 'RDMACOLL|OMPI_COMM|PMI|SLURM|WORLD_SIZE'"
    if machine.start.problem:
        yield problem(
            "start",
            machine.start.problem,
            why="init() refuses to guess which rank this is",
            cure="set all of the variables, or none",
            check=check,
        )
    else:
        launch = machine.start.launch
        seen = launch.describe() if launch else "without a launcher: a world of one"
        yield ok("start", seen, why="init() takes its rank from these variables", check=check)


def tf_config(machine: Machine) -> Iterator[Finding]:
    """Whether TF_CONFIG can be read, if it is set."""
    if machine.variables.tf_config:
        yield problem(
            "TF_CONFIG",
            machine.variables.tf_config,
            why="parameter servers and TensorFlow read the list of processes from it",
            cure="write it as one line of JSON, or unset it",
            check='echo "$TF_CONFIG" | python -m json.tool',
        )


def horovod(machine: Machine) -> Iterator[Finding]:
    """Variables of Horovod that have no effect here."""
    aliases = {str(alias) for row in machine.settings.rows for alias in row.get("aliases", ())}
    found = without_effect(dict.fromkeys(machine.variables.horovod, ""), aliases)
    names = [name for group in found.values() for name in group]
    if names:
        yield note(
            "Horovod",
            f"{', '.join(names[:5])} {'is' if len(names) == 1 else 'are'} set, without effect here",
            why="; ".join(found),
            cure="unset them; rdmacoll config --all lists the settings, with Horovod's names "
            "(HOROVOD_FUSION_THRESHOLD is RDMACOLL_BUCKET_BYTES)",
            check="env | grep HOROVOD; rdmacoll config --all",
        )


def secret(machine: Machine) -> Iterator[Finding]:
    """Whether the file of the job's secret can be used, if it exists."""
    if machine.variables.secret:
        yield problem(
            "secret",
            machine.variables.secret,
            why="ranks that start without MPI use it to prove that they belong to one job",
            cure="follow the message; the file must be the same on every host",
            check="ls -ln ~/.rdmacoll/secret $RDMACOLL_SECRET_FILE",
        )


def flavour(text: str) -> tuple[str, str]:
    """(the MPI's name, its version), from the output of `mpirun --version` or MPI_Get_library_version.

    >>> flavour("mpirun (Open MPI) 4.1.4"), flavour("MPICH Version:      4.0.2")
    (('Open MPI', '4.1.4'), ('MPICH', '4.0.2'))
    """
    names = {
        "Open MPI": r"Open MPI|OpenRTE|prterun|PRRTE",
        "Intel MPI": r"Intel\(R\) MPI",
        "MVAPICH": r"MVAPICH",
        "MPICH": r"MPICH|HYDRA",
    }
    name = next((name for name, pattern in names.items() if re.search(pattern, text)), "")
    version = re.search(r"\d+(?:\.\d+)+\w*", text)
    return name, version.group(0) if version else ""


def _fits(launcher: tuple[str, str], library: tuple[str, str]) -> bool:
    """Whether ranks of this launcher find each other with this library."""
    if _FAMILIES.get(launcher[0], launcher[0]) != _FAMILIES.get(library[0], library[0]):
        return False
    # The launch protocol of Open MPI 5 is not that of Open MPI 4.
    return launcher[0] != "Open MPI" or launcher[1].split(".")[0] == library[1].split(".")[0]


def mpi(machine: Machine) -> Iterator[Finding]:
    """The launcher, mpi4py's MPI, and whether they fit each other."""
    found = machine.mpi
    launched = machine.start.launch is not None and "MPI" in machine.start.launch.source
    by_hand = "RDMACOLL_RANK, RDMACOLL_SIZE and RDMACOLL_RENDEZVOUS start ranks without MPI"
    launcher, library = flavour(found.mpirun_version), flavour(found.library)
    launcher_text = " ".join(launcher).strip() or found.mpirun
    if found.problem:
        yield problem(
            "MPI",
            f"mpi4py {found.mpi4py} cannot be used: {found.problem}",
            why="ranks that mpirun starts find each other through mpi4py",
            cure="put the MPI's mpirun on the path; pip install --force-reinstall --no-cache-dir mpi4py",
            check="python -c 'from mpi4py import MPI; print(MPI.Get_library_version())'",
        )
    elif not found.mpi4py and found.mpirun:
        yield (problem if launched and launcher[0] != "Open MPI" else note)(
            "MPI",
            f"{found.mpirun} is {launcher_text}, but mpi4py is not installed",
            why="ranks of mpirun find each other through mpi4py, or by Open MPI's variables if rank 0 runs "
            "on the host of mpirun",
            cure=f"pip install 'rdmacoll[mpi]'; {by_hand}",
            check="python -c 'import mpi4py'",
        )
    elif not found.mpirun:
        have = f"mpi4py {found.mpi4py} is there" if found.mpi4py else "neither is mpi4py"
        yield note(
            "MPI",
            f"mpirun is not on the path; {have}",
            why="it is the usual way to start ranks; Slurm's srun and torchrun do as well",
            cure=f"install Open MPI or MPICH and mpi4py; {by_hand}",
            check="mpirun --version",
            is_standing=True,
        )
    elif not launcher[0] or not library[0]:
        yield note(
            "MPI",
            f"{found.mpirun} ({_line(found.mpirun_version)}), mpi4py {found.mpi4py} on "
            f"{_line(found.library)}: it is unknown whether these match",
            why="a launcher of another MPI starts N worlds of one, which is an error",
            cure="use the mpirun of mpi4py's MPI",
            check="mpirun -np 2 rdmacoll selftest",
        )
    elif not _fits(launcher, library):
        yield _misfit(found, launcher_text, " ".join(library))
    else:
        yield ok(
            "MPI",
            f"{found.mpirun} is {launcher_text}, mpi4py {found.mpi4py} on {' '.join(library)}",
            why="ranks that this mpirun starts find each other through this mpi4py",
            check="mpirun -np 2 rdmacoll selftest",
        )


def _line(text: str) -> str:
    return text.split("\n", 1)[0].strip()


def _misfit(found: Mpi, launcher: str, library: str) -> Finding:
    return problem(
        "MPI",
        f"{found.mpirun} is {launcher}, but mpi4py {found.mpi4py} uses {library}",
        why="each process that this mpirun starts would be a world of its own",
        cure=f"put the mpirun of {library} on the path, or build mpi4py for {launcher}: "
        "pip install --force-reinstall --no-binary mpi4py mpi4py",
        check="mpirun -np 2 rdmacoll selftest",
    )
