"""The checks of `rdmacoll doctor` about RDMA devices: ports, the choice, what observers see. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Callable

from rdmacoll._abi.device_differences import differences
from rdmacoll._abi.devices import ENGINE, LINK_TEXT, SYSFS, Device, Port, Rail, View
from rdmacoll.cli.doctor_facts import Machine, Settings
from rdmacoll.cli.doctor_findings import Finding, note, ok, problem
from rdmacoll.cli.rdma_request import rdma_request

_FALLBACK = "TCP and shared memory carry the data"


def view_by(machine: Machine, name: str) -> View:
    """The view of the observer `name`: its list of devices."""
    return next((view for view in machine.views if view.by == name), View(name, problem="not asked"))


def seen_devices(machine: Machine) -> tuple[Device, ...]:
    """The devices as the kernel lists them. If sysfs is hidden, another observer's list."""
    views = (view_by(machine, SYSFS), *machine.views)
    return next((view.devices for view in views if view.devices), ())


def grave(machine: Machine) -> Callable[..., Finding]:
    """The maker of a finding for a fault of RDMA: a note if RDMA is turned off, otherwise a problem."""
    return note if rdma_request(machine.settings).off else problem


def devices(machine: Machine) -> Iterator[Finding]:
    """The RDMA devices of this machine."""
    found = seen_devices(machine)
    request = rdma_request(machine.settings)
    if found:
        yield ok(
            "devices",
            ", ".join(_device_text(device) for device in found),
            why="RDMA needs one on every node",
            check="ls /sys/class/infiniband",
        )
    elif request.demands:
        yield problem(
            "devices",
            f"there is no RDMA device, and {request.demanded} one",
            why="a start that demands RDMA fails without it",
            cure=f"{request.cure} to use TCP, or load the adapter's driver "
            "(modprobe mlx5_ib; for a container: --device=/dev/infiniband)",
            check="ls /sys/class/infiniband",
        )
    elif machine.kernel.adapters and not request.off:
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
            why=f"{_FALLBACK}; this is not a fault",
            cure="none is needed; if this machine has an adapter, check that its driver is loaded and, in a "
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
    labels = [LINK_TEXT.get(port.link, port.link), port.state]
    if port.gbit_per_s:
        labels.append(f"{port.gbit_per_s:g} Gbit/s")
    if port.active_mtu:
        labels.append(f"MTU {port.active_mtu}")
    if port.link == "infiniband" and port.lid is not None:
        labels.append(f"LID {port.lid}")
    return ", ".join(labels)


_PORT_CURES = {
    "down": "plug in the cable, or switch the port on: ip link set INTERFACE up (Ethernet), "
    "ibportstate (InfiniBand)",
    "init": "start a subnet manager in this InfiniBand network: opensm, or the switch's",
    "armed": "wait for the subnet manager, or start it again: it has configured the port half",
    "other": "see what the driver says: dmesg | grep -i -E 'mlx|infiniband|rxe'",
}


def unusable(device: Device, port: Port) -> str:
    """Why a port cannot carry data, in the engine's words. If the engine does not see the port, its state
    decides."""
    if device.unusable or port.unusable is not None:
        return device.unusable or port.unusable or ""
    return "" if port.state == "active" else f"is {port.state}"


def _judged(machine: Machine) -> list[tuple[Device, Port]]:
    """All ports as the engine judges them. Ports that the engine does not know are as the kernel lists
    them."""
    engine = {device.name: device for device in view_by(machine, ENGINE).devices}
    found = []
    for device in seen_devices(machine):
        by_engine = engine.get(device.name, device)
        by_number = {port.number: port for port in by_engine.ports}
        found += [(by_engine, by_number.get(port.number, port)) for port in device.ports]
    return found


