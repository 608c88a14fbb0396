"""Reads the devices from sysfs and through pyverbs."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from rdmacoll._abi.devices import PYVERBS, SYSFS, Device, Gid, Port, View, gid_text

_STATES = {1: "down", 2: "init", 3: "armed", 4: "active"}  # ibv_port_state; 5 is "active, deferred"
_SYSFS_LINKS = {"InfiniBand": "infiniband", "Ethernet": "ethernet"}
# InfiniBand ports also show "IB/RoCE v1".
_SYSFS_TYPES = {"RoCE v2": "roce_v2", "IB/RoCE v1": "roce_v1"}
_LINKS = {1: "infiniband", 2: "ethernet"}  # IBV_LINK_LAYER_*
_GID_TYPES = {0: "infiniband", 1: "roce_v1", 2: "roce_v2"}  # ibv_gid_type
_MTUS = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}  # ibv_mtu
# active_width and active_speed of ibv_query_port(3): lanes, and Gbit/s of a lane.
_WIDTHS = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
_SPEEDS = {1: 2.5, 2: 5.0, 4: 10.0, 8: 10.0, 16: 14.0, 32: 25.0, 64: 50.0, 128: 100.0, 256: 200.0}
# With more entries the table (32 bytes each) exceeds 16 bits, and the kernel refuses it with EINVAL.
_GIDS_MAX = 2047


def _read(path: Path) -> str:
    """The text of a file of sysfs. Empty if the file is missing or the kernel refuses it (an unset GID)."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _numbered(folder: Path) -> list[Path]:
    """The entries 0, 1, 2 ... of a folder, in order."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


def sysfs_view(root: Path) -> View:
    """The devices under `root`, which is /sys/class/infiniband or a copy of it."""
    if not root.is_dir():
        return View(SYSFS)  # the folder comes with the first module of the RDMA stack
    return View(SYSFS, tuple(_sysfs_device(path) for path in sorted(root.iterdir())))


def _sysfs_device(path: Path) -> Device:
    numa = _read(path / "device" / "numa_node")
    return Device(
        path.name,
        _read(path / "fw_ver"),
        _read(path / "node_guid"),
        # rxe names its network interface in `parent`. Hardware has a `device` on a bus.
        (path / "parent").exists() or not (path / "device").exists(),
        int(numa) if numa else None,
        tuple(_sysfs_port(port) for port in _numbered(path / "ports")),
    )


def _sysfs_port(path: Path) -> Port:
    state = _read(path / "state").partition(":")[0]  # "4: ACTIVE"
    rate = _read(path / "rate").partition(" ")[0]  # "100 Gb/sec (4X EDR)"
    lid = _read(path / "lid")  # "0x1f"
    link = _SYSFS_LINKS.get(_read(path / "link_layer"), "unknown")
    gids = (_sysfs_gid(path, entry, link) for entry in _numbered(path / "gids"))
    return Port(
        int(path.name),
        _STATES.get(int(state), "other") if state.isdigit() else "other",
        link,
        None,  # sysfs does not show it
        float(rate) if rate.replace(".", "", 1).isdigit() else None,
        int(lid, 16) if lid else None,
        tuple(gid for gid in gids if gid is not None),
    )


def _sysfs_gid(port: Path, entry: Path, link: str) -> Gid | None:
    text = _read(entry)
    if not text or not text.replace(":", "").strip("0"):
        return None
    kind = "infiniband"
    if link != "infiniband":
        kind = _SYSFS_TYPES.get(_read(port / "gid_attrs" / "types" / entry.name), "unknown")
    return Gid(int(entry.name), gid_text(text), kind, _read(port / "gid_attrs" / "ndevs" / entry.name))


def pyverbs_view() -> View:
    """The devices that pyverbs of rdma-core sees, if this Python has pyverbs."""
    try:
        module = importlib.import_module("pyverbs.device")
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("pyverbs")
        reason = "it is not installed" if missing else f"it cannot be imported: {error}"
        return View(PYVERBS, problem=reason)
    try:
        listed = module.get_device_list()
    except Exception as error:  # pyverbs has one class for a missing device and a missing kernel module
        return View(PYVERBS, problem=str(error).strip().split("\n")[0])
    return View(PYVERBS, tuple(_pyverbs_device(module, listing.name.decode()) for listing in listed))


def _pyverbs_device(module: Any, name: str) -> Device:
    context = module.Context(name=name)
    try:
        attributes = context.query_device()
        listed = {n: context.query_port(n) for n in range(1, int(attributes.phys_port_cnt) + 1)}
        entries = sum(int(port.gid_tbl_len) for port in listed.values())
        table: list[Any] = context.query_gid_table(min(entries, _GIDS_MAX))
        ports = tuple(_pyverbs_port(port, number, table) for number, port in listed.items())
    finally:
        context.close()
    return Device(name, str(attributes.fw_version), ports=ports)


def _pyverbs_port(port: Any, number: int, table: list[Any]) -> Port:
    lanes, lane_gbit = _WIDTHS.get(port.active_width), _SPEEDS.get(port.active_speed)
    link = _LINKS.get(port.link_layer, "unknown")
    return Port(
        number,
        _STATES.get(port.state, "other"),
        link,
        _MTUS.get(port.active_mtu),
        lanes * lane_gbit if lanes and lane_gbit else None,
        port.lid,
        tuple(
            Gid(entry.gid_index, gid_text(entry.gid_str()), _GID_TYPES.get(entry.gid_type, "unknown"))
            for entry in table
            if entry.port_num == number
        ),
    )
