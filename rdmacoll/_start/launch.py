"""Reads this process's rank from a launcher's variables. Pure: the variables come as a mapping."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rdmacoll._base.external_values import shown, text_of, whole_of
from rdmacoll.errors import ConfigError

OPEN_MPI = "Open MPI"
# Sources of the rank, the size and rank 0's address.
BY_ARGUMENTS, BY_VARIABLES, BY_RUN = "arguments of init()", "RDMACOLL_RANK and RDMACOLL_SIZE", "rdmacoll run"
INIT_PIPE = "_RDMACOLL_INIT_PIPE"  # `rdmacoll run` gives it to its ranks: rdmacoll/_launch/agent.py


class Variables(NamedTuple):
    """A launcher, its variable with the number of processes, and its variable with the rank."""

    source: str
    size: str
    rank: str


# MPI launchers. PMIx has no variable for the size: Open MPI's or Slurm's variables are set beside it.
MPI_VARIABLES = (
    Variables(OPEN_MPI, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    Variables("MVAPICH", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    Variables("a PMI launcher (MPICH, Intel MPI)", "PMI_SIZE", "PMI_RANK"),
    Variables("a PMIx launcher", "PMIX_SIZE", "PMIX_RANK"),
)
TORCHRUN_VARIABLES = Variables("torchrun", "WORLD_SIZE", "RANK")
# Variables that tell of several processes, but do not describe a start completely.
OTHER_VARIABLES = (
    Variables("a PMIx launcher", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    Variables("Flux", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    Variables("Hydra", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
)
# Only srun sets these. A batch script has SLURM_NTASKS too, but is one process.
_SRUN_VARIABLES = (
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_ID",
    "SLURM_STEPID",
    "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_SRUN_COMM_HOST",
)
_NAMES_SHOWN = 16
PORT_FIRST, PORTS = 15000, 15000  # below Linux' ephemeral ports


@dataclass(frozen=True)
class Launch:
    """The start of this process: the launcher, this rank, the world's size, and rank 0's address."""

    source: str
    rank: int
    size: int
    rendezvous: str = ""  # host:port, if MPI does not carry the texts
    variables: tuple[str, ...] = ()  # the variables with rank and size, if `source` does not name them
    is_mpi: bool = False  # MPI carries the texts, if this process has that MPI
    hosts: tuple[str, ...] = ()  # host:port of every rank, if lists name the ranks
    servers: int = 0  # the number of parameter servers, which are the last ranks
    job: str = ""  # the launcher's name for this start, the same on all its ranks; empty: it has none
    secret: bytes = field(default=b"", repr=False)  # the launcher's secret for this start; empty: it has none

    def name(self, rank: int) -> str:
        """A rank's name in messages: "rank 3", or "worker 1" or "ps 0" if lists name the ranks."""
        if not self.hosts:
            return f"rank {rank}"
        workers = self.size - self.servers
        return f"worker {rank}" if rank < workers else f"ps {rank - workers}"

    def name_with_address(self, rank: int) -> str:
        """A rank's name, with the address at which it is reached."""
        if self.hosts:
            return f"{self.name(rank)} ({self.hosts[rank]})"
        return f"{self.name(rank)} at {self.rendezvous}"

    def missing(self, present: Collection[int]) -> str:
        """The ranks other than 0 that are not `present`, for messages. Only the first ones if they are
        many."""
        missing = [rank for rank in range(1, self.size) if rank not in present]
        more = ", ..." if len(missing) > _NAMES_SHOWN else ""
        if self.hosts:
            return ", ".join(self.name_with_address(rank) for rank in missing[:_NAMES_SHOWN]) + more
        shown = ", ".join(map(str, missing[:_NAMES_SHOWN])) + more
        plural = "s" if len(missing) != 1 else ""
        return f"rank{plural} {shown} of {self.size} at {self.rendezvous}"

    def address_source(self, rank: int) -> str:
        """The setting that holds the address of a rank, for messages."""
        if not self.hosts:
            return "RDMACOLL_RENDEZVOUS"
        return "worker_hosts" if rank < self.size - self.servers else "ps_hosts"

    def lists(self) -> dict[str, str] | None:
        """The lists that name the ranks, by setting. They are the same on all ranks. None without lists."""
        if not self.hosts:
            return None
        workers = self.size - self.servers
        return {"worker_hosts": ",".join(self.hosts[:workers]), "ps_hosts": ",".join(self.hosts[workers:])}

    def describe(self) -> str:
        """One phrase for the log and for messages."""
        if self.hosts:
            plural = "" if self.servers == 1 else "s"
            with_servers = f"with {self.servers} parameter server{plural}"
            beside = with_servers if self.servers else "where every worker serves"
            return (
                f"{self.source}: {self.name(self.rank)} at {self.hosts[self.rank]}, rank {self.rank} of "
                f"{self.size} {beside}"
            )
        if self.size == 1:
            return f"{self.source}: a world of one"
        variables = f" (from {' and '.join(self.variables)})" if self.variables else ""
        address = f", rendezvous at {self.rendezvous}" if self.rendezvous else ""
        return f"{self.source}: rank {self.rank} of {self.size}{variables}{address}"