def ports(machine: Machine) -> Iterator[Finding]:
    """Each port. An unusable port is a note if another port is usable, otherwise a problem."""
    # pyverbs and the engine know the MTU; sysfs does not show it.
    mtus = {
        (device.name, port.number): port.active_mtu
        for view in machine.views
        for device in view.devices
        for port in device.ports
        if port.active_mtu
    }
    all_ports = _judged(machine)
    some_usable = any(not unusable(device, port) for device, port in all_ports)
    make = note if some_usable else grave(machine)
    for device, port in all_ports:
        name = f"{device.name} port {port.number}"
        check = f"ibv_devinfo -v -d {device.name} -i {port.number}"
        full = replace(port, active_mtu=mtus.get((device.name, port.number)))
        seen = _port_text(full)
        obstacle = unusable(device, port)
        if not obstacle:
            gids = ", ".join(gid.text() for gid in port.gids[:4])
            more = f" and {len(port.gids) - 4} more" if len(port.gids) > 4 else ""
            yield ok(name, f"{seen}; {gids}{more}" if gids else seen, why="it can carry data", check=check)
            continue
        yield make(
            name,
            f"{seen}; it {obstacle}",
            why="it cannot carry data" + ("" if some_usable else f", and no other port can; {_FALLBACK}"),
            cure=_port_cure(machine.settings, device, port, obstacle),
            check=check,
        )


def _port_cure(settings: Settings, device: Device, port: Port, obstacle: str) -> str:
    if device.unusable:
        return "use another device: RDMA here needs InfiniBand or RoCE"
    if port.state != "active":
        return _PORT_CURES[port.state if port.state in _PORT_CURES else "other"]
    if "was requested" in obstacle:
        index, key = settings.variable("RDMACOLL_GID_INDEX"), settings.variable("RDMACOLL_PKEY")
        return f"unset {index} and {key}, or give them an index that the port has"
    if port.link == "infiniband":
        return _PORT_CURES["init"]
    return "give its network interface an IP address (the GID of RoCE v2 comes from it): ip addr add"


def choice(machine: Machine) -> Iterator[Finding]:
    """The ports that the engine chooses, with its own reasons."""
    if not seen_devices(machine):
        return
    request = rdma_request(machine.settings)
    if request.off:
        why = "RDMA is turned off, so no device is searched"
        yield ok("choice", f"none: {request.off} turns RDMA off", why=why, check="rdmacoll config")
        return
    engine = view_by(machine, ENGINE)
    for rail in engine.rails:
        yield _chosen(rail)
    reason = engine.refusal or engine.problem
    if not reason or engine.rails:
        return
    variable = machine.settings.variable("RDMACOLL_DEVICE")
    alternative = (
        f"no longer demand it: {request.cure}" if request.demands else "do without: RDMACOLL_RDMA=false"
    )
    yield (problem if request.demands else note)(
        "choice",
        reason,
        why=f"{request.demanded} RDMA, so a start fails without it" if request.demands else _FALLBACK,
        cure=f"follow the message; or name a device above that has a usable port ({variable}=NAME or "
        f"NAME:PORT), or {alternative}",
        check="rdmacoll config; ibv_devinfo",
    )


def _chosen(rail: Rail) -> Finding:
    seen = f"{rail.text}: {rail.reason}"
    if rail.is_link_local and "InfiniBand" not in rail.text:
        return note(
            "choice",
            seen,
            why="a link-local GID reaches hosts on the same link, but none behind a router",
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
    """Whether all observers see the same devices."""
    for view in machine.views:
        if view.is_broken:
            yield note(
                "views",
                f"{view.by} cannot list its devices: {view.problem}",
                why="its devices are unknown",
                cure="run its own tools; if they show no cause, report a fault of rdmacoll with the file of "
                "--json",
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
        yield grave(machine)(
            "views",
            difference,
            why="a device that one part chooses may not be usable by another part",
            cure="install rdma-core's providers (ibverbs-providers) for these adapters, and pass all of "
            "/dev/infiniband into a container",
            check=check,
        )
    if not found:
        why = "every part can use the device that another part chooses"
        agree = " and ".join(view.by for view in able)
        verb = "agree" if len(able) > 1 else "alone sees them"
        seen = f"{agree} {verb}" + (f" ({'; '.join(unable)})" if unable else "")
        yield ok("views", seen, why=why, check=check)
