"""What `rdmacoll doctor` looks at, as plain values: doctor_gather.py fills them, the checks judge them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rdmacoll._abi import devices
from rdmacoll._start.launch import Launch
from rdmacoll.version import __version__

UNLIMITED = -1
# Modules by which adapters reach the memory of GPUs.
PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")


@dataclass(frozen=True)
class Limit:
    """A resource limit; UNLIMITED where there is none."""

    soft: int = UNLIMITED
    hard: int = UNLIMITED


@dataclass(frozen=True)
class Engine:
    """The loaded librdmacoll, or in `problem` the sentence why there is none."""

    path: str = ""
    version: str = ""
    abi: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Settings:
    """The rows of `rdmacoll config`, or in `problem` the sentence why they cannot be."""

    rows: tuple[Mapping[str, Any], ...] = ()
    problem: str = ""

    def value(self, name: str) -> str:
        """The effective value; empty where it is automatic or unknown."""
        return next((str(row["value"]) for row in self.rows if row["name"] == name), "")

    def given(self, name: str) -> str:
        """The value that the user set, as the table writes it ("true", a number of bytes); else empty."""
        chosen = (row for row in self.rows if row["name"] == name)
        return next((str(r["value"]) for r in chosen if r["source"] in ("environment", "argument")), "")

    def variable(self, name: str) -> str:
        """The variable that the user set, which may be an alias; the setting's own name where none is."""
        given = next((str(row.get("given", "")) for row in self.rows if row["name"] == name), "")
        return given.partition("=")[0] or name

    def told(self, name: str) -> str:
        """What the user wrote, "VARIABLE=value"; empty where nothing is set."""
        value = self.given(name)
        return f"{self.variable(name)}={value}" if value else ""


@dataclass(frozen=True)
class Kernel:
    """What the kernel offers for RDMA: modules, device files, and adapters on the PCI bus."""

    modules: tuple[str, ...] = ()  # loaded or built in, of those that are of interest
    verbs_files: tuple[tuple[str, bool], ...] = ()  # /dev/infiniband/uverbsN, and whether we may use it
    verbs_expected: int = 0  # uverbs entries in sysfs
    adapters: tuple[str, ...] = ()  # PCI addresses of NVIDIA/Mellanox network adapters
    gpus: tuple[str, ...] = ()  # PCI addresses of NVIDIA GPUs
    libibverbs: str = ""  # why libibverbs cannot be loaded; empty when it can


@dataclass(frozen=True)
class Memory:
    """Locked memory, huge pages, and reading another process's memory."""

    memlock: Limit = field(default_factory=Limit)
    is_memlock_exempt: bool = False  # CAP_IPC_LOCK
    huge_total: int = 0
    huge_free: int = 0
    huge_page_bytes: int = 0
    transparent: str = ""  # always, madvise, never; empty: the kernel has none
    group_limit: int | None = None  # of all processes of the control group; None: no limit
    group_file: str = ""  # that says so


@dataclass(frozen=True)
class OneCopy:
    """Whether a child process could read this one's memory, by trial."""

    problem: str = ""
    ptrace_scope: int | None = None  # None: the kernel has no Yama


@dataclass(frozen=True)
class Congestion:
    """How TCP connections send: the system's congestion control, and those that everybody may take."""

    control: str = ""  # empty: not to be read
    allowed: tuple[str, ...] = ()
    refusal: str = ""  # what the kernel says to the one that RDMACOLL_TCP_CONGESTION names


@dataclass(frozen=True)
class Cores:
    """Where this process may run, and for how much of the time."""

    online: int = 1
    allowed: tuple[int, ...] = (0,)
    quota: float | None = None  # cores' worth of time; None: no limit
    quota_from: str = ""


@dataclass(frozen=True)
class Interface:
    """A network interface."""

    name: str
    address: str = ""  # its first one of IPv4
    mtu: int = 0
    is_up: bool = True
    is_bridge: bool = False


@dataclass(frozen=True)
class Network:
    """The interfaces, and what this host's name stands for."""

    interfaces: tuple[Interface, ...] = ()
    addresses: tuple[str, ...] = ()  # of the host's name
    problem: str = ""  # why the name has none


@dataclass(frozen=True)
class Threads:
    """How many threads there may be, and how many are asked for."""

    asked: int | None = None  # OMP_NUM_THREADS
    ranks: int = 1  # of this node, as the launcher says
    limit: Limit = field(default_factory=Limit)  # RLIMIT_NPROC


@dataclass(frozen=True)
class Variables:
    """Variables of other programs that say something about the job, and what is wrong with them."""

    horovod: tuple[str, ...] = ()  # HOROVOD_... that are set
    tf_config: str = ""  # the sentence why TF_CONFIG cannot be read
    secret: str = ""  # the sentence why the file of the secret cannot be used


@dataclass(frozen=True)
class Mpi:
    """The launcher on the path, and the MPI that mpi4py uses."""

    mpirun: str = ""  # path
    mpirun_says: str = ""  # first lines of --version
    mpi4py: str = ""  # version of the package
    library: str = ""  # MPI_Get_library_version
    problem: str = ""  # why mpi4py does not work


@dataclass(frozen=True)
class Packages:
    """Versions of installed packages; empty where there is none."""

    tensorflow: str = ""
    tensorflow_package: str = ""
    keras: str = ""
    tf_keras: str = ""
    has_op_library: bool = False
    op_library: str = ""  # path
    op_library_fails: str = ""  # when it was really loaded; see --load-tensorflow
    op_library_was_loaded: bool = False


@dataclass(frozen=True)
class Start:
    """What variables say of this process's start, or in `problem` the sentence what is wrong with them."""

    launch: Launch | None = None
    problem: str = ""


@dataclass(frozen=True)
class Machine:
    """Everything. `broken` holds the parts that could not be gathered, with the reason."""

    host: str = ""
    system: str = ""
    python: str = ""
    package: str = __version__
    views: tuple[devices.View, ...] = ()  # the engine's, sysfs', pyverbs'
    engine: Engine = field(default_factory=Engine)
    settings: Settings = field(default_factory=Settings)
    kernel: Kernel = field(default_factory=Kernel)
    memory: Memory = field(default_factory=Memory)
    one_copy: OneCopy = field(default_factory=OneCopy)
    files: Limit = field(default_factory=Limit)
    congestion: Congestion = field(default_factory=Congestion)
    cores: Cores = field(default_factory=Cores)
    network: Network = field(default_factory=Network)
    threads: Threads = field(default_factory=Threads)
    variables: Variables = field(default_factory=Variables)
    mpi: Mpi = field(default_factory=Mpi)
    packages: Packages = field(default_factory=Packages)
    start: Start = field(default_factory=Start)
    broken: Mapping[str, str] = field(default_factory=dict)
