"""The rank and the world of a process, from launchers' variables."""

from __future__ import annotations

import pytest

from rdmacoll._abi.settings import argument_name, argument_text, arguments_text
from rdmacoll._start import launch
from rdmacoll._start.bootstrap import described_rank, find_start
from rdmacoll.errors import ConfigError

SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_JOB_NODELIST": "gpu[07-09,12],login1",
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
HAND = {"RDMACOLL_RANK": "1", "RDMACOLL_SIZE": "3", "RDMACOLL_RENDEZVOUS": "node1:4000"}


def test_nothing_set_is_a_world_of_one():
    start = find_start(environ={})
    assert (start.launch.rank, start.launch.size, start.comm) == (0, 1, None)


def test_a_world_size_of_one_alone_is_a_world_of_one():
    assert find_start(environ={"WORLD_SIZE": "1"}).launch.size == 1


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (
            SLURM,
            "Slurm's srun: rank 3 of 4 (from SLURM_PROCID and SLURM_STEP_NUM_TASKS), rendezvous at gpu07:",
        ),
        (TORCHRUN, "torchrun: rank 1 of 2 (from RANK and WORLD_SIZE), rendezvous at 10.0.0.1:29500"),
        (HAND, "RDMACOLL_RANK and RDMACOLL_SIZE: rank 1 of 3, rendezvous at node1:4000"),
        ({**HAND, launch.INIT_PIPE: "/pipe"}, "rdmacoll run: rank 1 of 3, rendezvous at node1:4000"),
        ({}, "no launcher: a world of one"),
    ],
)
def test_a_launch_names_the_variables_that_told_it(environ, words):
    assert find_start(environ=environ).launch.describe().startswith(words)


def test_an_mpi_launch_names_its_variables():
    found = launch.by_mpi({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"})
    assert found.describe() == "MVAPICH: rank 1 of 2 (from MV2_COMM_WORLD_RANK and MV2_COMM_WORLD_SIZE)"


def test_own_variables_come_before_every_launcher():
    start = find_start(environ={**SLURM, **TORCHRUN, **HAND, "PMI_SIZE": "9", "PMI_RANK": "8"})
    assert (start.launch.rank, start.launch.size) == (1, 3)
    assert start.launch.rendezvous == "node1:4000"


def test_arguments_come_before_variables():
    start = find_start(rank=2, size=5, rendezvous="other:1", environ=HAND)
    assert (start.launch.rank, start.launch.size, start.launch.rendezvous) == (2, 5, "other:1")


def test_a_launcher_of_one_process_hides_none_of_several():
    one = {**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    for hiding in (one, {"PMI_RANK": "0", "PMI_SIZE": "1"}, {**one, "PMI_RANK": "0", "PMI_SIZE": "1"}):
        found = find_start(environ={**hiding, **TORCHRUN}).launch
        assert (found.source, found.rank, found.size) == ("torchrun", 1, 2)
        assert described_rank({**hiding, **TORCHRUN}) == 1


def test_torchrun_within_srun_is_the_one_that_started_this_process():
    found = find_start(environ={**SLURM, **TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}).launch
    assert (found.source, found.rank, found.size) == ("torchrun", 1, 2)


def test_launchers_that_disagree_are_both_named():
    words = r"srun says rank 3 of 4, torchrun says rank 1 of 2 \(RANK and WORLD_SIZE\)"
    with pytest.raises(ConfigError, match=words):
        find_start(environ={**SLURM, **TORCHRUN})
    mpi = {"PMI_RANK": "0", "PMI_SIZE": "4"}
    assert [found.source for found in launch.by_launchers({**mpi, **SLURM, **TORCHRUN})][1:] == [
        "Slurm's srun",
        "torchrun",
    ]


def test_slurm_has_the_rendezvous_where_torchruns_variables_say_the_same():
    found = find_start(environ={**SLURM, **TORCHRUN, "RANK": "3", "WORLD_SIZE": "4"}).launch
    assert (found.rank, found.size) == (3, 4)
    host, port = launch.split_address(found.rendezvous)
    assert host == "gpu07"
    assert 15000 <= port < 30000


def test_steps_of_one_slurm_job_have_different_ports():
    ports = {launch.by_slurm({**SLURM, "SLURM_STEP_ID": str(step)}).rendezvous for step in range(50)}
    assert len(ports) == 50


def test_a_slurm_batch_script_alone_is_one_process():
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "a[1-4]"}
    assert launch.by_slurm(batch) is None


def test_torchrun_that_serves_the_port_itself_gets_the_next_one():
    assert launch.by_torchrun(TORCHRUN).rendezvous == "10.0.0.1:29500"
    served = {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert launch.by_torchrun(served).rendezvous == "10.0.0.1:29501"
    assert launch.by_torchrun({**TORCHRUN, "MASTER_ADDR": "fe80::1"}).rendezvous == "[fe80::1]:29500"


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("n1", "n1"),
        ("n[3,5-6]", "n3"),
        ("n[001-100],m2", "n001"),
        ("a-[1-2]-b[7],c", "a-1-b7"),
        ("login,n[1-3]", "login"),
    ],
)
def test_the_first_host_of_a_node_list_is_found(nodes, host):
    assert launch.first_host(nodes) == host


def test_a_node_list_of_brackets_alone_takes_no_longer_than_others():
    for nodes in ("[" * 100_000, "[-" * 50_000, "[," * 50_000 + "]"):
        assert launch.first_host(nodes) == nodes


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RDMACOLL_RANK": "1"}, "RDMACOLL_SIZE"),
        ({"RDMACOLL_RENDEZVOUS": "a:1"}, "RDMACOLL_RANK and RDMACOLL_SIZE"),
        ({"RDMACOLL_RANK": "1", "RDMACOLL_SIZE": "2"}, "RDMACOLL_RENDEZVOUS"),
        ({**HAND, "RDMACOLL_RANK": "3"}, "ranks are 0 to 2"),
        ({**HAND, "RDMACOLL_RANK": "-1"}, "ranks are 0 to 2"),
        ({**HAND, "RDMACOLL_SIZE": "0"}, "at least one rank"),
        ({**HAND, "RDMACOLL_SIZE": "three"}, "not a whole number"),
        ({**HAND, "RDMACOLL_RENDEZVOUS": "node1"}, "host:port"),
        ({**HAND, "RDMACOLL_RENDEZVOUS": "node1:0"}, "host:port"),
        ({**HAND, "RDMACOLL_RENDEZVOUS": "::1:70000"}, "host:port"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 is set, but RANK is not: each process would be a world"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, "SLURM_JOB_NODELIST"),
    ],
)
def test_what_cannot_be_is_refused_by_name(environ, words):
    with pytest.raises(ConfigError, match=words):
        find_start(environ=environ)


