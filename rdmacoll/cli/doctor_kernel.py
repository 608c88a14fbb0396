"""The checks of `rdmacoll doctor` about the system below RDMA: the kernel, locked memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rdmacoll._abi.devices import ENGINE
from rdmacoll.cli.doctor_facts import UNLIMITED, Limit, Machine
from rdmacoll.cli.doctor_findings import Finding, limit_cure, note, ok, problem, size_text
from rdmacoll.cli.doctor_rdma import grave, seen_devices, view_by
from rdmacoll.cli.rdma_request import rdma_request

_POOL_BYTES = 1 << 30  # RDMACOLL_BUF_SIZE, if it is not known
_POOL_BYTES_MIN = 16 << 20
# cpp/transport/rdma/ability.cc: every rail pins the pool once, and a quarter of the pool a second time.
_PINNED_SHARE = 1.25


def kernel(machine: Machine) -> Iterator[Finding]:
    """Modules, device files, and libibverbs."""
    facts = machine.kernel
    modules = ", ".join(facts.modules) or "none of the RDMA modules is loaded"
    loaded_why, loaded_check = "devices are used through ib_uverbs", "ls /sys/class/infiniband_verbs"
    if not seen_devices(machine):
        yield ok("kernel modules", modules, why=loaded_why + ", and there is none", check=loaded_check)
        return
    if "ib_uverbs" not in facts.modules:
        yield grave(machine)(
            "kernel modules",
            f"ib_uverbs is not loaded ({modules})",
            why="without it no program can use the devices",
            cure="modprobe ib_uverbs",
            check=loaded_check,
        )
    else:
        yield ok("kernel modules", modules, why=loaded_why, check=loaded_check)
    yield from _device_files(machine)
    yield from _libibverbs(machine)


def _device_files(machine: Machine) -> Iterator[Finding]:
    facts = machine.kernel
    why, check = "a device whose file cannot be opened cannot be used", "ls -l /dev/infiniband"
    usable = [path for path, may_use in facts.verbs_files if may_use]
    if facts.verbs_expected and len(usable) < facts.verbs_expected:
        refused = [path for path, may_use in facts.verbs_files if not may_use]
        seen = f"{len(usable)} of {facts.verbs_expected} files /dev/infiniband/uverbsN can be used"
        yield grave(machine)(
            "device files",
            seen + (f"; no permission for {', '.join(refused)}" if refused else ""),
            why=why,
            cure="start the container with --device=/dev/infiniband; without a container: install "
            "rdma-core's udev rules, or chmod 666 the files",
            check=check,
        )
    elif facts.verbs_expected:
        yield ok("device files", ", ".join(usable), why=why, check=check)


def _libibverbs(machine: Machine) -> Iterator[Finding]:
    why, check = "the devices are used through it", "ibv_devices"
    if machine.kernel.libibverbs:
        yield grave(machine)(
            "libibverbs",
            machine.kernel.libibverbs,
            why=why,
            cure="apt-get install libibverbs1 ibverbs-providers (or rdma-core)",
            check=check,
        )
    elif view_by(machine, ENGINE).warning:
        yield note(
            "libibverbs",
            view_by(machine, ENGINE).warning,
            why="RDMA works, without some functions of the library",
            cure="follow the message",
            check="dpkg -l libibverbs1 (rpm -q libibverbs)",
        )
    else:
        yield ok("libibverbs", "loads", why=why, check=check)


def _limit_text(limit: int) -> str:
    return "unlimited" if limit == UNLIMITED else size_text(limit)


def memlock(machine: Machine) -> Iterator[Finding]:
    """Whether the pool can be pinned."""
    limit: Limit = machine.memory.memlock
    have = _limit_text(limit.soft)
    why = "memory that an adapter reads and writes has to be pinned"
    check = "ulimit -l (KiB), on each node and as the ranks are started: mpirun ... bash -c 'ulimit -l'"
    off = rdma_request(machine.settings).off
    if off or not seen_devices(machine):
        needless = f"only RDMA needs it, and {off} turns RDMA off" if off else "only RDMA needs it"
        yield ok("locked memory", f"{have} ({needless})", why=why, check=check)
        return
    if limit.soft == UNLIMITED or machine.memory.is_memlock_exempt:
        exempt = ", and does not bind this process (CAP_IPC_LOCK)" if limit.soft != UNLIMITED else ""
        yield ok("locked memory", have + exempt, why=why, check=check)
        return
    variable = machine.settings.variable("RDMACOLL_BUF_SIZE")
    set_value = machine.settings.set_value("RDMACOLL_BUF_SIZE")
    pool = int(set_value or machine.settings.value("RDMACOLL_BUF_SIZE") or _POOL_BYTES)
    pinned_share = _PINNED_SHARE * max(1, len(view_by(machine, ENGINE).rails))
    required = int(pool * pinned_share)
    if limit.soft >= required:
        seen = f"{have}; the pool of {size_text(pool)} needs {size_text(required)}"
        yield ok("locked memory", seen, why=why, check=check)
        return
    cure = limit_cure(
        limit,
        required,
        "-l " + ("unlimited" if limit.hard == UNLIMITED else str(required // 1024)),
        "memlock unlimited",
        "; LimitMEMLOCK=infinity for a service; --ulimit memlock=-1 for a container",
    )
    must = bool(set_value) or limit.soft < _POOL_BYTES_MIN * pinned_share
    smaller = "" if must else "; without RDMACOLL_BUF_SIZE the pool shrinks to the size that may be pinned"
    yield (problem if must else note)(
        "locked memory",
        f"this process may pin {have}, and its pool of {size_text(pool)} ({variable}) needs "
        f"{size_text(required)}",
        why=why + smaller,
        cure=cure,
        check=check,
    )
