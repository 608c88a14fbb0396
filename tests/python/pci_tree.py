"""Makes a /sys folder from a recorded PCIe tree (tests/unit/pci_trees)."""

from __future__ import annotations

from pathlib import Path

from ranks import ROOT

_HIDDEN_CONFIG = bytes(64)  # the kernel shows no more without root privileges


def make_tree(sys: Path, name: str, **replaced: str) -> None:
    """Makes the folder `sys` for the recorded tree `name`. tests/unit/pci_tree_folder.h has the format.

    Registers of ACS are left out. A word of `replaced` becomes its value in the recorded lines.
    """
    text = (ROOT / "tests/unit/pci_trees" / f"{name}.txt").read_text()
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    for line in text.splitlines():
        kind, *words = line.split()
        if kind == "device":
            facts = dict(word.split("=", 1) for word in words[1:])
            _make_device(sys, sys / "devices" / words[0], facts)
        elif kind == "nic":
            device = sys / "devices" / words[1]
            nic = device / "infiniband" / words[0]
            (nic / "ports/1").mkdir(parents=True)
            state = "1: DOWN" if words[-1] == "DOWN" else "4: ACTIVE"
            (nic / "ports/1/state").write_text(f"{state}\n")
            _link(nic / "device", device)
            _link(sys / "class/infiniband" / words[0], nic)
        elif kind == "nodes":
            for node in range(int(words[0])):
                (sys / f"devices/system/node/node{node}").mkdir(parents=True)


def _make_device(sys: Path, folder: Path, facts: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _link(sys / "bus/pci/devices" / folder.name, folder)
    (folder / "config").write_bytes(_HIDDEN_CONFIG)
    for fact, file in (("vendor", "vendor"), ("device", "device"), ("class", "class"), ("numa", "numa_node")):
        if fact in facts:
            (folder / file).write_text(f"{facts[fact]}\n")
    for fact, place in (("driver", "bus/pci/drivers"), ("group", "kernel/iommu_groups")):
        if fact in facts:
            (sys / place / facts[fact]).mkdir(parents=True, exist_ok=True)
            _link(folder / ("driver" if fact == "driver" else "iommu_group"), sys / place / facts[fact])
    if "type" in facts:
        (folder / "iommu_group/type").write_text(f"{facts['type']}\n")


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
