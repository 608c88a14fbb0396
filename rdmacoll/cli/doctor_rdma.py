"""The checks of `rdmacoll doctor` about RDMA: devices, ports, the kernel's part, locked memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Callable

from rdmacoll.cli.doctor_facts import UNLIMITED, Limit, Machine, Settings
from rdmacoll.cli.doctor_findings import Finding, note, ok, problem, size_text
from rdmacoll.cli.doctor_wish import rdma_wish
from rdmacoll.engine.device_differences import differences
from rdmacoll.engine.devices import ENGINE, LINK_TEXT, SYSFS, Device, Port, Rail, View

_POOL_BYTES = 1 << 30  # RDMACOLL_BUF_SIZE, where it is not known
_POOL_BYTES_MIN = 16 << 20
# cpp/bootstrap/rdma_ability.cc: every rail pins the pool once, and a quarter of it once more.
_PINNED_SHARE = 1.25
_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")

_FALLBACK = "TCP and shared memory carry the data"


def _by(machine: Machine, name: str) -> View:
    return next((view for view in machine.views if view.by == name), View(name, problem="not asked"))


def seen_devices(machine: Machine) -> tuple[Device, ...]:
    """The devices as the kernel lists them; as another observer does where sysfs is hidden."""
    views = (_by(machine, SYSFS), *machine.views)
    return next((view.devices for view in views if view.devices), ())


def _grave(machine: Machine) -> Callable[..., Finding]:
    """What keeps RDMA from working is no problem where nobody wants it."""
    return note if rdma_wish(machine.settings).off else problem


def devices(machine: Machine) -> Iterator[Finding]:
    """Which there are."""
    found = seen_devices(machine)
    wish = rdma_wish(machine.settings)
    if found:
        yield ok(
            "devices",
            ", ".join(_device_text(device) for device in found),
            why="RDMA needs one on every node",
            check="ls /sys/class/infiniband",
        )
    elif wish.demands:
        yield problem(
            "devices",
            f"there is no RDMA device, and {wish.demanded} one",
            why="RDMA that is demanded and cannot be used is an error at the start",
            cure=f"{wish.cure} to use TCP, or load the adapter's driver "
            "(modprobe mlx5_ib; for a container: --device=/dev/infiniband)",
            check="ls /sys/class/infiniband",
        )
    elif machine.kernel.adapters and not wish.off:
        addresses = ", ".join(machine.kernel.adapters)
        yield problem(
            "devices",
            f"there is no RDMA device, but a network adapter of NVIDIA/Mellanox at {addresses} (PCI)",
            why=f"its RDMA goes unused; {_FALLBACK}",
            cure="modprobe mlx5_ib (ConnectX-4 and newer) or mlx4_ib (ConnectX-3), or install rdma-core's "
            "or the vendor's driver",
            check="ls /sys/class/infiniband; lspci -k -s " + machine.kernel.adapters[0],
        )
    else:
        yield note(
            "devices",
            "this machine has no RDMA device",
            why=f"{_FALLBACK}; that is no fault",
            cure="none is needed; where there should be an adapter: see that its driver is loaded and, in a "
            "container, that /dev/infiniband and /sys/class/infiniband are passed in",
            check="ls /sys/class/infiniband; lspci | grep -i -E 'mellanox|infiniband'",
            is_standing=True,
        )


def _device_text(device: Device) -> str:
    kind = (
        "software" if device.is_software else f"firmware {device.firmware}" if device.firmware else "hardware"
    )
    return f"{device.name} ({kind})"


def _port_text(port: Port) -> str:
    words = [LINK_TEXT.get(port.link, port.link), port.state]
    if port.gbit_per_s:
        words.append(f"{port.gbit_per_s:g} Gbit/s")
    if port.active_mtu:
        words.append(f"MTU {port.active_mtu}")
    if port.link == "infiniband" and port.lid is not None:
        words.append(f"LID {port.lid}")
    return ", ".join(words)


_PORT_CURES = {
    "down": "plug in the cable, or switch the port on: ip link set INTERFACE up (Ethernet), "
    "ibportstate (InfiniBand)",
    "init": "start a subnet manager in this InfiniBand network: opensm, or the switch's",
    "armed": "wait for the subnet manager, or start it again: it has configured the port half",
    "other": "see what the driver says: dmesg | grep -i -E 'mlx|infiniband|rxe'",
}


def unusable(device: Device, port: Port) -> str:
    """Why a port cannot carry data, as the engine says; by its state alone where it sees no port."""
    if device.unusable or port.unusable is not None:
        return device.unusable or port.unusable or ""
    return "" if port.state == "active" else f"is {port.state}"


def _judged(machine: Machine) -> list[tuple[Device, Port]]:
    """All ports, by the engine's account where it has one; what it does not know is the kernel's."""
    engine = {device.name: device for device in _by(machine, ENGINE).devices}
    found = []
    for device in seen_devices(machine):
        told = engine.get(device.name, device)
        by_number = {port.number: port for port in told.ports}
        found += [(told, by_number.get(port.number, port)) for port in device.ports]
    return found


def ports(machine: Machine) -> Iterator[Finding]:
    """Each port: an unusable one is a note where another one is usable, else a problem."""
    # pyverbs and the engine know the MTU, which sysfs does not show.
    mtus = {
        (device.name, port.number): port.active_mtu
        for view in machine.views
        for device in view.devices
        for port in device.ports
        if port.active_mtu
    }
    all_ports = _judged(machine)
    some_usable = any(not unusable(device, port) for device, port in all_ports)
    make = note if some_usable else _grave(machine)
    for device, port in all_ports:
        name = f"{device.name} port {port.number}"
        check = f"ibv_devinfo -v -d {device.name} -i {port.number}"
        full = replace(port, active_mtu=mtus.get((device.name, port.number)))
        seen = _port_text(full)
        why_not = unusable(device, port)
        if not why_not:
            gids = ", ".join(gid.text() for gid in port.gids[:4])
            more = f" and {len(port.gids) - 4} more" if len(port.gids) > 4 else ""
            yield ok(name, f"{seen}; {gids}{more}" if gids else seen, why="it can carry data", check=check)
            continue
        yield make(
            name,
            f"{seen}; it {why_not}",
            why="it cannot carry data" + ("" if some_usable else f", and no other port can; {_FALLBACK}"),
            cure=_port_cure(machine.settings, device, port, why_not),
            check=check,
        )


def _port_cure(settings: Settings, device: Device, port: Port, why_not: str) -> str:
    if device.unusable:
        return "use another device: RDMA here needs InfiniBand or RoCE"
    if port.state != "active":
        return _PORT_CURES[port.state if port.state in _PORT_CURES else "other"]
    if "asked for" in why_not:
        index, key = settings.variable("RDMACOLL_GID_INDEX"), settings.variable("RDMACOLL_PKEY")
        return f"unset {index} and {key}, or give them an index that the port has"
    if port.link == "infiniband":
        return _PORT_CURES["init"]
    return "give its network interface an IP address (the GID of RoCE v2 comes from it): ip addr add"


def choice(machine: Machine) -> Iterator[Finding]:
    """Which ports the engine chooses, and why, in its own words."""
    if not seen_devices(machine):
        return
    wish = rdma_wish(machine.settings)
    if wish.off:
        why = "RDMA that is turned off is not looked for"
        yield ok("choice", f"none: {wish.off} turns RDMA off", why=why, check="rdmacoll config")
        return
    engine = _by(machine, ENGINE)
    for rail in engine.rails:
        yield _chosen(rail)
    reason = engine.refusal or engine.problem
    if not reason or engine.rails:
        return
    variable = machine.settings.variable("RDMACOLL_DEVICE")
    without = f"no longer demand it: {wish.cure}" if wish.demands else "do without: RDMACOLL_RDMA=false"
    yield (problem if wish.demands else note)(
        "choice",
        reason,
        why=f"{wish.demanded} RDMA, so that nothing starts without" if wish.demands else _FALLBACK,
        cure=f"what the sentence names; or name a device above that has a usable port ({variable}=NAME "
        f"or NAME:PORT), or {without}",
        check="rdmacoll config; ibv_devinfo",
    )


def _chosen(rail: Rail) -> Finding:
    seen = f"{rail.text}: {rail.reason}"
    if rail.is_link_local and "InfiniBand" not in rail.text:
        return note(
            "choice",
            seen,
            why="a link-local GID reaches the same link only, and no host behind a router",
            cure="give the port's network interface an IP address of the job's network",
            check=f"ibv_devinfo -v -d {rail.device} -i {rail.port}",
        )
    if rail.is_software:
        return note(
            "choice",
            seen,
            why="it is a software device, good for tests: the processor does an adapter's work, so it is "
            "slower than TCP",
            cure="RDMACOLL_RDMA=false where speed matters and there is no adapter",
            check=f"rdma link show {rail.device}/{rail.port}",
        )
    return ok(
        "choice",
        seen,
        why="it carries the data between nodes where all ranks can use RDMA",
        check=f"ibv_devinfo -v -d {rail.device} -i {rail.port}",
    )


def views(machine: Machine) -> Iterator[Finding]:
    """Whether those who look at the devices see the same."""
    for view in machine.views:
        if view.is_broken:
            yield note(
                "views",
                f"{view.by} cannot tell its devices: {view.problem}",
                why="what it would say is not known",
                cure="see whether its own tools say more; without a cause there it is a fault of rdmacoll: "
                "report it with the file of --json",
                check="ibv_devinfo -v; rdmacoll doctor",
            )
    if not seen_devices(machine):
        return
    check = "ibv_devinfo -v; ls /sys/class/infiniband /dev/infiniband"
    able = [view for view in machine.views if not view.problem]
    unable = [
        f"{view.by}: {view.problem.rstrip('.')}"
        for view in machine.views
        if view.problem and not view.is_broken
    ]
    found = [
        difference
        for index, one in enumerate(able)
        for other in able[index + 1 :]
        for difference in differences(one, other)
    ]
    for difference in found:
        yield _grave(machine)(
            "views",
            difference,
            why="what one part chooses by its view, another part cannot use",
            cure="install rdma-core's providers (ibverbs-providers) for these adapters, and pass all of "
            "/dev/infiniband into a container",
            check=check,
        )
    if not found:
        why = "what one part chooses by its view, every other part can use"
        agree = " and ".join(view.by for view in able)
        verb = "agree" if len(able) > 1 else "alone sees them"
        seen = f"{agree} {verb}" + (f" ({'; '.join(unable)})" if unable else "")
        yield ok("views", seen, why=why, check=check)


def kernel(machine: Machine) -> Iterator[Finding]:
    """Modules, device files, and libibverbs."""
    facts = machine.kernel
    modules = ", ".join(facts.modules) or "none of the RDMA modules is loaded"
    loaded_why, loaded_check = "devices are used through ib_uverbs", "ls /sys/class/infiniband_verbs"
    if not seen_devices(machine):
        yield ok("kernel modules", modules, why=loaded_why + ", and there is none", check=loaded_check)
        return
    if "ib_uverbs" not in facts.modules:
        yield _grave(machine)(
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
        yield _grave(machine)(
            "device files",
            seen + (f"; no permission for {', '.join(refused)}" if refused else ""),
            why=why,
            cure="start the container with --device=/dev/infiniband; outside of one: rdma-core's udev "
            "rules, or chmod 666 on the files",
            check=check,
        )
    elif facts.verbs_expected:
        yield ok("device files", ", ".join(usable), why=why, check=check)


def _libibverbs(machine: Machine) -> Iterator[Finding]:
    why, check = "the devices are used through it", "ibv_devices"
    if machine.kernel.libibverbs:
        yield _grave(machine)(
            "libibverbs",
            machine.kernel.libibverbs,
            why=why,
            cure="apt-get install libibverbs1 ibverbs-providers (or rdma-core)",
            check=check,
        )
    elif _by(machine, ENGINE).warning:
        yield note(
            "libibverbs",
            _by(machine, ENGINE).warning,
            why="RDMA works, with less than it could have",
            cure="what the sentence names",
            check="dpkg -l libibverbs1 (rpm -q libibverbs)",
        )
    else:
        yield ok("libibverbs", "loads", why=why, check=check)


def gpus(machine: Machine) -> Iterator[Finding]:
    """Whether adapters could reach GPU memory."""
    facts = machine.kernel
    hardware = any(not device.is_software for device in seen_devices(machine))
    if not facts.gpus or not hardware:
        return
    loaded = [module for module in _PEER_MODULES if module in facts.modules]
    why = "an adapter reaches a GPU's memory through it, or through dma-buf of newer drivers"
    check = "lsmod | grep -E 'nvidia_peermem|nv_peer_mem'"
    if loaded:
        yield ok("GPU memory", f"{loaded[0]} is loaded", why=why, check=check)
    else:
        yield note(
            "GPU memory",
            f"GPUs at {', '.join(facts.gpus)} (PCI), but nvidia_peermem is not loaded",
            why=why,
            cure="modprobe nvidia_peermem",
            check=check,
        )


def _limit_text(limit: int) -> str:
    return "unlimited" if limit == UNLIMITED else size_text(limit)


def memlock(machine: Machine) -> Iterator[Finding]:
    """Whether the pool can be pinned."""
    limit: Limit = machine.memory.memlock
    have = _limit_text(limit.soft)
    why = "memory that an adapter reads and writes has to be pinned"
    check = "ulimit -l (KiB), on each node and as the ranks are started: mpirun ... bash -c 'ulimit -l'"
    off = rdma_wish(machine.settings).off
    if off or not seen_devices(machine):
        needless = f"RDMA alone needs it, and {off} turns that off" if off else "RDMA alone needs it"
        yield ok("locked memory", f"{have} ({needless})", why=why, check=check)
        return
    if limit.soft == UNLIMITED or machine.memory.is_memlock_exempt:
        exempt = ", and does not bind this process (CAP_IPC_LOCK)" if limit.soft != UNLIMITED else ""
        yield ok("locked memory", have + exempt, why=why, check=check)
        return
    variable = machine.settings.variable("RDMACOLL_BUF_SIZE")
    given = machine.settings.given("RDMACOLL_BUF_SIZE")
    pool = int(given or machine.settings.value("RDMACOLL_BUF_SIZE") or _POOL_BYTES)
    pinned_share = _PINNED_SHARE * max(1, len(_by(machine, ENGINE).rails))
    need = int(pool * pinned_share)
    if limit.soft >= need:
        seen = f"{have}; the pool of {size_text(pool)} needs {size_text(need)}"
        yield ok("locked memory", seen, why=why, check=check)
        return
    if limit.hard == UNLIMITED or limit.hard >= need:
        cure = "ulimit -l " + ("unlimited" if limit.hard == UNLIMITED else str(need // 1024))
        cure += " in the shell or script that starts the ranks"
    else:
        cure = (
            "as root: '* - memlock unlimited' in /etc/security/limits.d/rdma.conf and log in again; "
            "LimitMEMLOCK=infinity for a service; --ulimit memlock=-1 for a container"
        )
    must = bool(given) or limit.soft < _POOL_BYTES_MIN * pinned_share
    smaller = "" if must else "; without RDMACOLL_BUF_SIZE the pool shrinks to what may be pinned"
    yield (problem if must else note)(
        "locked memory",
        f"this process may pin {have}, and its pool of {size_text(pool)} ({variable}) needs "
        f"{size_text(need)}",
        why=why + smaller,
        cure=cure,
        check=check,
    )