def test_a_silent_world_of_one_is_refused_and_names_both():
    # The launcher says 4 ranks. It did not start this process's MPI, which says 1.
    with pytest.raises(ConfigError, match="rank 2 of 4") as caught:
        find_start(environ={"PMI_RANK": "2", "PMI_SIZE": "4"})
    assert "rank 0 of 1" in str(caught.value) or "mpi4py cannot be imported" in str(caught.value)


def test_another_mpi_than_the_launchers_is_refused_before_it_aborts_the_process(monkeypatch):
    import sys
    import types

    fake = types.ModuleType("mpi4py.MPI")
    fake.Is_initialized = fake.Is_finalized = lambda: False
    fake.Get_library_version = lambda: "Other MPI 5.0\nmore"
    fake.COMM_WORLD = None
    package = types.ModuleType("mpi4py")
    package.rc, package.MPI = types.SimpleNamespace(), fake
    monkeypatch.setitem(sys.modules, "mpi4py", package)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    with pytest.raises(ConfigError, match=r"Open MPI says that this is rank 1 of 2.*Other MPI 5\.0"):
        find_start(environ={"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})
    assert package.rc.initialize is False


def test_a_launcher_and_its_mpi_have_one_name_if_they_are_one() -> None:
    assert launch.with_version("Open MPI", "Open MPI v4.1.4, package: Debian") == "Open MPI v4.1.4"
    assert launch.with_version("Slurm", "MPICH Version: 4.2") == "Slurm (MPICH Version: 4.2)"


@pytest.mark.parametrize(
    ("size", "rank"), [("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), ("PMI_SIZE", "PMI_RANK")]
)
def test_an_mpi_launcher_without_mpi4py_is_refused(monkeypatch, size, rank):
    monkeypatch.setitem(__import__("sys").modules, "mpi4py", None)
    monkeypatch.delitem(__import__("sys").modules, "mpi4py.MPI", raising=False)
    with pytest.raises(ConfigError, match=r"rank 2 of 4.*pip install 'rdmacoll\[mpi\]'"):
        find_start(environ={rank: "2", size: "4"})


def test_srun_with_pmi_but_without_mpi4py_meets_by_rendezvous(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mpi4py", None)
    monkeypatch.delitem(__import__("sys").modules, "mpi4py.MPI", raising=False)
    found = find_start(environ={**SLURM, "PMI_RANK": "3", "PMI_SIZE": "4"}).launch
    assert (found.rank, found.size) == (3, 4)
    assert found.rendezvous


def test_a_communicator_and_a_rank_together_are_refused():
    with pytest.raises(ConfigError, match="not both"):
        find_start(comm=object(), rank=1, environ={})
    with pytest.raises(ConfigError, match="not a communicator"):
        find_start(comm=object(), environ={})


def test_the_told_rank_needs_no_start():
    assert described_rank({}) == 0
    assert described_rank(TORCHRUN) == 1
    assert described_rank({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6"}) == 5


NAMES = ["RDMACOLL_TRANSPORT", "RDMACOLL_ORDER", "RDMACOLL_STALL_ERROR_S"]


def test_arguments_become_variables():
    text = arguments_text({"transport": ["shm", "tcp"], "ORDER": None, "stall_error_s": 1.5}, NAMES)
    assert text == "RDMACOLL_TRANSPORT=shm,tcp\nRDMACOLL_STALL_ERROR_S=1.5\n"


def test_unknown_arguments_are_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="Did you mean transport"):
        argument_name("transports", NAMES)
    with pytest.raises(ConfigError, match="rdmacoll config"):
        argument_name("zzzz", NAMES)
    with pytest.raises(ConfigError, match="line break"):
        argument_text("device", "a\nRDMACOLL_ORDER=canonical")