def _number(environ: Mapping[str, str], name: str) -> int:
    return whole_of(name, environ[name], "start with a launcher that sets it, or unset it")


def with_version(launcher: str, library: str) -> str:
    """Names a launcher with the version of its MPI library, as in "Open MPI v4.1.4".

    `library` is the first line of MPI's own text, "Open MPI v4.1.4, package: Debian, ident: ...".
    """
    version = library.partition(",")[0]
    return version if version.startswith(launcher) else f"{launcher} ({version})"


def checked(launch: Launch) -> Launch:
    """The launch. Raises ConfigError if its rank and size are impossible."""
    if launch.size < 1:
        raise ConfigError(f"{launch.source}: size {launch.size}; a world has at least one rank.")
    if not 0 <= launch.rank < launch.size:
        raise ConfigError(
            f"{launch.source}: rank {launch.rank} of {launch.size}; ranks are 0 to {launch.size - 1}."
        )
    return launch


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of "host:port" or "[v6]:port".

    >>> split_address("[::1]:4000"), split_address("node7:4000")
    (('::1', 4000), ('node7', 4000))
    """
    found = parse_address(address)
    if found is None:
        raise ConfigError(
            f"RDMACOLL_RENDEZVOUS={shown(address)} is not host:port (rank 0's host, and a free port there "
            "from 1 to 65535; an IPv6 address in brackets)."
        )
    return found


def parse_address(address: str) -> tuple[str, int] | None:
    """Like `split_address`, but None for text that is no address."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536
    return (host, int(port)) if colon and is_port and _is_host(host) else None


def _is_host(host: str) -> bool:
    """Whether the text can be a name or an address. The resolver raises UnicodeError for other texts."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return bool(host) and host.isprintable() and not any(letter.isspace() for letter in host)


def join_address(host: str, port: int) -> str:
    """The address "host:port", with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def by_hand(
    environ: Mapping[str, str],
    *,
    rank: int | None = None,
    size: int | None = None,
    rendezvous: str | None = None,
) -> Launch | None:
    """The world that arguments or RDMACOLL_RANK, _SIZE and _RENDEZVOUS describe; None without them."""
    arguments = {
        "RDMACOLL_RANK": rank,
        "RDMACOLL_SIZE": size,
        "RDMACOLL_RENDEZVOUS": rendezvous,
    }
    as_argument = any(value is not None for value in arguments.values())
    merged = {name: text_of(name, value) for name, value in arguments.items() if value is not None}
    merged.update({name: environ[name] for name in arguments if name not in merged and name in environ})
    if not merged:
        return None
    by_variables = BY_RUN if environ.get(INIT_PIPE) else BY_VARIABLES
    source = BY_ARGUMENTS if as_argument else by_variables
    if set(merged) == {"RDMACOLL_SIZE"} and merged["RDMACOLL_SIZE"].strip() == "1":
        merged["RDMACOLL_RANK"] = "0"
    missing = [name for name in ("RDMACOLL_RANK", "RDMACOLL_SIZE") if name not in merged]
    if missing:
        raise ConfigError(
            f"{', '.join(sorted(merged))} without {' and '.join(missing)}: a start by hand "
            "needs RDMACOLL_RANK, RDMACOLL_SIZE and, from two ranks on, RDMACOLL_RENDEZVOUS."
        )
    launch = checked(
        Launch(
            source,
            _number(merged, "RDMACOLL_RANK"),
            _number(merged, "RDMACOLL_SIZE"),
            merged.get("RDMACOLL_RENDEZVOUS", ""),
        )
    )
    if launch.size > 1:
        if not launch.rendezvous:
            raise ConfigError(
                f"RDMACOLL_SIZE is {launch.size}, but RDMACOLL_RENDEZVOUS is not set: give host:port "
                "of rank 0, the same on every rank."
            )
        split_address(launch.rendezvous)
    return launch


