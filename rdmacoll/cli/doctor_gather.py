"""Gathers a `Machine`. Each part is gathered by itself, so that a failing one leaves the others intact."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, TypeVar

from rdmacoll._abi import device_views, devices, library, mirror
from rdmacoll._start import bootstrap
from rdmacoll._start.single_process_check import check_single_process
from rdmacoll.cli.doctor_facts import (
    PEER_MODULES,
    Congestion,
    Cores,
    Engine,
    Kernel,
    Limit,
    Machine,
    Memory,
    Mpi,
    Network,
    OneCopy,
    Packages,
    Settings,
    Start,
    Threads,
    Variables,
)
from rdmacoll.cli.doctor_gather_groups import cores, group_memory, read
from rdmacoll.cli.doctor_gather_network import limit_of, network, threads, variables
from rdmacoll.errors import ConfigError, RdmacollError

_CHILD_TIMEOUT_S = 30
_TENSORFLOW_TIMEOUT_S = 300
_IPC_LOCK = 14  # the bit of CAP_IPC_LOCK
_MELLANOX, _NVIDIA = "0x15b3", "0x10de"  # PCI vendors
_MODULES = ("ib_core", "ib_uverbs", "rdma_ucm", "rdma_rxe", "siw", "mlx4_ib", "mlx5_ib")
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu", "intel-tensorflow")

# "tensorflow.python.framework.errors_impl.NotFoundError: lib.so: undefined symbol: x"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception): \S")

_Part = TypeVar("_Part")


def _loaded() -> library.Library | None:
    try:
        return library.load()
    except RdmacollError:
        return None


def _views() -> tuple[devices.View, ...]:
    return (
        view(devices.ENGINE, lambda: devices.engine_view(_loaded())),
        kernel_devices(),
        view(devices.PYVERBS, device_views.pyverbs_view),
    )


def kernel_devices() -> devices.View:
    """The devices that the kernel lists, whether or not a program can use them."""
    return view(devices.SYSFS, lambda: device_views.sysfs_view(Path("/sys/class/infiniband")))


def view(by: str, read_devices: Callable[[], devices.View]) -> devices.View:
    """The view that `read_devices` returns. If it raises, the view says so, and the other views stay."""
    try:
        return read_devices()
    except Exception as error:
        return devices.View(by, problem=f"{type(error).__name__}: {error}", is_broken=True)


def _engine() -> Engine:
    try:
        found = library.load()
    except RdmacollError as error:
        return Engine(str(library.library_path()), problem=str(error))
    return Engine(str(found.path), found.version, mirror.ABI_VERSION)


def _report(
    loaded: library.Library | None, report: Callable[[library.Library], Mapping[str, Any]]
) -> Mapping[str, Any]:
    """The report of the engine. Without an engine, or under wrong settings, there is none."""
    if loaded is None:
        return {}
    try:
        return report(loaded)
    except ConfigError:
        return {}  # the part of the settings has the reason


def _settings() -> Settings:
    found = _loaded()
    if found is None:
        return Settings()
    try:
        return settings(found)
    except RdmacollError as error:
        return Settings(problem=str(error))


def settings(loaded: library.Library) -> Settings:
    """The settings in this environment. Raises ConfigError."""
    return Settings(tuple(loaded.settings()))


def _pci(sys: Path, vendor: str, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """The PCI addresses of a vendor's devices whose class begins with one of `kinds` (0x02: network, 0x03:
    display)."""
    folder = sys / "bus/pci/devices"
    if not folder.is_dir():
        return ()
    return tuple(
        path.name
        for path in sorted(folder.iterdir())
        if read(path / "vendor") == vendor and read(path / "class").startswith(kinds)
    )


def kernel(sys: Path, proc: Path, dev: Path) -> Kernel:
    """The kernel's part. sys, proc and dev are the roots to read."""
    loaded = {line.split(" ")[0] for line in read(proc / "modules").splitlines()}
    # A built-in module shows in /sys/module only if it has parameters or a version.
    modules = [m for m in (*_MODULES, *PEER_MODULES) if m in loaded or (sys / "module" / m).is_dir()]
    if (sys / "class/infiniband_verbs").is_dir() and "ib_uverbs" not in modules:
        modules.append("ib_uverbs")
    verbs = sys / "class/infiniband_verbs"
    names = sorted(p.name for p in verbs.iterdir() if p.name.startswith("uverbs")) if verbs.is_dir() else []
    files = [dev / "infiniband" / name for name in names]
    return Kernel(
        tuple(modules),
        tuple((str(path), os.access(path, os.R_OK | os.W_OK)) for path in files if path.exists()),
        len(names),
        _pci(sys, _MELLANOX, ("0x02",)),
        _pci(sys, _NVIDIA, ("0x03",)),
        _libibverbs(),
    )


