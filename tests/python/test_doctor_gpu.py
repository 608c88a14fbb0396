"""`rdmacoll doctor` about GPUs: its findings, its page, and recorded machines."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from pci_tree import TREES, make_tree, record, recorded
from test_doctor import PLAIN, found

from rdmacoll import ConfigError
from rdmacoll._abi.library import load
from rdmacoll.cli import doctor, doctor_gpu, doctor_page
from rdmacoll.cli.doctor_facts import Machine

NO_LIBRARIES = "".join(
    f"RDMACOLL_{name.upper()}_LIBRARY=/nonexistent/{file}.so\n"
    for name, file in (("cuda", "cuda"), ("nvml", "nvml"), ("gdrcopy", "gdr"))
)


def direction(way: str, reason: str, change: str | None = None) -> dict[str, Any]:
    return {"way": way, "cause": "none", "reason": reason, "change": change, "lost": False}


def with_gpus(error: str | None = None, **changed: Any) -> Machine:
    """A machine with the two GPUs of a Tesla K80 board and a NIC, as the engine reports them."""
    gpu = {
        "name": "Tesla K80",
        "uuid": "GPU-5c1f2a90-0000-1111-2222-333344445555",
        "address": "0000:06:00.0",
        "capability": "3.7",
        "memory_bytes": 12 << 30,
        "bar1_bytes": 16 << 30,
        "bar1_free": 15 << 30,
        "numa_node": 0,
        "compute_mode": "default",
        "mig": False,
    }
    nic = {
        "name": "mlx4_0",
        "address": "0000:08:00.0",
        "driver": "mlx4_core",
        "numa_node": 0,
        "active": True,
        "software": False,
    }
    slow = direction("staged", "staged through pinned host memory, because reads are slow", "Use a newer GPU")
    near = direction("peer_memory", "direct by the peer-memory module, PCIe switches only")
    cells = [
        {"gpu": 0, "nic": 0, "distance": "PXB", "send": slow, "receive": near, "error": error},
        {"gpu": 1, "nic": 0, "distance": "SYS", "send": slow, "receive": slow, "error": None},
    ]
    report = {
        "driver": "470.256.02",
        "cuda_problem": None,
        "gdrcopy": None,
        "gdrcopy_problem": "libgdrapi.so.2 cannot be opened",
        "setting": "auto",
        "gpus": [gpu, {**gpu, "address": "0000:84:00.0", "numa_node": -1}],
        "nics": [nic],
        "cells": cells,
        "warnings": [],
    }
    return replace(PLAIN, gpus={**report, **changed})


# machine, finding, state, words of the finding. An empty state means that there is no such finding.
STATES: list[tuple[Machine, str, str, list[str]]] = [
    (PLAIN, "GPU memory", "", []),
    (with_gpus(), "GPUs", "ok", ["2 Tesla K80 (driver 470.256.02)"]),
    (with_gpus(driver=None), "GPUs", "ok", ["the driver's version is not known"]),
    (with_gpus(cuda_problem="libcuda.so.1 is a stub."), "GPUs", "note", ["libcuda.so.1 is a stub"]),
    (with_gpus(), "GPU memory", "ok", ["1 of 4 directions between GPUs and NICs are direct"]),
    (with_gpus(cells=[], nics=[]), "GPU memory", "", []),
    (
        with_gpus(warnings=["mlx4_0 does not write, because X is off. Turn X on."]),
        "GPU memory",
        "note",
        ["mlx4_0 does not write, because X is off", "Turn X on"],
    ),
    (with_gpus(error="force, but it cannot"), "GPU memory", "problem", ["force, but it cannot"]),
]


@pytest.mark.parametrize(("machine", "name", "state", "words"), STATES)
def test_each_state_has_its_finding(machine: Machine, name: str, state: str, words: list[str]) -> None:
    findings = found(machine, name)
    assert [finding.state for finding in findings] == ([state] if state else [])
    for finding in findings:
        text = " ".join([finding.seen, finding.why, finding.cure, finding.check])
        assert all(word in text for word in words), text
        assert bool(finding.cure) == (state != "ok")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_page_fits(width: int) -> None:
    machine = with_gpus()
    lines = list(doctor_page.lines(machine, doctor.examine(machine), width))
    plain = [click.unstyle(line) for line in lines]
    assert all(len(line) <= width or " " not in line.strip() for line in plain[1:]), plain
    assert plain[-1].startswith("0 problems, ")


def test_the_page_has_each_device_and_each_reason_once() -> None:
    lines = [click.unstyle(line) for line in doctor_gpu.lines(with_gpus().gpus, 80)]
    assert lines == [
        "",
        "GPUs and NICs",
        "  GPU0   Tesla K80, capability 3.7, memory 12 GiB, BAR1 16 GiB (15 GiB free),",
        "         PCIe 0000:06:00.0, NUMA node 0, compute mode default,",
        "         GPU-5c1f2a90-0000-1111-2222-333344445555",
        "  GPU1   Tesla K80, capability 3.7, memory 12 GiB, BAR1 16 GiB (15 GiB free),",
        "         PCIe 0000:84:00.0, NUMA node not known, compute mode default,",
        "         GPU-5c1f2a90-0000-1111-2222-333344445555",
        "  GDRCopy  not used, because libgdrapi.so.2 cannot be opened: small results are",
        "           copied to GPUs",
        "  mlx4_0  PCIe 0000:08:00.0, NUMA node 0, mlx4_core",
        "",
        "Distance, and the way of data to send / to receive:",
        "         mlx4_0",
        "  GPU0   PXB  staged/direct",
        "  GPU1   SYS  staged/staged",
        "",
        "  GPU0 with mlx4_0:",
        "    send:    staged through pinned host memory, because reads are slow",
        "             To change this: use a newer GPU.",
        "    receive: direct by the peer-memory module, PCIe switches only",
        "  GPU1 with mlx4_0:",
        "    both:    staged through pinned host memory, because reads are slow",
        "             To change this: use a newer GPU.",
    ]
    assert list(doctor_gpu.lines({}, 80)) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"gdrcopy": "2.4"}, "GDRCopy  2.4: the processor writes results of up to 4 KiB to GPUs itself"),
        ({"gdrcopy_problem": None}, "GDRCopy  not used: small results are copied to GPUs"),
    ],
)
def test_the_page_says_whether_gdrcopy_is_used(changed: dict[str, Any], words: str) -> None:
    lines = [click.unstyle(line) for line in doctor_gpu.lines(with_gpus(**changed).gpus, 120)]
    assert any(words in line for line in lines), lines


def test_the_page_says_that_a_machine_has_no_nic() -> None:
    report = {**with_gpus().gpus, "nics": [], "cells": []}
    lines = [click.unstyle(line) for line in doctor_gpu.lines(report, 100)]
    assert "PCIe 0000:84:00.0" in " ".join(lines)
    assert lines[-1] == "No RDMA NIC is here, so GPU data for other nodes goes through host memory."


def test_a_wide_matrix_continues_below() -> None:
    report: dict[str, Any] = dict(with_gpus().gpus)
    (nic,), (cell, _) = report["nics"], report["cells"]
    report["nics"] = [{**nic, "name": f"mlx5_{number}"} for number in range(9)]
    report["cells"] = [{**cell, "gpu": gpu, "nic": number} for gpu in range(2) for number in range(9)]
    lines = [click.unstyle(line) for line in doctor_gpu.lines(report, 80)]
    assert all(len(line) <= 80 for line in lines)
    assert sum(line.startswith("  GPU1   PXB") for line in lines) == 3
    assert any(line.startswith("  GPU0, GPU1 with mlx5_0, mlx5_1") for line in lines)


# ---- recorded machines, read by the engine ----


def test_a_recorded_machine_is_read(tmp_path: Path) -> None:
    make_tree(tmp_path / "sys", "k80_two_sockets")
    report = load().gpus(NO_LIBRARIES, sys=str(tmp_path / "sys"), proc=str(tmp_path / "proc"))
    assert [gpu["address"] for gpu in report["gpus"]] == [
        "0000:06:00.0",
        "0000:07:00.0",
        "0000:84:00.0",
        "0000:85:00.0",
    ]
    assert [cell["distance"] for cell in report["cells"]] == ["PXB", "PXB", "SYS", "SYS"]
    assert report["cells"][0]["switch"] == "PLX switch 0000:02:00.0"
    assert "/nonexistent/nvml.so" in report["nvml_problem"]
    assert report["gdrcopy_problem"].startswith("/nonexistent/gdr.so cannot be opened")
    assert "RDMACOLL_CUDA_LIBRARY" in report["cuda_problem"]
    findings = doctor.examine(replace(PLAIN, gpus=report))
    warned = [finding for finding in findings if finding.name == "GPU memory"]
    assert {finding.state for finding in warned} == {"note"}
    assert len(warned) == 4
    text = "\n".join(click.unstyle(line) for line in doctor_gpu.lines(report, 80))
    assert re.search(r"GPU0 +PXB  staged/staged\n +GPU1 +PXB  staged/staged\n +GPU2 +SYS ", text)


@pytest.mark.parametrize("name", [path.stem for path in sorted(TREES.glob("*.txt"))])
def test_a_recorded_tree_is_recorded_again_as_it_is(name: str, tmp_path: Path) -> None:
    make_tree(tmp_path, name)
    lines = [line for line in recorded(name) if not line.startswith("#")]
    found = list(record(tmp_path))
    assert [set(line.split()) for line in found if "device" in line] == [
        set(line.split()) for line in sorted(lines) if line.startswith("device")
    ]
    assert [line for line in found if "device" not in line] == [
        line for line in lines if not line.startswith("device")
    ]


def test_a_forced_way_that_cannot_be_is_a_problem(tmp_path: Path) -> None:
    make_tree(tmp_path / "sys", "hgx_h100")
    arguments = NO_LIBRARIES + "RDMACOLL_GPUDIRECT=receive:force"
    report = load().gpus(arguments, sys=str(tmp_path / "sys"), proc=str(tmp_path / "proc"))
    assert report["setting"] == "send:auto,receive:force"
    problems = [one for one in doctor.examine(replace(PLAIN, gpus=report)) if one.state == "problem"]
    assert {one.name for one in problems} == {"GPU memory"}
    assert "mlx5_0 cannot write the memory of NVIDIA GPU (0000:1b:00.0) itself" in problems[0].seen


def test_a_machine_without_gpus_has_one_line(tmp_path: Path) -> None:
    report = load().gpus(NO_LIBRARIES, sys=str(tmp_path), proc=str(tmp_path))
    assert (report["gpus"], report["nics"], report["cells"], report["cuda_problem"]) == ([], [], [], None)
    findings = [one for one in doctor.examine(replace(PLAIN, gpus=report)) if "GPU" in one.name]
    assert [(one.name, one.state, one.seen) for one in findings] == [("GPUs", "ok", "none")]
    assert list(doctor_gpu.lines(report, 80)) == []


def test_wrong_settings_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="RDMACOLL_GPUDIRECT=perhaps is not allowed"):
        load().gpus("RDMACOLL_GPUDIRECT=perhaps", sys=str(tmp_path))
