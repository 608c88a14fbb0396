"""The libraries of a comparison, and the commands that start their ranks. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent
_FOREVER_S = "1000000"
_OTHER_BUILD = "-build"


@dataclass(frozen=True)
class Library:
    """A row of the table."""

    name: str
    title: str
    options: dict[str, str]  # for team_rank: the module, and its options
    # Libraries of "numpy", of "tensorflow" and of "rpc" are compared within their group. A "limit" is shown
    # beside all of them.
    group: str
    environment: str  # in environments.py; "own": the one of this process
    launcher: str  # hand, openmpi, hydra, gloo
    settings: dict[str, str] = field(default_factory=dict)
    # Settings between hosts. Without them UCX would detect that the namespaces share a machine, and use its
    # memory.
    network_settings: dict[str, str] = field(default_factory=dict)
    sleeps: bool = False  # its threads sleep and wake while it measures
    fallback_module: str = (
        ""  # if the environment is missing, this process's one serves, provided it has this module
    )
    tree: Path | None = None  # the tree of another build of rdmacoll; None: this tree

    @property
    def is_ours(self) -> bool:
        """Whether the library is rdmacoll, in any variant and of any build."""
        return self.name.split("-")[0] == "rdmacoll"


def other_build(name: str) -> str:
    """The name of the same library in another build of rdmacoll."""
    return name + _OTHER_BUILD


def is_other_build(name: str) -> bool:
    """Whether a library belongs to another build of rdmacoll."""
    return name.endswith(_OTHER_BUILD)


def with_other_builds(rows: Iterable[Library]) -> dict[str, Library]:
    """The rows by name, and after them a row of another build for each of ours. The tree of that build is
    known only in a run: see `Library.tree`."""
    by_name = {row.name: row for row in rows}
    for row in list(by_name.values()):
        if row.is_ours:
            title = row.title.replace("rdmacoll", "other build")
            by_name[other_build(row.name)] = replace(row, name=other_build(row.name), title=title)
    return by_name


_TCP = {"UCX_TLS": "tcp,self", "FI_PROVIDER": "tcp"}
# Ranks are stopped while others measure. Their peers must not take that for a failure.
NO_TIMEOUTS = {"RDMACOLL_PEER_TIMEOUT_S": _FOREVER_S, "RDMACOLL_STALL_WARNING_S": _FOREVER_S}
_HOROVOD_ON_MPI = {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}
QUIET_TENSORFLOW = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "1"}
# Operations that TensorFlow runs at once. 0: its default.
THREADS = "threads"
_OPS = {"module": "tensorflow_ops", THREADS: "4"}

LIBRARIES = with_other_builds(
    (
        Library("rdmacoll", "rdmacoll", {"module": "ours"}, "numpy", "own", "hand", NO_TIMEOUTS),
        Library("openmpi", "Open MPI", {"module": "mpi"}, "numpy", "own", "openmpi"),
        Library("mpich", "MPICH", {"module": "mpi"}, "numpy", "mpich", "hydra", network_settings=_TCP),
        Library(
            "intelmpi", "Intel MPI", {"module": "mpi"}, "numpy", "intelmpi", "hydra", network_settings=_TCP
        ),
        Library(
            "rdmacoll-op",
            "rdmacoll's op",
            {**_OPS, "library": "rdmacoll"},
            "tensorflow",
            "horovod",  # the TensorFlow of Horovod, if that is installed
            "hand",
            {**NO_TIMEOUTS, **QUIET_TENSORFLOW},
            fallback_module="tensorflow",
        ),
        Library(
            "horovod-mpi",
            "Horovod, Open MPI",
            {**_OPS, "library": "horovod"},
            "tensorflow",
            "horovod",
            "openmpi",
            {**_HOROVOD_ON_MPI, **QUIET_TENSORFLOW},
            sleeps=True,
        ),
        Library(
            "horovod-gloo",
            "Horovod, Gloo",
            {**_OPS, "library": "horovod"},
            "tensorflow",
            "horovod",
            "gloo",
            QUIET_TENSORFLOW,
            sleeps=True,
        ),
        Library("memory", "memory", {"module": "limits", "limit": "memory"}, "limit", "own", "hand"),
        Library("stream", "TCP streams", {"module": "limits", "limit": "stream"}, "limit", "own", "hand"),
    )
)
OURS = {"numpy": "rdmacoll", "tensorflow": "rdmacoll-op"}
PEERS = [row.name for row in LIBRARIES.values() if row.group != "limit" and not row.is_ours]


@dataclass(frozen=True)
class HostLayout:
    """The host of each rank. Without addresses, all ranks are on this machine itself."""

    host_of: list[int]
    addresses: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    prefixes: dict[int, list[str]] = field(default_factory=dict)  # by rank
    shell: str = ""  # replaces ssh
    servers: int = 0  # the number of ranks at the end that serve the others
    gbit: int = (
        0  # Gbit/s of the cables between hosts, since virtual cables always report 10; 0: as they report
    )

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.host_of)

    @property
    def address(self) -> str:
        """The address of rank 0's host."""
        return self.addresses[0] if self.addresses else "127.0.0.1"

    @property
    def interface(self) -> str:
        """The interface through which the hosts reach each other."""
        return "eth0" if self.addresses else "lo"