def by_mpi(environ: Mapping[str, str]) -> Launch | None:
    """The launch that an MPI launcher describes, even if this process does not have that MPI."""
    for source, size, rank in MPI_VARIABLES:
        if size in environ and rank in environ:
            numbers = _number(environ, rank), _number(environ, size)
            namespace = environ.get("PMIX_NAMESPACE", "")
            job = f"PMIX_NAMESPACE={namespace}" if namespace else ""
            return checked(Launch(source, *numbers, variables=(rank, size), is_mpi=True, job=job))
    return None


def first_host(nodelist: str) -> str:
    """The first host of a Slurm node list.

    >>> first_host("gpu[07-09,12],login1"), first_host("a1,b2"), first_host("rack[2-3]-n[01,04]")
    ('gpu07', 'a1', 'rack2-n01')
    """
    depth, end = 0, len(nodelist)
    for position, letter in enumerate(nodelist):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            end = position
            break
    return _first_of_each_range(nodelist[:end])


def _first_of_each_range(text: str) -> str:
    """The text with the first number of each range in place of the range. Takes linear time.

    >>> _first_of_each_range("rack[2-3]-n[01,04]"), _first_of_each_range("a[]b[,2]c[1")
    ('rack2-n01', 'a[]b[,2]c[1')
    """
    found, at = "", 0
    while (begin := text.find("[", at)) >= 0 and (end := text.find("]", begin)) >= 0:
        first = re.split("[,-]", text[begin + 1 : end], maxsplit=1)[0]
        found += text[at:begin] + (first or text[begin : end + 1])
        at = end + 1
    return found + text[at:]