def _libibverbs() -> str:
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError as error:
        return str(error)
    return ""


def memory(sys: Path, proc: Path, memlock: Limit) -> Memory:
    """Locked memory, huge pages and the group's limit. sys and proc are the roots to read."""
    status = dict(line.partition(":\t")[::2] for line in read(proc / "self/status").splitlines())
    # The kernel checks the capability in the first user namespace. The root of a container lacks it there.
    is_first_namespace = read(proc / "self/uid_map").split() == ["0", "0", "4294967295"]
    has_bit = bool(int(status.get("CapEff", "0"), 16) >> _IPC_LOCK & 1)
    meminfo = dict(line.partition(":")[::2] for line in read(proc / "meminfo").splitlines())

    def number(name: str) -> int:
        return int((meminfo.get(name, "").split() or ["0"])[0])

    # The file reads "always [madvise] never".
    _, _, after_bracket = read(sys / "kernel/mm/transparent_hugepage/enabled").partition("[")
    return Memory(
        memlock,
        has_bit and is_first_namespace,
        number("HugePages_Total"),
        number("HugePages_Free"),
        number("Hugepagesize") * 1024,
        after_bracket.partition("]")[0],
        *group_memory(sys, proc),
    )


def congestion(proc: Path, chosen: str) -> Congestion:
    """The kernel's congestion controls, read below `proc`. The kernel is asked for `chosen`, if it is
    given."""
    ipv4 = proc / "sys/net/ipv4"
    allowed = read(ipv4 / "tcp_allowed_congestion_control").split()
    refusal = ""
    if chosen:
        try:
            with socket.socket() as one:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, chosen.encode())
        except OSError as error:
            refusal = os.strerror(error.errno or 0)
    return Congestion(read(ipv4 / "tcp_congestion_control").strip(), tuple(allowed), refusal)


# A child runs this. It reads 8 bytes of its parent, as ranks read each other's arrays. The other direction
# would prove nothing: Yama's scope 1 lets a parent read its child and still forbids ranks to read each other.
_READ_PARENT = """
import ctypes, os, sys
class Piece(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]
pid, address, expected = (int(word) for word in sys.argv[1:])
seen = ctypes.c_uint64(~expected & (2**64 - 1))
local, remote = Piece(ctypes.addressof(seen), 8), Piece(address, 8)
call = ctypes.CDLL(None, use_errno=True).process_vm_readv
list_of = [ctypes.c_void_p, ctypes.c_ulong]
call.argtypes = [ctypes.c_int, *list_of, *list_of, ctypes.c_ulong]
call.restype = ctypes.c_ssize_t
got = call(pid, ctypes.addressof(local), 1, ctypes.addressof(remote), 1, 0)
if got != 8:
    print(os.strerror(ctypes.get_errno()) if got < 0 else f"it read {got} of 8 bytes")
elif seen.value != expected:
    print("it read other bytes than those that are there")
"""


def _child(arguments: list[str], timeout_s: float = _CHILD_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=timeout_s,
        check=False,
    )


def _last_line(text: str) -> str:
    """The line of the exception that ended a child, or else its last line. Libraries may print more after
    it."""
    lines = [line.strip() for line in text.strip().splitlines()]
    return next((line for line in reversed(lines) if _EXCEPTION.match(line)), (lines or ["no output"])[-1])


def read_by_child(proc: Path) -> OneCopy:
    """Lets a child try a one-copy read of this process."""
    random_word = ctypes.c_uint64(int.from_bytes(os.urandom(8), "little"))
    numbers = [str(os.getpid()), str(ctypes.addressof(random_word)), str(random_word.value)]
    done = _child([sys.executable, "-I", "-S", "-c", _READ_PARENT, *numbers])
    problem = done.stdout.strip() if done.returncode == 0 else _last_line(done.stderr)
    scope = read(proc / "sys/kernel/yama/ptrace_scope")
    return OneCopy(problem, int(scope) if scope else None)