@dataclass(frozen=True)
class LaunchContext:
    """The further facts that a command line needs."""

    python: Path  # the Python of the library's environment, beside its launcher
    socket: Path
    port: int
    is_root: bool


def commands(library: Library, layout: HostLayout, context: LaunchContext) -> list[list[str]]:
    """The commands to start: one for each rank, or a launcher."""
    # TensorFlow's threads need all cores, and so does the kernel between hosts. So these ranks are not bound.
    binds = {"bind": library.group in ("numpy", "limit") and not layout.addresses}
    if library.launcher == "hand":
        by_hand = [_by_hand(library, layout, context, rank) for rank in range(layout.ranks)]
        return [
            [*layout.prefixes.get(rank, []), *_program(library, context, {**binds, **options}, settings)]
            for rank, (options, settings) in enumerate(by_hand)
        ]
    program = _program(library, context, binds, library.network_settings if layout.addresses else {})
    if library.launcher == "openmpi":
        return [[*_on_first_host(layout), *_open_mpi(layout, context), *program]]
    if library.launcher == "hydra":
        return [[*_on_first_host(layout), *_hydra(layout, context), *program]]
    options = {
        "hosts": [_by_address(layout, rank) for rank in range(layout.ranks)],
        "names": [layout.names[host] if layout.names else "localhost" for host in layout.host_of],
        "address": layout.address,
        "interface": layout.interface,
        "command": program,
    }
    launcher = [*_environment(library), str(context.python), "-m", "team_rank.gloo", json.dumps(options)]
    return [[*layout.prefixes.get(0, []), *launcher]]


def _environment(library: Library, extra: dict[str, str] | None = None) -> list[str]:
    path = [str(BENCHMARKS)]
    if library.is_ours:
        path.append(str(library.tree or BENCHMARKS.parent.parent))
    variables = {"PYTHONPATH": ":".join(path), "OMP_NUM_THREADS": "1", **library.settings, **(extra or {})}
    return ["env", *(f"{name}={value}" for name, value in variables.items())]


def _program(
    library: Library, context: LaunchContext, options: dict[str, Any], settings: dict[str, str]
) -> list[str]:
    options = {**library.options, **options}
    call = [str(context.python), "-m", "team_rank", str(context.socket), json.dumps(options)]
    return [*_environment(library, settings), *call]


def _by_hand(
    library: Library, layout: HostLayout, context: LaunchContext, rank: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """The options of a rank that no launcher starts, and its settings."""
    options: dict[str, Any] = {}
    if library.group == "limit":
        options = {"rank": rank, "ranks": layout.ranks, "address": layout.address, "port": context.port}
    if library.group == "rpc":
        addresses = layout.addresses or [layout.address]
        options = {
            "rank": rank,
            "servers": layout.servers,
            "addresses": [f"{addresses[host]}:{context.port + n}" for n, host in enumerate(layout.host_of)],
        }
    if not library.is_ours:
        return options, {}
    settings = {
        "RDMACOLL_RANK": str(rank),
        "RDMACOLL_SIZE": str(layout.ranks),
        "RDMACOLL_RENDEZVOUS": f"{layout.address}:{context.port}",
        "RDMACOLL_SECRET_FILE": str(context.socket.parent / "secret"),
    }
    if layout.gbit:
        settings["RDMACOLL_LINK_GBIT"] = str(layout.gbit)
    return options, settings


def _on_first_host(layout: HostLayout) -> Sequence[str]:
    if not layout.addresses:
        return []
    # The first host gets a name of its own, as the shell gives to the others.
    return [*layout.prefixes[0], *_named(layout.names[0])]


def _by_address(layout: HostLayout, rank: int) -> list[str]:
    """The prefix of a rank's command. Horovod's process sets on Gloo ignore HOROVOD_GLOO_IFACE and look up
    the host's name. So the host's name is its address."""
    prefix = layout.prefixes.get(rank, [])
    return [*prefix, *_named(layout.addresses[layout.host_of[rank]])] if layout.addresses else prefix


def _named(name: str) -> list[str]:
    return ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', name]


def _open_mpi(layout: HostLayout, context: LaunchContext) -> list[str]:
    command = ["mpirun", "--oversubscribe", "--bind-to", "none"]
    command += ["--allow-run-as-root"] if context.is_root else []
    if layout.addresses:
        slots = (f"{address}:{layout.host_of.count(host)}" for host, address in enumerate(layout.addresses))
        command += ["--host", ",".join(slots), "--leave-session-attached"]
        command += ["--mca", "plm_rsh_agent", layout.shell, "--mca", "btl_tcp_if_include", layout.interface]
        command += ["--mca", "oob_tcp_if_include", layout.interface, "--mca", "pml", "ob1"]
    return [*command, "-np", str(layout.ranks)]


def _hydra(layout: HostLayout, context: LaunchContext) -> list[str]:
    command = [str(context.python.with_name("mpiexec.hydra"))]
    if layout.addresses:
        command += ["-launcher", "ssh", "-launcher-exec", layout.shell, "-iface", layout.interface]
        command += ["-hosts", ",".join(layout.addresses), "-ppn", str(layout.host_of.count(0))]
    return [*command, "-n", str(layout.ranks)]
