"""Facts that `rdmacoll doctor` gathers: recorded device trees, control groups' limits, a read by a child."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ranks import clean_environment

from rdmacoll import ConfigError
from rdmacoll._abi import device_differences, device_views, devices
from rdmacoll._abi.devices import ENGINE, PYVERBS, SYSFS, Device, Gid, Port, Rail, View
from rdmacoll.cli import doctor, doctor_gather
from rdmacoll.cli.doctor_facts import Limit, Machine

NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def port_files(
    state: str, rate: str, link: str, lid: str, gids: dict[int, tuple[str, str, str]]
) -> dict[str, str]:
    files = {"state": state, "rate": rate, "link_layer": link, "lid": lid, "gids/7": NO_GID}
    for index, (gid, kind, interface) in gids.items():
        files[f"gids/{index}"] = gid
        if kind:
            files[f"gid_attrs/types/{index}"] = kind
            files[f"gid_attrs/ndevs/{index}"] = interface
    return files


def add_device(root: Path, name: str, files: dict[str, str], *ports: dict[str, str]) -> None:
    write(root / name, files)
    for number, port in enumerate(ports, 1):
        write(root / name / "ports" / str(number), port)


def test_no_folder_and_an_empty_one_are_no_device(tmp_path: Path) -> None:
    assert device_views.sysfs_view(tmp_path / "infiniband") == View(SYSFS)
    assert device_views.sysfs_view(tmp_path) == View(SYSFS)


def test_soft_roce_in_sysfs(tmp_path: Path) -> None:
    link_local = ("fe80:0000:0000:0000:3090:a6ff:feb8:753b", "RoCE v2", "v1")
    ipv4 = ("0000:0000:0000:0000:0000:ffff:0a09:0001", "RoCE v2", "v1")
    port = port_files("4: ACTIVE", "10 Gb/sec (1X FDR10)", "Ethernet", "0x0", {0: link_local, 10: ipv4})
    add_device(tmp_path, "rxe1", {"fw_ver": "", "node_guid": "3090:a6ff:feb8:753b", "parent": "v1"}, port)
    (device,) = device_views.sysfs_view(tmp_path).devices
    gids = (
        Gid(0, "fe80::3090:a6ff:feb8:753b", "roce_v2", "v1"),
        Gid(10, "::ffff:10.9.0.1", "roce_v2", "v1"),
    )
    assert device == Device(
        "rxe1", "", "3090:a6ff:feb8:753b", True, None, (Port(1, "active", "ethernet", None, 10.0, 0, gids),)
    )


def test_an_adapter_with_one_port_down_in_sysfs(tmp_path: Path) -> None:
    first = ("0000:0000:0000:0000:0000:ffff:c0a8:0102", "IB/RoCE v1", "eth2")
    second = ("0000:0000:0000:0000:0000:ffff:c0a8:0102", "RoCE v2", "eth2")
    up = port_files("4: ACTIVE", "100 Gb/sec (4X EDR)", "Ethernet", "0x0", {2: first, 3: second})
    down = port_files("1: DOWN", "40 Gb/sec (4X QDR)", "Ethernet", "0x0", {})
    hardware = {"fw_ver": "16.35.2000", "node_guid": "9803:9b03:0000:e4c6", "device/numa_node": "1"}
    add_device(tmp_path, "mlx5_0", hardware, down, up)
    (device,) = device_views.sysfs_view(tmp_path).devices
    assert (device.is_software, device.numa_node, device.firmware) == (False, 1, "16.35.2000")
    assert [(port.number, port.state, port.gbit_per_s) for port in device.ports] == [
        (1, "down", 40.0),
        (2, "active", 100.0),
    ]
    assert [gid.type for gid in device.ports[1].gids] == ["roce_v1", "roce_v2"]


def test_infiniband_in_sysfs(tmp_path: Path) -> None:
    gids = {0: ("fe80:0000:0000:0000:0002:c903:0010:1234", "", "")}
    port = port_files("4: ACTIVE", "56 Gb/sec (4X FDR)", "InfiniBand", "0x1f", gids)
    waiting = port_files("2: INIT", "56 Gb/sec (4X FDR)", "InfiniBand", "0x0", gids)
    add_device(tmp_path, "mlx4_0", {"fw_ver": "2.42.5000", "device/numa_node": "-1"}, waiting, port)
    (device,) = device_views.sysfs_view(tmp_path).devices
    gid = Gid(0, "fe80::2:c903:10:1234", "infiniband")
    assert device.ports[1] == Port(2, "active", "infiniband", None, 56.0, 31, (gid,))
    assert device.ports[0].state == "init"


PORT = Port(1, "active", "ethernet", 4096, 56.0, 0, (Gid(1, "::ffff:10.0.0.1", "roce_v2", "eth0"),))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, None),
        ({"active_mtu": None, "gbit_per_s": None, "lid": None, "link": "unknown"}, None),
        ({"gbit_per_s": 56.25}, None),  # the same rate, rounded
        ({"state": "down"}, ["state", "active in sysfs", "down in pyverbs"]),
        ({"active_mtu": 1024}, ["MTU", "4096 in sysfs", "1024 in pyverbs"]),
        ({"link": "infiniband"}, ["link layer", "ethernet in sysfs", "infiniband in pyverbs"]),
        ({"lid": 9}, ["LID", "0 in sysfs", "9 in pyverbs"]),
        ({"gbit_per_s": 100.0}, ["rate", "56 Gbit/s in sysfs", "100 Gbit/s in pyverbs"]),
        ({"gids": (replace(PORT.gids[0], type="unknown"),)}, None),
        ({"gids": (Gid(1, "::ffff:10.0.0.2"),)}, ["GID 1", "::ffff:10.0.0.2 (unknown) in pyverbs"]),
        ({"gids": ()}, ["GID 1", "::ffff:10.0.0.1 (RoCE v2) in sysfs", "not set in pyverbs"]),
        ({"number": 2}, ["ports", "[1] in sysfs", "[2] in pyverbs"]),
    ],
)
def test_views_that_differ_name_both(changed: dict[str, Any], says: list[str] | None) -> None:
    one = View(SYSFS, (Device("mlx5_0", ports=(PORT,)),))
    other = View(PYVERBS, (Device("mlx5_0", ports=(replace(PORT, **changed),)),))
    found = device_differences.differences(one, other)
    assert len(found) == (says is not None)
    for words in says or ():
        assert words in found[0]


def test_a_device_that_the_engine_cannot_use_hides_its_ports() -> None:
    engine = View(ENGINE, (Device("siw0", unusable="is an iWARP device"),))
    assert device_differences.differences(engine, View(SYSFS, (Device("siw0", ports=(PORT,)),))) == []


# As cpp/api/commands_devices.cc writes it.
ENGINE_TOLD = """
{"error": null, "warning": "mind the forks", "devices": [{"name": "mlx5_0", "firmware": "16",
 "node_guid": "0011:2233:4455:6677", "software": false, "numa_node": 1, "unusable": null,
 "queue_depth_max": 8192, "completions_max": 65536, "scatter_max": 30, "reads_in_flight_max": 16,
 "ports": [{"number": 1, "state": "active", "link_layer": "Ethernet", "mtu": 4096, "gbit_per_s": 56,
  "lid": 0, "message_bytes_max": 1073741824, "pkeys": [65535],
  "gids": [{"index": 1, "gid": "::ffff:10.0.0.1", "type": "RoCE v2", "interface": "eth0"}], "unusable": null},
  {"number": 2, "state": "initializing", "link_layer": "InfiniBand", "mtu": 0, "gbit_per_s": 0, "lid": 3,
   "message_bytes_max": 0, "pkeys": [], "unusable": "is initializing",
   "gids": [{"index": 0, "gid": "fe80::1", "type": "unknown type", "interface": null}]}]}],
 "rails": [{"device": "mlx5_0", "port": 1, "gid_index": 1, "gid": "::ffff:10.0.0.1", "reason": "because",
  "text": "mlx5_0 port 1 (...)", "software": false}], "choice_error": null}