# A child runs this, since an MPI under another MPI's launcher may abort the process that loads it.
_MPI_PROGRAM = """
import json
import mpi4py
mpi4py.rc.initialize = False
mpi4py.rc.finalize = False
from mpi4py import MPI
print(json.dumps([mpi4py.__version__, MPI.Get_library_version()]))
"""


def _mpi() -> Mpi:
    mpirun = shutil.which("mpirun") or shutil.which("mpiexec") or ""
    output = ""
    if mpirun:
        done = _child([mpirun, "--version"])
        output = (done.stdout + done.stderr).strip()
    if importlib.util.find_spec("mpi4py") is None:
        return Mpi(mpirun, output)
    done = _child([sys.executable, "-c", _MPI_PROGRAM])
    if done.returncode != 0:
        version = importlib.metadata.version("mpi4py")
        return Mpi(mpirun, output, version, problem=_last_line(done.stderr))
    version, mpi = json.loads(done.stdout.strip().splitlines()[-1])
    return Mpi(mpirun, output, version, mpi.strip(" \0\n"))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


# A child runs this: loading TensorFlow takes seconds and gigabytes, and this process does not need it.
_LOAD_OPS = """
from rdmacoll.ops import _library
_library._load()
"""


def _packages(load_tensorflow: bool) -> Packages:
    found = ((name, _version(name)) for name in _TENSORFLOWS)
    package, version = next(((name, version) for name, version in found if version), ("", ""))
    path = library.library_path().with_name("librdmacoll_tf.so")
    failure = ""
    if load_tensorflow and version:
        done = _child([sys.executable, "-c", _LOAD_OPS], _TENSORFLOW_TIMEOUT_S)
        failure = "" if done.returncode == 0 else _last_line(done.stderr)
    return Packages(
        tensorflow=version,
        tensorflow_package=package,
        keras=_version("keras"),
        tf_keras=_version("tf-keras"),
        op_library=str(path),
        has_op_library=path.exists(),
        op_library_was_loaded=load_tensorflow and bool(version),
        op_library_fails=failure,
    )


def _start() -> Start:
    try:
        launch = bootstrap.described_launch()
        if launch is None or launch.size == 1:
            check_single_process(bootstrap.variables(), is_launched=launch is not None)
        return Start(launch)
    except RdmacollError as error:
        return Start(problem=str(error))


def gather(*, load_tensorflow: bool = False) -> Machine:
    """The facts of this machine, as this process sees them."""
    sys_root, proc = Path("/sys"), Path("/proc")
    broken: dict[str, str] = {}

    def part(name: str, gather_part: Callable[[], _Part], empty: _Part) -> _Part:
        try:
            return gather_part()
        except Exception as error:
            broken[name] = f"{type(error).__name__}: {error}"
            return empty

    settings = part("settings", _settings, Settings())
    chosen = settings.set_value("RDMACOLL_TCP_CONGESTION")
    environment, secret = bootstrap.variables(), settings.value("RDMACOLL_SECRET_FILE")
    return Machine(
        host=platform.node(),
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        python=platform.python_version(),
        views=part("views", _views, ()),
        engine=part("engine", _engine, Engine()),
        settings=settings,
        kernel=part("kernel", lambda: kernel(sys_root, proc, Path("/dev")), Kernel()),
        memory=part("memory", lambda: memory(sys_root, proc, limit_of(resource.RLIMIT_MEMLOCK)), Memory()),
        one_copy=part("one_copy", lambda: read_by_child(proc), OneCopy()),
        files=part("files", lambda: limit_of(resource.RLIMIT_NOFILE), Limit()),
        congestion=part("congestion", lambda: congestion(proc, chosen), Congestion()),
        cores=part("cores", lambda: cores(sys_root, proc, tuple(sorted(os.sched_getaffinity(0)))), Cores()),
        network=part("network", lambda: network(sys_root, platform.node()), Network()),
        threads=part("threads", lambda: threads(environment, limit_of(resource.RLIMIT_NPROC)), Threads()),
        variables=part("variables", lambda: variables(environment, secret), Variables()),
        mpi=part("mpi", _mpi, Mpi()),
        packages=part("packages", lambda: _packages(load_tensorflow), Packages()),
        start=part("start", _start, Start()),
        gpus=part("gpus", lambda: _report(_loaded(), library.Library.gpus), {}),
        profile=part("profile", lambda: _report(_loaded(), library.Library.machine_profile), {}),
        broken=broken,
    )
