"""The numpy front end on several ranks, with different data on each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from marks import slow
from ranks import ROOT, run

PROGRAM = ROOT / "tests" / "multiprocess" / "numpy_collectives.py"
METRICS = {
    "control_messages",
    "handshakes",
    "registrations",
    "engine_allocations",
    "bytes_copied",
    "bytes_sent",
    "bytes_received",
    "batches",
    "wakeups",
    "connections",
}


def seed() -> int:
    return int.from_bytes(os.urandom(3), "big")


# With the tests below, these cases cover every number of ranks up to 5, and every transport. The command
# `make test-all` adds 8 ranks and the other combinations.
@pytest.mark.parametrize(
    ("size", "transport"),
    [
        *((size, "shm") for size in (1, 2, 3)),
        (5, "tcp"),
        *(slow(size, "shm") for size in (4, 5, 8)),
        *(slow(size, "tcp") for size in (1, 2, 3, 4, 8)),
    ],
)
def test_collectives_equal_numpy(size, transport):
    found = run(
        PROGRAM, size, arguments=[str(seed())], env={"RDMACOLL_TRANSPORT": transport}, deadline_s=240
    ).succeeded()
    assert [entry["rank"] for entry in found] == list(range(size))
    assert all(entry["size"] == size and entry["cases"] > 250 for entry in found)
    assert all(set(entry["metrics"]) >= METRICS for entry in found)
    if size > 1:
        assert {entry["transport"] for entry in found} == {transport}


@pytest.mark.parametrize("size", [slow(2), 3])
def test_collectives_equal_numpy_under_mpirun(size):
    found = run(PROGRAM, size, launcher="mpirun", arguments=[str(seed())], deadline_s=240).succeeded()
    assert [entry["rank"] for entry in found] == list(range(size))
    assert {entry["local_size"] for entry in found} == {size}


@pytest.mark.parametrize(
    ("size", "algorithm"),
    [
        *((3, name) for name in ("ring", "halving_doubling", "recursive_doubling:1k:two_level")),
        *(slow(3, name) for name in ("direct", "one_shot", "recursive_doubling")),
        *(slow(5, name) for name in ("ring", "direct", "one_shot", "recursive_doubling")),
        *(slow(5, name) for name in ("halving_doubling", "recursive_doubling:1k:two_level")),
    ],
)
def test_every_algorithm_equals_numpy(size, algorithm):
    environ = {"RDMACOLL_ALLREDUCE_ALGORITHM": algorithm, "RDMACOLL_SEGMENT_BYTES": "16384"}
    run(PROGRAM, size, arguments=[str(seed())], env=environ, deadline_s=240).succeeded()


@pytest.mark.parametrize(("size", "transport"), [slow(3, "tcp"), (4, "shm"), slow(5, "shm"), slow(8, "tcp")])
def test_canonical_order_gives_the_bits_of_one_binary_tree(size, transport):
    environ = {"RDMACOLL_ORDER": "canonical", "RDMACOLL_TRANSPORT": transport}
    run(PROGRAM, size, arguments=[str(seed())], env=environ, deadline_s=240).succeeded()


@pytest.mark.parametrize("size", [slow(3), slow(4), 5, slow(8)])
def test_halving_and_doubling_give_the_bits_of_that_tree_too(size):
    environ = {
        "RDMACOLL_ORDER": "canonical",
        "RDMACOLL_ALLREDUCE_ALGORITHM": "halving_doubling",
        "RDMACOLL_TRANSPORT": "shm" if size % 2 else "tcp",
        "RDMACOLL_SEGMENT_BYTES": "65536",
    }
    run(PROGRAM, size, arguments=[str(seed())], env=environ, deadline_s=240).succeeded()


def test_workers_reduce_as_the_engine_thread_does():
    environ = {"RDMACOLL_COMPUTE_WORKERS": "1"}
    run(PROGRAM, 3, arguments=[str(seed())], env=environ, deadline_s=240).succeeded()


def test_copies_through_shared_memory_equal_reads_of_foreign_memory():
    environ = {"RDMACOLL_ONE_COPY": "false", "RDMACOLL_TRANSPORT": "shm"}
    run(PROGRAM, 3, arguments=[str(seed())], env=environ, deadline_s=240).succeeded()


def test_any_mpi_communicator_is_taken():
    program = """
from mpi4py import MPI
import numpy as np, rdmacoll
from ranks import report
world = MPI.COMM_WORLD
half = world.Split(world.Get_rank() % 2, -world.Get_rank())   # two worlds, in reverse order
rdmacoll.init(comm=half)
total = rdmacoll.engine.allgather(np.int64(world.Get_rank()))
report([rdmacoll.rank(), rdmacoll.size(), total.tolist()], rank=world.Get_rank())
"""
    found = run(program, 4, launcher="mpirun").succeeded()
    assert found == [[1, 2, [2, 0]], [1, 2, [3, 1]], [0, 2, [2, 0]], [0, 2, [3, 1]]]


def test_importing_needs_numpy_alone():
    program = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"tensorflow", "keras", "mpi4py", "click", "rich", "ml_dtypes"}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import numpy as np, rdmacoll
from ranks import report
rdmacoll.init()
assert rdmacoll.engine.allreduce(np.ones(3)).tolist() == [1.0, 1.0, 1.0]
report(rdmacoll.size())
"""
    assert run(program, 2, cold=True).succeeded() == [2, 2]


def test_a_process_without_a_launcher_is_a_world_of_one(tmp_path: Path):
    import subprocess
    import sys

    from ranks import clean_environment

    program = (
        "import numpy as np, rdmacoll; rdmacoll.init(); print(rdmacoll.rank(), rdmacoll.size(), "
        "rdmacoll.engine.allreduce(np.arange(3.0)).tolist(), rdmacoll.engine.allgather(5.0).tolist())"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment({"RDMACOLL_LOG": "info", "HOME": str(tmp_path)}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout.strip() == "0 1 [0.0, 1.0, 2.0] [5.0]", result.stderr
    assert "a world of one" in result.stderr
    assert not (tmp_path / ".rdmacoll").exists()
