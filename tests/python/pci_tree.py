"""Recorded PCIe trees (tests/unit/pci_trees): makes a /sys folder from one, and records that of a machine.

python tests/python/pci_tree.py prints the tree of this machine. Run it as root, who alone sees ACS.
tests/unit/pci_tree_folder.h has the format.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

TREES = Path(__file__).resolve().parents[1] / "unit" / "pci_trees"

_HIDDEN_CONFIG = bytes(64)  # the kernel shows no more without root privileges
_FILES = (("vendor", "vendor"), ("device", "device"), ("class", "class"), ("numa", "numa_node"))
_ACS = 0x000D  # the number of the extended capability
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def recorded(name: str) -> list[str]:
    """The lines of a recorded tree."""
    return (TREES / f"{name}.txt").read_text().splitlines()


def make_tree(root: Path, name: str, **replaced: str) -> None:
    """Makes the /sys folder `root` for the recorded tree `name`.

    A word of `replaced` becomes its value in the recorded lines.
    """
    text = "\n".join(recorded(name))
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    for line in text.splitlines():
        kind, *words = line.split()
        if kind == "device":
            facts = dict(word.split("=", 1) for word in words[1:])
            _make_device(root, root / "devices" / words[0], facts)
        elif kind == "nic":
            device = root / "devices" / words[1]
            _make_nic(root, words[0], device / "infiniband" / words[0], is_down=words[-1] == "DOWN")
            _link(device / "infiniband" / words[0] / "device", device)
        elif kind == "software":
            _make_nic(root, words[0], root / "devices/virtual/infiniband" / words[0], is_down=False)
        elif kind == "nodes":
            for node in range(int(words[0])):
                (root / f"devices/system/node/node{node}").mkdir(parents=True)


def _make_nic(root: Path, name: str, folder: Path, *, is_down: bool) -> None:
    (folder / "ports/1").mkdir(parents=True)
    (folder / "ports/1/state").write_text("1: DOWN\n" if is_down else "4: ACTIVE\n")
    _link(root / "class/infiniband" / name, folder)


def _make_device(root: Path, folder: Path, facts: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _link(root / "bus/pci/devices" / folder.name, folder)
    (folder / "config").write_bytes(_config(facts["acs"]) if "acs" in facts else _HIDDEN_CONFIG)
    for fact, file in _FILES:
        if fact in facts:
            (folder / file).write_text(f"{facts[fact]}\n")
    for fact, place, link in (
        ("driver", "bus/pci/drivers", "driver"),
        ("group", "kernel/iommu_groups", "iommu_group"),
    ):
        if fact in facts:
            (root / place / facts[fact]).mkdir(parents=True, exist_ok=True)
            _link(folder / link, root / place / facts[fact])
    if "type" in facts:
        (folder / "iommu_group/type").write_text(f"{facts['type']}\n")


def _config(control: str) -> bytes:
    """A config space with ACS and its control register. control "none": without ACS."""
    config = bytearray(4096)
    if control != "none":
        config[0x100:0x108] = (
            _ACS.to_bytes(2, "little") + b"\1\0\0\0" + int(control, 16).to_bytes(2, "little")
        )
    return bytes(config)


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def record(root: Path) -> Iterator[str]:
    """The lines of the machine whose /sys is `root`: GPUs of NVIDIA, RDMA devices, and bridges above them."""
    devices = (root / "devices").resolve()
    nics = sorted((root / "class/infiniband").glob("*"))
    wanted = [nic.resolve().parents[1] for nic in nics if "/devices/virtual/" not in str(nic.resolve())]
    for device in sorted((root / "bus/pci/devices").glob("*")):
        is_gpu = _read(device / "class").startswith("0x03")
        if is_gpu and _read(device / "vendor") == "0x10de":
            wanted.append(device.resolve())
    found = {place for path in wanted for place in (path, *path.parents) if _ADDRESS.fullmatch(place.name)}
    nodes = [node for node in (root / "devices/system/node").glob("node*") if node.name[4:].isdigit()]
    if nodes:
        yield f"nodes {len(nodes)}"
    for place in sorted(found):
        yield " ".join(["device", str(place.relative_to(devices)), *_facts(place)])
    for nic in nics:
        folder = nic.resolve()
        if "/devices/virtual/" in str(folder):
            yield f"software {nic.name}"
            continue
        states = [_read(port / "state") for port in (folder / "ports").glob("*")]
        down = "" if any(state.endswith("ACTIVE") for state in states) else " DOWN"
        yield f"nic {nic.name} {folder.parents[1].relative_to(devices)}{down}"


def _facts(place: Path) -> Iterator[str]:
    for fact, file in _FILES:
        if _read(place / file):
            yield f"{fact}={_read(place / file)}"
    config = (place / "config").read_bytes()
    if len(config) > 256:
        yield f"acs={_acs(config)}"
    if (place / "driver").is_symlink():
        yield f"driver={(place / 'driver').resolve().name}"
    if (place / "iommu_group").is_symlink():
        yield f"group={(place / 'iommu_group').resolve().name}"
        if _read(place / "iommu_group/type"):
            yield f"type={_read(place / 'iommu_group/type')}"


def _acs(config: bytes) -> str:
    at = 256
    for _ in range(len(config) // 4):
        if not 256 <= at <= len(config) - 8:
            break
        if int.from_bytes(config[at : at + 2], "little") == _ACS:
            return f"0x{int.from_bytes(config[at + 6 : at + 8], 'little'):02x}"
        at = int.from_bytes(config[at + 2 : at + 4], "little") >> 4
    return "none"


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    print("\n".join(record(Path(sys.argv[1] if len(sys.argv) > 1 else "/sys"))))
