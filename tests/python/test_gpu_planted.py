"""Causes that lose the direct way between a GPU and a NIC, planted in a machine: each is a finding of the
doctor. The CUDA driver and NVML are the fake ones, and the PCIe trees are recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest
from cuda_sim_build import fake_driver
from pci_tree import make_tree
from ranks import ROOT, clean_environment

from rdmacoll.cli import doctor_gpu

MIB = 1 << 20
# Attributes of the driver.
GPUDIRECT, DMA_BUF, CAPABILITY_MAJOR, CAPABILITY_MINOR = "116", "124", "75", "76"
FIRST = "GPU-5d4c0000"  # the first GPU of the fake driver

REPORT = """
import json, sys
from rdmacoll._abi.library import load
print(json.dumps(load().gpus(sys.argv[3], sys=sys.argv[1], proc=sys.argv[2])))
"""


@dataclass
class Planted:
    """A machine. Without changes, its GPU and its NIC are below one switch, and dma-buf connects them."""

    cause: str
    words: str  # in the warning
    base: str = "h100"
    pci: str = "0000:1b:00.0"
    attributes: dict[str, int] = field(default_factory=dict)
    gpu: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    tree: str = "hgx_h100"
    replaced: dict[str, str] = field(default_factory=dict)
    modules: str = "nvidia 1 0 - Live 0x0\n"
    setting: str = ""


SOUND = Planted("none", "")
PEERMEM = "nvidia_peermem 1 0 - Live 0x0\n"
PLANTED = [
    Planted(
        "module_missing",
        'Load it with "modprobe nvidia_peermem"',
        attributes={DMA_BUF: 0, CAPABILITY_MAJOR: 7, CAPABILITY_MINOR: 0},
        machine={"driver": "535.54.03"},
    ),
    Planted("bar1_too_small", "BAR1 has 224 MiB free", gpu={"bar1_bytes": 256 * MIB}),
    Planted(
        "far_socket",
        "at different sockets (SYS)",
        base="k80",
        pci="0000:84:00.0",
        tree="k80_two_sockets",
        modules=PEERMEM,
    ),
    Planted("acs", "Turn ACS off", pci="0000:03:00.0", tree="acs_and_iommu"),
    Planted(
        "iommu",
        "Boot with iommu=pt",  # ACS alone would not stop the module
        pci="0000:03:00.0",
        tree="acs_and_iommu",
        attributes={DMA_BUF: 0},
        modules=PEERMEM,
    ),
    Planted("no_sys", "shows no PCIe tree in /sys", pci="0000:99:00.0"),
    Planted("mig", 'Turn MIG off with "nvidia-smi -mig 0"', gpu={"mig": True}, attributes={GPUDIRECT: 0}),
    Planted(
        "old_driver",
        "driver 450 has no nvidia_peermem",
        attributes={DMA_BUF: 0},
        machine={"driver": "450.80.02", "cuda": 11000},
    ),
    Planted("no_dma_buf", "Install NVIDIA's open kernel modules", attributes={DMA_BUF: 0}),
    Planted("turned_off", "RDMACOLL_GPUDIRECT=off turns", setting="RDMACOLL_GPUDIRECT=off"),
    Planted("nic_unsupported", "registers no GPU memory", replaced={"mlx5_core": "cxgb4"}),
]


def report_of(planted: Planted, folder: Path, library: Path) -> dict[str, Any]:
    make_tree(folder / "sys", planted.tree, **planted.replaced)
    proc = folder / "proc"
    (proc / "sys/kernel").mkdir(parents=True)
    (proc / "modules").write_text(planted.modules)
    (proc / "sys/kernel/osrelease").write_text("5.14.0-427.el9.x86_64\n")
    gpu = {**planted.gpu, "pci": planted.pci, "attributes": planted.attributes}
    description = {"base": planted.base, "gpus": [gpu], **planted.machine}
    (folder / "machine.json").write_text(json.dumps(description))
    arguments = f"RDMACOLL_CUDA_LIBRARY={library}\nRDMACOLL_NVML_LIBRARY={library}\n{planted.setting or ''}\n"
    done = subprocess.run(
        [sys.executable, "-c", REPORT, str(folder / "sys"), str(proc), arguments],
        env={
            **clean_environment(),
            "PYTHONPATH": str(ROOT),
            "CUDA_SIM_MACHINE": str(folder / "machine.json"),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def cells_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells of the first GPU of the fake driver with its nearest NIC first."""
    gpu = next(i for i, one in enumerate(report["gpus"]) if (one["uuid"] or "").startswith(FIRST))
    order = ["PIX", "PXB", "PHB", "NODE", "SYS", "?"]
    cells = [cell for cell in report["cells"] if cell["gpu"] == gpu]
    return sorted(cells, key=lambda cell: order.index(cell["distance"]))


