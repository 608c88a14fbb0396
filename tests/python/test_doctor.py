"""`rdmacoll doctor`: every finding in every state, over facts that are made here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
import pytest

from rdmacoll._abi.devices import ENGINE, PYVERBS, SYSFS, Device, Gid, Port, Rail, View
from rdmacoll._start.launch import Launch
from rdmacoll.cli import doctor, doctor_page
from rdmacoll.cli.doctor_facts import (
    UNLIMITED,
    Cores,
    Engine,
    Kernel,
    Limit,
    Machine,
    Memory,
    Mpi,
    OneCopy,
    Packages,
    Settings,
    Start,
)
from rdmacoll.version import __version__

MIB = 1 << 20
ROCE = Gid(3, "::ffff:10.1.2.3", "roce_v2", "eth2")
LINK_LOCAL = Gid(0, "fe80::1", "roce_v2", "eth2")
ACTIVE = Port(1, "active", "ethernet", 4096, 100.0, 0, (LINK_LOCAL, ROCE))
MLX5 = Device(
    "mlx5_0", "16.35.2000", "", False, 0, (ACTIVE, replace(ACTIVE, number=2, state="down", gids=()))
)
INFINIBAND = Port(1, "active", "infiniband", 4096, 56.0, 7, (Gid(0, "fe80::2:c903:1", "infiniband"),))
MLX4 = Device("mlx4_0", "2.42.5000", "", False, 0, (INFINIBAND,))
RXE = Device("rxe1", "", "", True, None, (replace(ACTIVE, gbit_per_s=10.0),))
VERBS = Kernel(("ib_core", "ib_uverbs", "mlx5_ib"), (("/dev/infiniband/uverbs0", True),), 1)
OMPI = "mpirun (Open MPI) 4.1.4"
MPICH = "MPICH Version: 4.0.2"
BY_OPEN_MPI, BY_MPICH = (Start(Launch(name, 0, 2)) for name in ("Open MPI", "a PMI launcher (MPICH)"))
OMPI_LIBRARY = "Open MPI v4.1.4, package: Debian OpenMPI"


def settings(**given: str) -> Settings:
    defaults = {"RDMACOLL_BUF_SIZE": str(1 << 30), "RDMACOLL_DEVICE": "mlx5_0"}
    rows = [{"name": name, "value": value, "source": "default"} for name, value in defaults.items()]
    chosen = [{"name": name, "value": value, "source": "environment"} for name, value in given.items()]
    return Settings((*chosen, *(row for row in rows if row["name"] not in given)))


# All is well, and there is no device.
PLAIN = Machine(
    host="node7",
    views=(View(ENGINE, problem="no"), View(SYSFS), View(PYVERBS, problem="it is not installed")),
    engine=Engine("lib.so", __version__, 1),
    settings=settings(),
    memory=Memory(Limit(UNLIMITED, UNLIMITED), transparent="madvise"),
    files=Limit(65536, 65536),
    cores=Cores(8, tuple(range(8))),
    mpi=Mpi("/usr/bin/mpirun", OMPI, "4.1.2", OMPI_LIBRARY),
    packages=Packages("2.21.0", "tensorflow", "3.15.1", has_op_library=True, op_library="ops.so"),
)


def with_devices(*devices: Device, **changed: Any) -> Machine:
    changed.setdefault("kernel", VERBS)
    return replace(PLAIN, **{"views": (View(SYSFS, devices),), **changed})


MLX5_RAIL = Rail("mlx5_0", 1, ROCE.gid, "mlx5_0 port 1 (Ethernet, GID 3)", "first active port")
MLX4_RAIL = Rail("mlx4_0", 1, "fe80::2:c903:1", "mlx4_0 port 1 (InfiniBand, LID 7)", "first active port")
RXE_RAIL = Rail("rxe1", 1, ROCE.gid, "rxe1 port 1 (Ethernet, in software)", "no hardware has one", True)


def engine_sees(*devices: Device, changed: dict[str, Any] | None = None, **view: Any) -> Machine:
    """A machine whose kernel and engine see these devices. `view` holds the engine's own findings."""
    return with_devices(views=(View(ENGINE, devices, **view), View(SYSFS, devices)), **(changed or {}))


def judged(device: Device, *words: str) -> Device:
    """The device, with the engine's judgement of each port."""
    ports = (replace(port, unusable=word) for port, word in zip(device.ports, words))
    return replace(device, ports=tuple(ports))


