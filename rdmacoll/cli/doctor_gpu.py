"""The part of `rdmacoll doctor` about GPUs: each GPU and NIC, their distances, and the way of data. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from rdmacoll._base.text import counted
from rdmacoll.cli.doctor_facts import Machine
from rdmacoll.cli.doctor_findings import Finding, note, ok, problem, size_text

Report = Mapping[str, Any]

_CELL_WIDTH = len("NODE staged/staged") + 2
_ROW_WIDTH = len("  GPU10  ")
_CHECK = "nvidia-smi topo -m; nvidia-smi -q -d MEMORY; lsmod | grep -E 'nvidia_peermem|nv_peer_mem'"


def gpus(machine: Machine) -> Iterator[Finding]:
    """The GPUs of this machine, in one line."""
    report = machine.gpus
    check = "nvidia-smi -L; lspci | grep -i nvidia"
    if not report or not report["gpus"]:
        yield ok("GPUs", "none", why="arrays in GPU memory need one", check=check)
        return
    names: dict[str, int] = {}
    for gpu in report["gpus"]:
        names[gpu["name"]] = names.get(gpu["name"], 0) + 1
    driver = f"driver {report['driver']}" if report["driver"] else "the driver's version is not known"
    seen = f"{', '.join(f'{count} {name}' for name, count in names.items())} ({driver})"
    if report["cuda_problem"]:
        yield note(
            "GPUs",
            f"{seen}; {report['cuda_problem'].rstrip('.')}",
            why="arrays in the memory of these GPUs cannot be used without it",
            cure="follow the message; nothing is needed for arrays in host memory",
            check=check,
        )
        return
    yield ok("GPUs", seen, why="arrays in their memory can be reduced there", check=check)


def direct(machine: Machine) -> Iterator[Finding]:
    """Whether NICs reach GPU memory themselves where that is expected."""
    report = machine.gpus
    if not report or not report["cells"]:
        return
    errors = dict.fromkeys(cell["error"] for cell in report["cells"] if cell["error"])
    for error in errors:
        yield problem(
            "GPU memory",
            error,
            why="RDMACOLL_GPUDIRECT demands a direct way; without one, the start or the first "
            "array on a GPU fails",
            cure=f"follow the message; RDMACOLL_GPUDIRECT={report['setting']} demands it",
            check=_CHECK,
        )
    for warning in report["warnings"]:
        sentence, _, cure = warning.partition(". ")
        yield note(
            "GPU memory",
            sentence,
            why="data of this GPU goes through host memory, which costs bandwidth and latency",
            cure=cure.rstrip("."),
            check=_CHECK,
        )
    if not errors and not report["warnings"]:
        yield ok("GPU memory", _summary(report["cells"]), why="the page below has the reasons", check=_CHECK)


def _summary(cells: Sequence[Report]) -> str:
    ways = [cell[direction]["way"] for cell in cells for direction in ("send", "receive")]
    count = sum(way != "staged" for way in ways)
    return f"{count} of {counted(len(ways), 'direction')} between GPUs and NICs are direct, as expected"


def lines(report: Report, width: int) -> Iterator[str]:
    """The page: GPUs, NICs, the matrix of distances with both directions, and the reasons."""
    if not report or not report["gpus"]:
        return
    yield ""
    yield click.style("GPUs and NICs", bold=True)
    for number, gpu in enumerate(report["gpus"]):
        yield from _wrapped(f"  GPU{number}".ljust(_ROW_WIDTH), _gpu_text(gpu), width)
    yield from _wrapped("  GDRCopy  ", _gdrcopy_text(report), width)
    for nic in report["nics"]:
        yield from _wrapped(f"  {nic['name']}  ".ljust(_ROW_WIDTH), _nic_text(nic), width)
    if not report["nics"]:
        yield from _wrapped(
            "", "No RDMA NIC is here, so GPU data for other nodes goes through host memory.", width
        )
    if report["cells"]:
        yield ""
        yield from _wrapped("", "Distance, and the way of data to send / to receive:", width)
        yield from _matrix(report, width)
        yield ""
        yield from _reasons(report, width)


def _gdrcopy_text(report: Report) -> str:
    """Whether the processor may write small results to GPUs itself."""
    if report["gdrcopy"]:
        return (
            f"{report['gdrcopy']}: the processor writes results of up to 4 KiB to GPUs itself, where the "
            "first use of the GPU measures that as faster than a copy"
        )
    cause = f", because {report['gdrcopy_problem']}" if report["gdrcopy_problem"] else ""
    return f"not used{cause}: small results are copied to GPUs"


def _gpu_text(gpu: Report) -> str:
    facts = [gpu["name"]]
    if gpu["capability"]:
        facts.append(f"capability {gpu['capability']}")
    if gpu["memory_bytes"]:
        facts.append(f"memory {size_text(gpu['memory_bytes'])}")
    if gpu["bar1_bytes"] is not None:
        facts.append(f"BAR1 {size_text(gpu['bar1_bytes'])} ({size_text(gpu['bar1_free'])} free)")
    facts.append(f"PCIe {gpu['address']}" if gpu["address"] else "PCIe address not known")
    facts.append(_node_text(gpu["numa_node"]))
    if gpu["compute_mode"]:
        facts.append(f"compute mode {gpu['compute_mode']}")
    if gpu["mig"]:
        facts.append("MIG")
    return ", ".join([*facts, *([gpu["uuid"]] if gpu["uuid"] else [])])


def _nic_text(nic: Report) -> str:
    if nic["software"]:
        return "a device in software"
    address = f"PCIe {nic['address']}" if nic["address"] else "PCIe address not known"
    state = [] if nic["active"] else ["no active port"]
    return ", ".join([address, _node_text(nic["numa_node"]), nic["driver"] or "driver not known", *state])


def _node_text(node: int) -> str:
    return f"NUMA node {node}" if node >= 0 else "NUMA node not known"


def _way_text(cell: Report) -> str:
    return "/".join(
        "staged" if cell[direction]["way"] == "staged" else "direct" for direction in ("send", "receive")
    )


def _matrix(report: Report, width: int) -> Iterator[str]:
    names = [nic["name"] for nic in report["nics"]]
    at_once = max(1, (width - _ROW_WIDTH) // _CELL_WIDTH)
    by_place = {(cell["gpu"], cell["nic"]): cell for cell in report["cells"]}
    for first in range(0, len(names), at_once):
        shown = range(first, min(first + at_once, len(names)))
        yield (" " * _ROW_WIDTH + "".join(names[nic].ljust(_CELL_WIDTH) for nic in shown)).rstrip()
        for gpu in range(len(report["gpus"])):
            cells = [by_place[gpu, nic] for nic in shown]
            texts = [f"{cell['distance']:4} {_way_text(cell)}".ljust(_CELL_WIDTH) for cell in cells]
            yield (f"  GPU{gpu}".ljust(_ROW_WIDTH) + "".join(texts)).rstrip()


def _reasons(report: Report, width: int) -> Iterator[str]:
    """The reasons, once for all pairs that share them."""
    groups: dict[tuple[str, ...], dict[int, list[str]]] = {}
    for cell in report["cells"]:
        both = (cell["send"], cell["receive"])
        key = tuple(one[part] or "" for one in both for part in ("reason", "change"))
        nics = groups.setdefault(key, {}).setdefault(cell["gpu"], [])
        nics.append(report["nics"][cell["nic"]]["name"])
    for (send, send_change, receive, receive_change), pairs in groups.items():
        by_nics: dict[str, list[str]] = {}
        for gpu, nics in pairs.items():
            by_nics.setdefault(", ".join(nics), []).append(f"GPU{gpu}")
        title = "; ".join(f"{', '.join(found)} with {nics}" for nics, found in by_nics.items())
        yield from _wrapped("  ", title + ":", width)
        if (send, send_change) == (receive, receive_change):
            yield from _direction("both", send, send_change, width)
        else:
            yield from _direction("send", send, send_change, width)
            yield from _direction("receive", receive, receive_change, width)


def _direction(name: str, reason: str, change: str, width: int) -> Iterator[str]:
    yield from _wrapped(f"    {name}:".ljust(13), reason, width)
    if change:
        yield from _wrapped(" " * 13, f"To change this: {change[0].lower()}{change[1:]}.", width)


def _wrapped(before: str, text: str, width: int) -> Iterator[str]:
    indent = " " * len(before)
    yield from textwrap.wrap(
        text,
        width,
        initial_indent=before,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
