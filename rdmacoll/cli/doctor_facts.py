"""The facts of `rdmacoll doctor` as plain values. doctor_gather.py fills them, and the checks judge them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rdmacoll._abi import devices
from rdmacoll._start.launch import Launch
from rdmacoll.version import __version__

UNLIMITED = -1
# Kernel modules through which adapters reach the memory of GPUs.
PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")


@dataclass(frozen=True)
class Limit:
    """A resource limit; UNLIMITED: there is none."""

    soft: int = UNLIMITED
    hard: int = UNLIMITED


@dataclass(frozen=True)
class Engine:
    """The loaded librdmacoll. `problem` says why it cannot be loaded."""

    path: str = ""
    version: str = ""
    abi: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Settings:
    """The rows of `rdmacoll config`. `problem` says why there are none."""

    rows: tuple[Mapping[str, Any], ...] = ()
    problem: str = ""

    def value(self, name: str) -> str:
        """The effective value; empty: automatic or unknown."""
        return next((str(row["value"]) for row in self.rows if row["name"] == name), "")

    def set_value(self, name: str) -> str:
        """The value that the user set, as the table writes it ("true", a number of bytes); empty: not set."""
        chosen = (row for row in self.rows if row["name"] == name)
        return next((str(r["value"]) for r in chosen if r["source"] in ("environment", "argument")), "")

    def variable(self, name: str) -> str:
        """The variable that the user set, which may be an alias. Without one, the setting's own name."""
        set_value = next((str(row.get("given", "")) for row in self.rows if row["name"] == name), "")
        return set_value.partition("=")[0] or name

    def set_text(self, name: str) -> str:
        """The user's words, "VARIABLE=value"; empty: not set."""
        value = self.set_value(name)
        return f"{self.variable(name)}={value}" if value else ""


@dataclass(frozen=True)
class Kernel:
    """RDMA in the kernel: modules, device files, and adapters on the PCI bus."""

    modules: tuple[str, ...] = ()  # loaded or built in; only modules that matter here
    # /dev/infiniband/uverbsN, and whether this process may use it
    verbs_files: tuple[tuple[str, bool], ...] = ()
    verbs_expected: int = 0  # uverbs entries in sysfs
    adapters: tuple[str, ...] = ()  # PCI addresses of NVIDIA/Mellanox network adapters
    gpus: tuple[str, ...] = ()  # PCI addresses of NVIDIA GPUs
    libibverbs: str = ""  # why libibverbs cannot be loaded; empty: it can


@dataclass(frozen=True)
class Memory:
    """Locked memory, huge pages, and the memory of the control group."""

    memlock: Limit = field(default_factory=Limit)
    is_memlock_exempt: bool = False  # CAP_IPC_LOCK
    huge_total: int = 0
    huge_free: int = 0
    huge_page_bytes: int = 0
    transparent: str = ""  # always, madvise, never; empty: the kernel has none
    group_limit: int | None = None  # bytes for all processes of the control group; None: no limit
    group_file: str = ""  # the file that holds the limit


@dataclass(frozen=True)
class OneCopy:
    """Whether a child process could read this process's memory, by trial."""

    problem: str = ""
    ptrace_scope: int | None = None  # None: the kernel has no Yama


@dataclass(frozen=True)
class Congestion:
    """Congestion control of TCP: the system's, and those that every user may choose."""

    control: str = ""  # empty: it cannot be read
    allowed: tuple[str, ...] = ()
    refusal: str = ""  # the kernel's refusal of the one in RDMACOLL_TCP_CONGESTION; empty: accepted


@dataclass(frozen=True)
class Cores:
    """The cores of this process, and its share of their time."""

    online: int = 1
    allowed: tuple[int, ...] = (0,)
    quota: float | None = None  # processor time in cores; None: no limit
    quota_from: str = ""


@dataclass(frozen=True)
class Interface:
    """A network interface."""

    name: str
    address: str = ""  # its first IPv4 address
    mtu: int = 0
    is_up: bool = True
    is_bridge: bool = False


@dataclass(frozen=True)
class Network:
    """The interfaces, and the addresses of this host's name."""

    interfaces: tuple[Interface, ...] = ()
    addresses: tuple[str, ...] = ()  # the addresses of the host's name
    problem: str = ""  # why the name has no address


@dataclass(frozen=True)
class Threads:
    """The limit of threads, and the number that is requested."""

    omp_threads: int | None = None  # OMP_NUM_THREADS
    ranks: int = 1  # the ranks of this node, by the launcher
    limit: Limit = field(default_factory=Limit)  # RLIMIT_NPROC


@dataclass(frozen=True)
class Variables:
    """Variables of other programs about the job, and their faults."""

    horovod: tuple[str, ...] = ()  # HOROVOD_... variables that are set
    tf_config: str = ""  # why TF_CONFIG cannot be read; empty: it can
    secret: str = ""  # why the file of the secret cannot be used; empty: it can


@dataclass(frozen=True)
class Mpi:
    """The launcher on the path, and the MPI that mpi4py uses."""

    mpirun: str = ""  # path
    mpirun_version: str = ""  # first lines of --version
    mpi4py: str = ""  # version of the package
    library: str = ""  # MPI_Get_library_version
    problem: str = ""  # why mpi4py does not work


@dataclass(frozen=True)
class Packages:
    """Versions of installed packages; empty: not installed."""

    tensorflow: str = ""
    tensorflow_package: str = ""
    keras: str = ""
    tf_keras: str = ""
    has_op_library: bool = False
    op_library: str = ""  # path
    op_library_fails: str = ""  # the error of loading it; see --load-tensorflow
    op_library_was_loaded: bool = False


@dataclass(frozen=True)
class Start:
    """The start of this process, from variables. `problem` says why they are wrong."""

    launch: Launch | None = None
    problem: str = ""


@dataclass(frozen=True)
class Machine:
    """All facts. `broken` holds the parts that could not be gathered, with the reason."""

    host: str = ""
    system: str = ""
    python: str = ""
    package: str = __version__
    views: tuple[devices.View, ...] = ()  # by the engine, sysfs and pyverbs
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
    gpus: Mapping[str, Any] = field(default_factory=dict)  # the engine's report; empty: there is none
    profile: Mapping[str, Any] = field(default_factory=dict)  # measured costs; empty: unknown
    broken: Mapping[str, str] = field(default_factory=dict)