def found(machine: Machine, name: str) -> list[Any]:
    return [finding for finding in doctor.examine(machine) if finding.name == name]


# machine, finding, state, words of the finding. An empty state means that there is no such finding.
STATES: list[tuple[Machine, str, str, list[str]]] = [
    (PLAIN, "librdmacoll", "ok", [__version__]),
    (replace(PLAIN, engine=Engine("l", problem="l is missing")), "librdmacoll", "problem", ["l is missing"]),
    (replace(PLAIN, engine=Engine("l", "9.9", 1)), "librdmacoll", "problem", ["9.9", __version__]),
    (replace(PLAIN, engine=Engine("l", "0", 1)), "librdmacoll", "problem", ["version 0", __version__]),
    (PLAIN, "settings", "ok", ["defaults"]),
    (replace(PLAIN, settings=settings(RDMACOLL_LOG="info")), "settings", "ok", ["RDMACOLL_LOG=info"]),
    (replace(PLAIN, settings=Settings(problem="X=7 is wrong")), "settings", "problem", ["X=7 is wrong"]),
    (
        replace(
            PLAIN, settings=Settings(({"name": "A", "value": "", "source": "default", "note": "alias"},))
        ),
        "settings",
        "note",
        ["alias"],
    ),
    (PLAIN, "devices", "note", ["no RDMA device"]),
    (replace(PLAIN, settings=settings(RDMACOLL_DEVICE="mlx5_1")), "devices", "problem", ["=mlx5_1"]),
    (replace(PLAIN, settings=settings(RDMACOLL_TRANSPORT="shm,rdma")), "devices", "problem", ["=shm,rdma"]),
    (replace(PLAIN, settings=settings(RDMACOLL_RDMA="true")), "devices", "problem", ["RDMACOLL_RDMA=true"]),
    (replace(PLAIN, settings=settings(RDMACOLL_RDMA="false")), "devices", "note", ["no RDMA device"]),
    (replace(PLAIN, kernel=Kernel(adapters=("0000:3b:00.0",))), "devices", "problem", ["0000:3b:00.0"]),
    (with_devices(MLX5, RXE), "devices", "ok", ["mlx5_0 (firmware 16.35.2000)", "rxe1 (software)"]),
    (PLAIN, "choice", "", []),
    (with_devices(MLX5), "mlx5_0 port 1", "ok", ["Ethernet, active, 100 Gbit/s", "GID 3 ::ffff:10.1.2.3"]),
    (with_devices(MLX5), "mlx5_0 port 2", "note", ["down"]),
    (with_devices(replace(MLX5, ports=MLX5.ports[1:])), "mlx5_0 port 2", "problem", ["no other port"]),
    (
        with_devices(replace(MLX4, ports=(replace(INFINIBAND, state="init"),))),
        "mlx4_0 port 1",
        "problem",
        ["opensm"],
    ),
    (engine_sees(judged(MLX4, "has no LID")), "mlx4_0 port 1", "problem", ["has no LID", "opensm"]),
    (engine_sees(judged(RXE, "has no RoCE v2 GID")), "rxe1 port 1", "problem", ["RoCE v2", "ip addr add"]),
    (
        engine_sees(judged(MLX5, "has no GID 9, which was requested", "is down")),
        "mlx5_0 port 1",
        "problem",
        ["GID 9", "RDMACOLL_GID_INDEX"],
    ),
    (
        engine_sees(replace(RXE, unusable="is an iWARP device")),
        "rxe1 port 1",
        "problem",
        ["is an iWARP device", "another device"],
    ),
    (with_devices(MLX4), "mlx4_0 port 1", "ok", ["InfiniBand, active, 56 Gbit/s", "LID 7"]),
    (engine_sees(MLX5, rails=(MLX5_RAIL,)), "choice", "ok", [MLX5_RAIL.text, "first active port"]),
    # An InfiniBand port's own GID is link-local, and does not matter.
    (engine_sees(MLX4, rails=(MLX4_RAIL,)), "choice", "ok", ["LID 7"]),
    (engine_sees(RXE, rails=(RXE_RAIL,)), "choice", "note", ["rxe1 port 1", "software"]),
    (with_devices(RXE), "rxe1 port 1", "ok", ["10 Gbit/s"]),
    (engine_sees(MLX5, rails=(replace(MLX5_RAIL, gid="fe80::1"),)), "choice", "note", ["link-local"]),
    (
        engine_sees(MLX5, rails=(replace(MLX5_RAIL, gid="::ffff:169.254.1.1"),)),
        "choice",
        "note",
        ["link-local"],
    ),
    (with_devices(settings=settings(RDMACOLL_DEVICE="rxe1")), "devices", "problem", ["=rxe1"]),
    (
        engine_sees(
            MLX5, refusal="port 2 is down", changed={"settings": settings(RDMACOLL_DEVICE="mlx5_0:2")}
        ),
        "choice",
        "problem",
        ["port 2 is down", "RDMACOLL_DEVICE=mlx5_0:2 demands"],
    ),
    (engine_sees(MLX5, refusal="no GID 9"), "choice", "note", ["no GID 9", "TCP"]),
    (engine_sees(MLX5, problem="no libibverbs"), "choice", "note", ["no libibverbs"]),
    (with_devices(MLX5, settings=settings(RDMACOLL_RDMA="false")), "choice", "ok", ["RDMACOLL_RDMA=false"]),
    (PLAIN, "views", "", []),
    (with_devices(MLX5), "views", "ok", ["sysfs alone"]),
    (engine_sees(MLX5), "views", "ok", ["the engine and sysfs agree"]),
    (
        with_devices(MLX5, views=(View(SYSFS, (MLX5,)), View(PYVERBS, (MLX5,)))),
        "views",
        "ok",
        ["sysfs and pyverbs"],
    ),
    (
        with_devices(views=(View(SYSFS, (MLX5,)), View(PYVERBS))),
        "views",
        "problem",
        ["sysfs has mlx5_0, pyverbs has not"],
    ),
    (
        replace(PLAIN, views=(View(PYVERBS, problem="OSError: x", is_broken=True),)),
        "views",
        "note",
        ["pyverbs", "OSError: x"],
    ),
    (PLAIN, "kernel modules", "ok", ["none"]),
    (with_devices(MLX5), "kernel modules", "ok", ["mlx5_ib"]),
    (with_devices(MLX5, kernel=Kernel(("mlx5_ib",))), "kernel modules", "problem", ["modprobe ib_uverbs"]),
    (with_devices(MLX5), "device files", "ok", ["uverbs0"]),
    (with_devices(MLX5, kernel=replace(VERBS, verbs_files=())), "device files", "problem", ["0 of 1"]),
    (
        with_devices(MLX5, kernel=replace(VERBS, verbs_files=(("/dev/infiniband/uverbs0", False),))),
        "device files",
        "problem",
        ["no permission for /dev/infiniband/uverbs0"],
    ),
    (with_devices(MLX5), "libibverbs", "ok", []),
    (engine_sees(MLX5, warning="mind the forks"), "libibverbs", "note", ["mind the forks"]),
    (
        with_devices(MLX5, kernel=replace(VERBS, libibverbs="no such file")),
        "libibverbs",
        "problem",
        ["no such file"],
    ),
    (PLAIN, "GPUs", "ok", ["none"]),
    (replace(PLAIN, memory=Memory(Limit(65536, 65536))), "locked memory", "ok", ["64 KiB"]),
    (with_devices(MLX5), "locked memory", "ok", ["unlimited"]),
    (with_devices(MLX5, memory=Memory(Limit(1 << 31, 1 << 31))), "locked memory", "ok", ["2 GiB", "1 GiB"]),
    (with_devices(MLX5, memory=Memory(Limit(65536, 65536), True)), "locked memory", "ok", ["CAP_IPC_LOCK"]),
    (
        with_devices(MLX5, memory=Memory(Limit(65536, 65536))),
        "locked memory",
        "problem",
        ["64 KiB", "1 GiB", "limits.d"],
    ),
    (
        with_devices(MLX5, memory=Memory(Limit(64 * MIB, UNLIMITED))),
        "locked memory",
        "note",
        ["64 MiB", "1.25 GiB", "shrinks", "ulimit -l unlimited"],
    ),
    (
        with_devices(
            MLX5, memory=Memory(Limit(64 * MIB, 1 << 30)), settings=settings(RDMACOLL_BUF_SIZE=str(128 * MIB))
        ),
        "locked memory",
        "problem",
        ["128 MiB", "160 MiB", "ulimit -l 163840"],
    ),
    (PLAIN, "cores", "ok", ["8 of 8"]),
    (replace(PLAIN, cores=Cores(8, tuple(range(8)), 8.0, "g")), "cores", "ok", ["quota 8"]),
    (replace(PLAIN, cores=Cores(8, tuple(range(8)), 2.5, "/cg")), "cores", "note", ["2.5", "/cg"]),
    (replace(PLAIN, cores=Cores(8, (0, 1), 0.5, "/cg")), "cores", "problem", ["2 of 8", "0.5"]),
    (PLAIN, "binding", "ok", ["not tied"]),
    (replace(PLAIN, cores=Cores(1, (0,))), "binding", "ok", ["one core is all"]),
    (replace(PLAIN, cores=Cores(8, (5,))), "binding", "note", ["core 5", "of 8"]),
    (
        replace(PLAIN, cores=Cores(8, (5,)), start=Start(Launch("Open MPI", 0, 2))),
        "binding",
        "problem",
        ["Open MPI", "--bind-to none"],
    ),
    (PLAIN, "one-copy reads", "ok", ["works"]),
    (
        replace(PLAIN, one_copy=OneCopy("not permitted", 1)),
        "one-copy reads",
        "note",
        ["scope is 1", "ptrace_scope=0"],
    ),
    (replace(PLAIN, one_copy=OneCopy("not permitted", 0)), "one-copy reads", "note", ["SYS_PTRACE"]),
    (
        replace(PLAIN, one_copy=OneCopy("not permitted"), settings=settings(RDMACOLL_ONE_COPY="true")),
        "one-copy reads",
        "problem",
        ["RDMACOLL_ONE_COPY"],
    ),
    (PLAIN, "huge pages", "ok", ["madvise"]),
    (
        replace(PLAIN, memory=Memory(huge_total=8, huge_free=3, huge_page_bytes=2 * MIB)),
        "huge pages",
        "ok",
        ["3 of 8"],
    ),
    (replace(PLAIN, memory=Memory(transparent="never")), "huge pages", "note", ["never"]),
    (PLAIN, "open files", "ok", ["65536"]),
    (replace(PLAIN, files=Limit()), "open files", "ok", ["unlimited"]),
    (replace(PLAIN, files=Limit(512, 4096)), "open files", "note", ["512", "ulimit -n 4096"]),
    (replace(PLAIN, files=Limit(128, 128)), "open files", "problem", ["128", "limits.d"]),
    (PLAIN, "TCP", "ok", ["not to be read"]),
    (PLAIN, "start", "ok", ["world of one"]),
    (replace(PLAIN, start=Start(Launch("Open MPI", 1, 4))), "start", "ok", ["rank 1 of 4"]),
    (replace(PLAIN, start=Start(problem="RANK='x'")), "start", "problem", ["RANK='x'"]),
    (PLAIN, "MPI", "ok", ["/usr/bin/mpirun", "4.1.4", "4.1.2"]),
    (replace(PLAIN, mpi=Mpi()), "MPI", "note", ["not on the path", "neither"]),
    (replace(PLAIN, mpi=Mpi("", "", "4.1.2", OMPI_LIBRARY)), "MPI", "note", ["mpi4py 4.1.2 is there"]),
    (replace(PLAIN, mpi=Mpi("/m", OMPI)), "MPI", "note", ["mpi4py is not installed"]),
    (replace(PLAIN, mpi=Mpi("/m", OMPI), start=BY_OPEN_MPI), "MPI", "note", ["by Open MPI's variables"]),
    (replace(PLAIN, mpi=Mpi("/m", MPICH), start=BY_MPICH), "MPI", "problem", ["mpi4py is not installed"]),
    (replace(PLAIN, mpi=Mpi("/m", OMPI, "4", problem="no libmpi")), "MPI", "problem", ["no libmpi"]),
    (
        replace(PLAIN, mpi=Mpi("/m", OMPI, "4", MPICH)),
        "MPI",
        "problem",
        ["Open MPI 4.1.4", "MPICH 4.0.2"],
    ),
    (
        replace(PLAIN, mpi=Mpi("/m", "mpirun (Open MPI) 5.0.3", "4", OMPI_LIBRARY)),
        "MPI",
        "problem",
        ["5.0.3", "4.1.4"],
    ),
    (
        replace(
            PLAIN, mpi=Mpi("/m", "HYDRA build details:\n Version: 4.0.2", "4", "Intel(R) MPI Library 2021.10")
        ),
        "MPI",
        "ok",
        ["MPICH 4.0.2", "Intel MPI 2021.10"],
    ),
    (replace(PLAIN, mpi=Mpi("/m", "Foo 1.0", "4", OMPI_LIBRARY)), "MPI", "note", ["Foo 1.0", "unknown"]),
    (PLAIN, "TensorFlow", "ok", ["2.21.0"]),
    (replace(PLAIN, packages=Packages()), "TensorFlow", "note", ["not installed"]),
    (replace(PLAIN, packages=Packages()), "TensorFlow ops", "", []),
    (replace(PLAIN, packages=Packages()), "Keras", "", []),
    (
        replace(PLAIN, packages=replace(PLAIN.packages, tensorflow="2.9.1")),
        "TensorFlow",
        "problem",
        ["2.9.1", "older"],
    ),
    (replace(PLAIN, packages=replace(PLAIN.packages, tensorflow="2.30.0")), "TensorFlow", "note", ["newer"]),
    (PLAIN, "TensorFlow ops", "ok", ["exists"]),
    (
        replace(PLAIN, packages=replace(PLAIN.packages, op_library_was_loaded=True)),
        "TensorFlow ops",
        "ok",
        ["their library loads"],
    ),
    (
        replace(PLAIN, packages=replace(PLAIN.packages, has_op_library=False)),
        "TensorFlow ops",
        "problem",
        ["ops.so is missing"],
    ),
    (
        replace(PLAIN, packages=replace(PLAIN.packages, op_library_fails="undefined symbol")),
        "TensorFlow ops",
        "problem",
        ["undefined symbol"],
    ),
    (PLAIN, "Keras", "ok", ["3.15.1"]),
    (replace(PLAIN, packages=replace(PLAIN.packages, keras="")), "Keras", "note", ["not installed"]),
    (replace(PLAIN, packages=replace(PLAIN.packages, keras="2.15.0")), "Keras", "note", ["2.15.0", "2.21.0"]),
    (
        replace(PLAIN, packages=replace(PLAIN.packages, keras="2.15.0", tensorflow="2.15.1")),
        "Keras",
        "ok",
        ["2.15.0"],
    ),
]