"""


def test_the_engine_tells_what_it_sees_and_chooses() -> None:
    library: Any = types.SimpleNamespace(devices=lambda: json.loads(ENGINE_TOLD))
    view = devices.engine_view(library)
    waiting = Port(2, "init", "infiniband", None, None, 3, (Gid(0, "fe80::1"),), "is initializing")
    device = Device(
        "mlx5_0", "16", "0011:2233:4455:6677", False, 1, (replace(PORT, unusable=""), waiting), ""
    )
    rail = Rail("mlx5_0", 1, "::ffff:10.0.0.1", "mlx5_0 port 1 (...)", "because", False)
    assert view == View(ENGINE, (device,), rails=(rail,), warning="mind the forks")
    sysfs = View(SYSFS, (replace(device, ports=(PORT, replace(waiting, gids=(Gid(0, "fe80::1"),)))),))
    assert device_differences.differences(view, sysfs) == []


def test_an_engine_that_cannot_tell_says_why() -> None:
    assert devices.engine_view(None).problem

    def refuse() -> None:
        raise ConfigError("RDMACOLL_GID_INDEX=x is not allowed")

    library: Any = types.SimpleNamespace(devices=refuse)
    assert devices.engine_view(library).problem == "RDMACOLL_GID_INDEX=x is not allowed"


def test_pyverbs_is_asked_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyverbs", None)
    monkeypatch.delitem(sys.modules, "pyverbs.device", raising=False)
    assert device_views.pyverbs_view().problem
    made: list[str] = []

    class Context:
        def __init__(self, name: str) -> None:
            made.append(name)

        def query_device(self) -> Any:
            return types.SimpleNamespace(fw_version="16.35", phys_port_cnt=1)

        def query_port(self, number: int) -> Any:
            return types.SimpleNamespace(
                state=4, link_layer=2, active_mtu=5, active_width=2, active_speed=32, lid=0, gid_tbl_len=4
            )

        def query_gid_table(self, entries: int) -> list[Any]:
            gid = "0000:0000:0000:0000:0000:ffff:0a00:0001"
            return [types.SimpleNamespace(gid_index=1, port_num=1, gid_type=2, gid_str=lambda: gid)]

        def close(self) -> None:
            made.append("closed")

    listed = [types.SimpleNamespace(name=b"mlx5_0")]
    fake = types.SimpleNamespace(get_device_list=lambda: listed, Context=Context)
    monkeypatch.setitem(sys.modules, "pyverbs", types.ModuleType("pyverbs"))
    monkeypatch.setitem(sys.modules, "pyverbs.device", fake)
    gid = Gid(1, "::ffff:10.0.0.1", "roce_v2")
    port = Port(1, "active", "ethernet", 4096, 100.0, 0, (gid,))
    assert device_views.pyverbs_view() == View(PYVERBS, (Device("mlx5_0", "16.35", ports=(port,)),))
    assert made == ["mlx5_0", "closed"]


@pytest.mark.parametrize(
    ("files", "quota", "source"),
    [
        ({}, None, ""),
        ({"fs/cgroup/cpu.max": "max 100000"}, None, ""),
        ({"fs/cgroup/cpu.max": "250000 100000"}, 2.5, "fs/cgroup"),
        # The narrowest limit of the group and of its parents counts.
        ({"fs/cgroup/a/cpu.max": "100000 100000", "fs/cgroup/a/b/cpu.max": "max 100000"}, 1.0, "fs/cgroup/a"),
        (
            {"fs/cgroup/a/cpu.max": "400000 100000", "fs/cgroup/a/b/cpu.max": "50000 100000"},
            0.5,
            "fs/cgroup/a/b",
        ),
        ({"fs/cgroup/cpu/c/cpu.cfs_quota_us": "-1", "fs/cgroup/cpu/c/cpu.cfs_period_us": "100000"}, None, ""),
        (
            {"fs/cgroup/cpu/c/cpu.cfs_quota_us": "150000", "fs/cgroup/cpu/c/cpu.cfs_period_us": "100000"},
            1.5,
            "fs/cgroup/cpu/c",
        ),
    ],
)
def test_the_quota_of_control_groups(
    files: dict[str, str], quota: float | None, source: str, tmp_path: Path
) -> None:
    write(
        tmp_path, {"sys/devices/system/cpu/online": "0-3,6", "proc/self/cgroup": "3:cpu,cpuacct:/c\n0::/a/b"}
    )
    write(tmp_path / "sys", files)
    found = doctor_gather.cores(tmp_path / "sys", tmp_path / "proc", (0, 1))
    assert (found.online, found.allowed, found.quota) == (5, (0, 1), quota)
    assert found.quota_from == (str(tmp_path / "sys" / source) if source else "")


@pytest.mark.parametrize(
    ("capabilities", "namespace", "exempt"),
    [
        ("0000000000004000", "0 0 4294967295", True),
        ("0000000000000000", "0 0 4294967295", False),
        ("000001ffffffffff", "0 100000 65536", False),  # root of a container's own user namespace
    ],
)
def test_memory_facts(capabilities: str, namespace: str, exempt: bool, tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/status": f"Name:\tpython\nCapEff:\t{capabilities}",
            "proc/self/uid_map": namespace,
            "proc/meminfo": "HugePages_Total:       8\nHugePages_Free:        3\nHugepagesize:       2048 kB",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        },
    )
    found = doctor_gather.memory(tmp_path / "sys", tmp_path / "proc", Limit(1, 2))
    assert (found.is_memlock_exempt, found.transparent) == (exempt, "madvise")
    assert (found.huge_total, found.huge_free, found.huge_page_bytes) == (8, 3, 2 << 20)


def test_kernel_facts(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/modules": "mlx5_ib 1 0 - Live 0x0\nnvidia_peermem 1 0 - Live 0x0",
            "sys/module/ib_core/version": "1",
            "sys/class/infiniband_verbs/uverbs0/dev": "231:192",
            "sys/class/infiniband_verbs/uverbs1/dev": "231:193",
            "sys/class/infiniband_verbs/abi_version": "6",
            "dev/infiniband/uverbs0": "",
            "sys/bus/pci/devices/0000:3b:00.0/vendor": "0x15b3",
            "sys/bus/pci/devices/0000:3b:00.0/class": "0x020000",
            "sys/bus/pci/devices/0000:65:00.0/vendor": "0x10de",
            "sys/bus/pci/devices/0000:65:00.0/class": "0x030200",
            "sys/bus/pci/devices/0000:66:00.0/vendor": "0x10de",
            "sys/bus/pci/devices/0000:66:00.0/class": "0x040300",
        },
    )
    found = doctor_gather.kernel(tmp_path / "sys", tmp_path / "proc", tmp_path / "dev")
    assert set(found.modules) == {"ib_core", "ib_uverbs", "mlx5_ib", "nvidia_peermem"}
    assert (found.adapters, found.gpus) == (("0000:3b:00.0",), ("0000:65:00.0",))
    assert (found.verbs_files, found.verbs_expected) == (
        ((str(tmp_path / "dev/infiniband/uverbs0"), True),),
        2,
    )


def test_a_child_tries_to_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(tmp_path, {"sys/kernel/yama/ptrace_scope": "2"})
    assert doctor_gather.read_by_child(tmp_path).ptrace_scope == 2
    # Nothing is mapped there.
    monkeypatch.setattr(doctor_gather.ctypes, "addressof", lambda word: 8)
    assert doctor_gather.read_by_child(tmp_path).problem == os.strerror(errno.EFAULT)


def test_what_breaks_is_a_finding_and_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = doctor.examine(Machine(broken={"cores": "OSError: gone"}))
    findings = [finding for finding in broken if "OSError: gone" in finding.seen]
    assert [(finding.name, finding.state) for finding in findings] == [("cores", "problem")]
    assert {"MPI", "open files"} <= {finding.name for finding in broken}

    def burst() -> None:
        raise ValueError("what is this")

    monkeypatch.setattr(doctor_gather, "_mpi", burst)
    monkeypatch.setattr(doctor_gather.device_views, "pyverbs_view", burst)
    machine = doctor_gather.gather()
    assert machine.broken == {"mpi": "ValueError: what is this"}
    assert [view.by for view in machine.views if view.is_broken] == [PYVERBS]
    monkeypatch.setattr(doctor, "CHECKS", (replace(doctor.CHECKS[0], run=lambda machine: burst()),))
    assert ["ValueError: what is this" in finding.seen for finding in doctor.examine(Machine())] == [True]


def run_doctor(tmp_path: Path, *arguments: str, **env: str) -> tuple[int, Any, str]:
    path = tmp_path / "doctor.json"
    done = subprocess.run(
        [sys.executable, "-m", "rdmacoll", "doctor", *arguments, "--json", str(path)],
        env=clean_environment(env),
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, json.loads(path.read_text()) if path.exists() else None, done.stdout + done.stderr


def test_the_command_says_what_it_saw_here(tmp_path: Path) -> None:
    code, written, output = run_doctor(tmp_path)
    problems = [finding for finding in written["findings"] if finding["state"] == "problem"]
    assert (code, written["command"], written["ok"]) == (int(bool(problems)), "doctor", not problems), output
    assert {"librdmacoll", "devices", "cores", "MPI"} <= {finding["name"] for finding in written["findings"]}
    assert "check could not run" not in output
    cores = next(finding["seen"] for finding in written["findings"] if finding["name"] == "cores")
    assert str(len(os.sched_getaffinity(0))) in cores


def test_a_device_that_is_demanded_and_missing_is_a_failure(tmp_path: Path) -> None:
    code, written, output = run_doctor(tmp_path, RDMACOLL_DEVICE="nonesuch_7")
    assert (code, written["ok"]) == (1, False)
    assert "nonesuch_7" in output


def test_a_rank_that_prints_nothing_fails_nothing(tmp_path: Path) -> None:
    world = {"RDMACOLL_RANK": "1", "RDMACOLL_SIZE": "2", "RDMACOLL_RENDEZVOUS": "127.0.0.1:4000"}
    assert run_doctor(tmp_path, RDMACOLL_DEVICE="nonesuch_7", **world) == (0, None, "")


def test_wrong_usage_is_no_finding(tmp_path: Path) -> None:
    code, written, _ = run_doctor(tmp_path, "--nonesuch")
    assert (code, written) == (2, None)