@pytest.fixture(scope="module")
def library() -> Path:
    return fake_driver()


def test_a_sound_machine_is_direct_and_warns_of_nothing(tmp_path: Path, library: Path) -> None:
    report = report_of(SOUND, tmp_path, library)
    nearest = cells_of(report)[0]
    assert (nearest["distance"], nearest["flush"]) == ("PIX", "none")
    assert [nearest[one]["way"] for one in ("send", "receive")] == ["dma_buf", "dma_buf"]
    assert not [warning for warning in report["warnings"] if FIRST in warning]
    gpu = report["gpus"][nearest["gpu"]]
    assert (gpu["name"], gpu["capability"], gpu["compute_mode"]) == (
        "NVIDIA H100 80GB HBM3",
        "9.0",
        "default",
    )
    assert (gpu["bar1_bytes"], gpu["bar1_free"], gpu["dma_buf"]) == (128 << 30, 128 << 30, True)
    assert (report["driver"], report["cuda_problem"], report["nvml_problem"]) == ("580.159.04", None, None)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.cause)
def test_a_lost_direct_way_is_warned_about_by_its_cause(
    planted: Planted, tmp_path: Path, library: Path
) -> None:
    report = report_of(planted, tmp_path, library)
    nearest = cells_of(report)[0]
    assert (nearest["receive"]["way"], nearest["receive"]["cause"]) == ("staged", planted.cause)
    assert nearest["receive"]["lost"]
    warned = [warning for warning in report["warnings"] if FIRST in warning]
    assert len(warned) == 1
    assert planted.words in warned[0]
    assert nearest["receive"]["change"] in warned[0]


def test_facts_of_cuda_and_of_nvml_meet_by_uuid(tmp_path: Path, library: Path) -> None:
    """NVML counts the GPUs of this machine in the other order."""
    gpus = [
        {"pci": "0000:06:00.0", "bar1_bytes": 256 * MIB, "name": "Tesla K20c"},
        {"pci": "0000:07:00.0", "bar1_bytes": 16384 * MIB, "name": "Tesla K80"},
    ]
    machine = {"gpus": gpus, "nvml_order": [1, 0]}
    planted = Planted("none", "", base="k80", tree="k80_two_sockets", modules=PEERMEM, machine=machine)
    report = report_of(planted, tmp_path, library)
    seen = {gpu["address"]: (gpu["name"], gpu["bar1_bytes"]) for gpu in report["gpus"] if gpu["uuid"]}
    assert seen == {
        "0000:06:00.0": ("Tesla K20c", 256 * MIB),
        "0000:07:00.0": ("Tesla K80", 16384 * MIB),
    }
    causes = {
        report["gpus"][cell["gpu"]]["name"]: cell["receive"]["cause"]
        for cell in report["cells"]
        if report["gpus"][cell["gpu"]]["uuid"]
    }
    assert causes == {"Tesla K20c": "bar1_too_small", "Tesla K80": "none"}


def test_the_page_of_a_k80_board_has_its_facts_and_reasons(tmp_path: Path, library: Path) -> None:
    machine = {"gpus": [{"pci": "0000:06:00.0"}, {"pci": "0000:07:00.0"}]}
    planted = Planted("none", "", base="k80", tree="k80_two_sockets", modules=PEERMEM, machine=machine)
    report = report_of(planted, tmp_path, library)
    lines = [click.unstyle(line) for line in doctor_gpu.lines(report, 80)]
    assert all(len(line) <= 80 for line in lines)
    page = "\n".join(lines)
    assert "  GPU0   Tesla K80, capability 3.7, memory 11.17 GiB, BAR1 16 GiB (16 GiB free)," in page
    assert "  GPU0   PXB  staged/direct\n  GPU1   PXB  staged/direct\n" in page
    assert (
        "  GPU0, GPU1 with mlx4_0:\n"
        "    send:    staged through pinned host memory, because a NIC reads a Tesla\n"
        "             K80's memory far slower than it writes it\n"
    ) in page
    assert "    receive: direct by the peer-memory module, PCIe switches only\n" in page