@pytest.mark.parametrize(
    ("machine", "name", "state", "says"),
    STATES,
    ids=[f"{row[1]}-{row[2]}-{i}" for i, row in enumerate(STATES)],
)
def test_every_finding_in_every_state(machine: Machine, name: str, state: str, says: list[str]) -> None:
    findings = found(machine, name)
    assert [finding.state for finding in findings] == ([state] if state else [])
    for finding in findings:
        text = " ".join(finding.fields().values())
        for words in says:
            assert words in text
        has_advice = [bool(finding.why), bool(finding.cure), bool(finding.check)]
        assert has_advice == [True, state != "ok", True]


def test_each_rail_is_shown() -> None:
    findings = found(engine_sees(MLX4, MLX5, rails=(MLX4_RAIL, MLX5_RAIL)), "choice")
    assert [finding.seen.split(" (")[0] for finding in findings] == ["mlx4_0 port 1", "mlx5_0 port 1"]


def test_rails_pin_the_pool_each() -> None:
    limit = {"memory": Memory(Limit(2 << 30, 2 << 30))}
    for rails, state in (((MLX5_RAIL,), "ok"), ((MLX4_RAIL, MLX5_RAIL), "note")):
        machine = engine_sees(MLX4, MLX5, rails=rails, changed=limit)
        assert found(machine, "locked memory")[0].state == state


def test_the_table_knows_all_findings() -> None:
    known = {("memory", "ok"), ("threads", "ok"), *((name, state) for _, name, state, _ in STATES if state)}
    seen = {(finding.name, finding.state) for machine, *_ in STATES for finding in doctor.examine(machine)}
    assert seen <= known, seen - known


@pytest.mark.parametrize("width", [60, 100])
def test_the_page_fits_and_advises_only_where_something_is_amiss(width: int) -> None:
    machine = replace(PLAIN, files=Limit(128, 128), one_copy=OneCopy("not permitted", 1))
    lines = list(doctor_page.lines(machine, doctor.examine(machine), width))
    plain = [click.unstyle(line) for line in lines]
    # Paths and commands are not broken.
    assert all(len(line) <= width or " " not in line.strip() for line in plain[1:]), plain
    assert sum("cure:" in line for line in plain) == 3  # no device, files, one-copy reads
    assert plain[-1].startswith("1 problem, 2 notes, ")