def by_slurm(environ: Mapping[str, str]) -> Launch | None:
    """The launch that srun describes, or None."""
    if "SLURM_PROCID" not in environ or not any(name in environ for name in _SRUN_VARIABLES):
        return None
    size = next((n for n in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if n in environ), None)
    if size is None:
        return None
    rank_of, size_of = _number(environ, "SLURM_PROCID"), _number(environ, size)
    launch = checked(Launch("Slurm's srun", rank_of, size_of, variables=("SLURM_PROCID", size)))
    if launch.size == 1:
        return launch
    nodes = next(
        (
            environ[name]
            for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
            if environ.get(name)
        ),
        environ.get("SLURM_LAUNCH_NODE_IPADDR", ""),
    )
    host = first_host(nodes)
    if not host:
        raise ConfigError(
            f"srun started {launch.size} tasks, but no SLURM_JOB_NODELIST says where task 0 is. Set "
            "RDMACOLL_RENDEZVOUS, RDMACOLL_RANK and RDMACOLL_SIZE."
        )
    job, step = (_digits(environ.get(name, "")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    address = join_address(host, PORT_FIRST + (job * 101 + step) % PORTS)
    return replace(launch, rendezvous=address, job=_slurm_job(environ))


def _slurm_job(environ: Mapping[str, str]) -> str:
    """The name of the job. A requeued job has the same number and steps, so it includes the restart count."""
    job = next((environ[name] for name in ("SLURM_HET_JOB_ID", "SLURM_JOB_ID") if environ.get(name)), "")
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID", "")
    restarts = environ.get("SLURM_RESTART_COUNT") or "0"
    again = f", restart {restarts}" if restarts != "0" else ""
    return f"Slurm job {job} step {step}{again}" if job and step else ""


def _digits(text: str) -> int:
    """The number that all digits of a text form, at most 18 of them. A step may be "12.batch"."""
    return int(re.sub(r"[^0-9]", "", text)[:18] or 0)


def by_torchrun(environ: Mapping[str, str]) -> Launch | None:
    """The launch that torchrun, or a similar script, describes. None without it."""
    if "WORLD_SIZE" not in environ:
        return None
    size = _number(environ, "WORLD_SIZE")
    if "RANK" not in environ:
        if size <= 1:
            return None
        raise ConfigError(
            f"WORLD_SIZE={size} is set, but RANK is not: each process would be a world of its own. Give "
            "every process RANK, MASTER_ADDR and MASTER_PORT as torchrun does, or unset WORLD_SIZE."
        )
    source, size_name, rank_name = TORCHRUN_VARIABLES
    launch = checked(Launch(source, _number(environ, rank_name), size, variables=(rank_name, size_name)))
    if launch.size == 1:
        return launch
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if missing:
        raise ConfigError(
            f"RANK and WORLD_SIZE={launch.size} are set, but not {' and '.join(missing)}: rank 0's "
            "address is unknown."
        )
    port = _number(environ, "MASTER_PORT")
    # The launcher itself may serve MASTER_PORT for the whole job.
    if environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true":
        port += 1 if port < 65535 else -1
    address = join_address(environ["MASTER_ADDR"], port)
    return replace(launch, rendezvous=address, job=_torchrun_job(environ))


def _torchrun_job(environ: Mapping[str, str]) -> str:
    """The name of the job.

    Each node's agent counts only its own workers' restarts. So the count is the same on all ranks only if
    there is one agent.
    """
    run = environ.get("TORCHELASTIC_RUN_ID", "none")
    restarts = environ.get("TORCHELASTIC_RESTART_COUNT") or "0"
    again = f", restart {restarts}" if restarts != "0" and environ.get("GROUP_WORLD_SIZE") == "1" else ""
    return "" if run in ("", "none") else f"torchrun {run}{again}"


def by_launchers(environ: Mapping[str, str]) -> list[Launch]:
    """The launches that launchers describe, the most credible first. Each launcher may have started the next.

    A launcher of a single process hides no launcher of several. MPI comes first, since mpirun leaves in the
    environment what srun told its helpers. Raises ConfigError for any other contradiction.
    """
    mpi, slurm, torchrun = by_mpi(environ), by_slurm(environ), by_torchrun(environ)
    if torchrun is not None and torchrun.size > 1 and "TORCHELASTIC_RUN_ID" in environ:
        return [torchrun]  # this variable is torchrun's own; any other launcher has started torchrun
    found = [launch for launch in (mpi, slurm, torchrun) if launch is not None]
    found.sort(key=lambda launch: launch.size == 1)
    differ = slurm and torchrun and (slurm.rank, slurm.size) != (torchrun.rank, torchrun.size)
    if slurm and torchrun and found[0] is slurm and torchrun.size > 1 and differ:
        raise ConfigError(
            f"{slurm.source} says rank {slurm.rank} of {slurm.size}, {torchrun.source} says rank "
            f"{torchrun.rank} of {torchrun.size} ({' and '.join(torchrun.variables)}): unset the wrong "
            "variables, or start with RDMACOLL_RANK, RDMACOLL_SIZE and RDMACOLL_RENDEZVOUS."
        )
    return found
