"""`rdmacoll doctor`: the abilities of this machine, and the reasons for them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Callable

import click

from rdmacoll.cli import (
    doctor_gpu as gpu,
    doctor_kernel as kernel,
    doctor_network as network,
    doctor_page,
    doctor_rdma as rdma,
    doctor_software as software,
    doctor_start as start,
    doctor_system as system,
)
from rdmacoll.cli.doctor_facts import Machine
from rdmacoll.cli.doctor_findings import PROBLEM, Finding, problem
from rdmacoll.cli.doctor_gather import gather
from rdmacoll.cli.doctor_pairs import examine_pairs
from rdmacoll.cli.number_option import Number
from rdmacoll.cli.report import Findings, command, is_rank_0, print_line


@dataclass(frozen=True)
class Check:
    """A pure function from a machine to findings, and the parts of the machine that it looks at."""

    group: str
    name: str
    run: Callable[[Machine], Iterator[Finding]]
    parts: tuple[str, ...]


# Checks have the order of the page. If a part was not gathered, the first check that needs it reports that.
CHECKS = (
    Check("Engine", "librdmacoll", software.engine, ("engine",)),
    Check("Engine", "settings", software.settings, ("settings",)),
    Check("RDMA", "devices", rdma.devices, ("views", "settings", "kernel")),
    Check("RDMA", "ports", rdma.ports, ("views", "settings")),
    Check("RDMA", "choice", rdma.choice, ("views", "settings")),
    Check("RDMA", "views", rdma.views, ("views", "settings")),
    Check("RDMA", "kernel", kernel.kernel, ("views", "kernel", "settings")),
    Check("RDMA", "locked memory", kernel.memlock, ("views", "memory", "settings")),
    Check("GPU", "GPUs", gpu.gpus, ("gpus",)),
    Check("GPU", "GPU memory", gpu.direct, ("gpus",)),
    Check("Node", "cores", system.cores, ("cores",)),
    Check("Node", "binding", system.binding, ("cores", "start")),
    Check("Node", "one-copy reads", system.one_copy, ("one_copy", "settings")),
    Check("Node", "huge pages", system.huge_pages, ("memory",)),
    Check("Node", "open files", system.files, ("files",)),
    Check("Node", "memory", system.memory, ("memory", "settings")),
    Check("Node", "threads", system.threads, ("threads", "cores")),
    Check("Node", "profile", system.profile, ("profile",)),
    Check("Network", "loopback", network.loopback, ("network",)),
    Check("Network", "host name", network.host_name, ("network", "start")),
    Check("Network", "interfaces", network.interfaces, ("network", "settings")),
    Check("Network", "TCP", system.congestion, ("congestion", "settings")),
    Check("Start", "start", start.start, ("start",)),
    Check("Start", "TF_CONFIG", start.tf_config, ("variables",)),
    Check("Start", "Horovod", start.horovod, ("variables",)),
    Check("Start", "secret", start.secret, ("variables",)),
    Check("Start", "MPI", start.mpi, ("mpi", "start")),
    Check("TensorFlow", "TensorFlow", software.tensorflow, ("packages",)),
    Check("TensorFlow", "Keras", software.keras, ("packages",)),
)


def _broke(name: str, reason: str) -> Finding:
    return problem(
        name,
        f"this check could not run: {reason}",
        why="its state is unknown",
        cure="make the file readable that the reason names; if it names none, report a fault of rdmacoll "
        "with the file of --json",
        check="rdmacoll doctor",
    )


def examine(machine: Machine) -> list[Finding]:
    """All findings, the most urgent ones first. A check that raises becomes a finding."""
    findings: list[Finding] = []
    reported: set[str] = set()
    for check in CHECKS:
        missing = [part for part in check.parts if part in machine.broken]
        if missing:
            found = [_broke(check.name, machine.broken[part]) for part in missing if part not in reported]
            reported.update(missing)
        else:
            try:
                found = list(check.run(machine))
            except Exception as error:
                found = [_broke(check.name, f"{type(error).__name__}: {error}")]
        findings += [replace(finding, group=check.group) for finding in found]
    return sorted(findings, key=lambda finding: finding.urgency)


@click.command()
@click.option("--load-tensorflow", is_flag=True, help="Really load TensorFlow and the ops (some seconds).")
@click.option("--pair", "pairs", is_flag=True, help="Test the path between every two ranks instead.")
@click.option(
    "--timeout",
    default=30.0,
    show_default=True,
    type=Number(2, 3600),
    help="The limit of one test of --pair, in seconds.",
)
@command("doctor")
def doctor(*, load_tensorflow: bool, pairs: bool, timeout: float) -> Findings:
    """Looks at this machine: devices, limits, MPI, TensorFlow. Each finding has its reason and its cure.

    Findings are ok, note (worth knowing; a training runs) or problem; only a problem is a failure. Under a
    launcher, rank 0 prints what it sees of its own machine: run it on each node by itself to see the others.

    --pair tests the path between every two ranks, over RDMA and TCP: latency, bandwidth in both directions,
    and the size from which on rendezvous pays. On two hosts:

    rdmacoll run -np 2 -H node1:1,node2:1 rdmacoll doctor --pair
    """
    if pairs:
        return examine_pairs(timeout)
    if not is_rank_0():
        # A failure of another rank would make mpirun end rank 0 in the middle of the page.
        return {"ok": True}
    machine = gather(load_tensorflow=load_tensorflow)
    findings = examine(machine)
    print_line("\n".join(doctor_page.lines(machine, findings, shutil.get_terminal_size().columns)))
    return {
        "ok": not any(finding.state == PROBLEM for finding in findings),
        "findings": [finding.fields() for finding in findings],
        "views": [view.fields() for view in machine.views],
        "host": machine.host,
        "gpus": dict(machine.gpus),
        "system": machine.system,
        "python": machine.python,
    }
