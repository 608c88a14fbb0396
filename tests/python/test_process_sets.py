"""Process sets on several ranks."""

from __future__ import annotations

import os

import pytest
from marks import slow
from rank_program import refused_start
from ranks import ROOT, run

from rdmacoll.errors import ConfigError
from rdmacoll.process_set import ProcessSet, setting_of

PROGRAM = ROOT / "tests" / "multiprocess" / "process_sets.py"


@pytest.mark.parametrize(
    ("size", "transport"),
    [(2, "shm"), (3, "tcp"), (4, "shm"), (5, "tcp"), *(slow(size, "shm") for size in (3, 5)), slow(4, "tcp")],
)
def test_sets_equal_numpy(size, transport):
    seed = int.from_bytes(os.urandom(3), "big")
    environ = {"RDMACOLL_TRANSPORT": transport, "RDMACOLL_PLAN_REPEATS": "2"}
    found = run(PROGRAM, size, arguments=[str(seed), str(size)], env=environ, deadline_s=240).succeeded()
    assert [entry["rank"] for entry in found] == list(range(size))
    assert all(entry["cases"] >= 8 for entry in found)
    assert any(entry["plans"] > 1 for entry in found)


def test_sets_are_apart_in_tensorflow():
    program = ROOT / "tests" / "multiprocess" / "tf_process_sets.py"
    assert run(program, 3, deadline_s=240, preloaded=True).succeeded() == [True, True, True]


def test_sets_of_the_environment_are_there_and_must_be_equal():
    program = """
import numpy as np, rdmacoll
from ranks import report
rdmacoll.init()
one = rdmacoll.process_sets()[2]
report([one.ranks, one.included() and rdmacoll.engine.allgather(rdmacoll.rank(), process_set=one).tolist()])
rdmacoll.engine.barrier()
"""
    found = run(program, 3, env={"RDMACOLL_PROCESS_SETS": "0,1;0,2"}).succeeded()
    assert found == [[[0, 2], [0, 2]], [[0, 2], False], [[0, 2], [0, 2]]]
    for text in run(
        refused_start('process_sets=[[0, int(os.environ["RDMACOLL_RANK"]) % 2 + 1]]'), 3
    ).succeeded():
        assert "RDMACOLL_PROCESS_SETS: ranks 0, 2: 0,1; rank 1: 0,2" in text


def test_a_set_with_a_rank_that_does_not_exist_ends_the_start():
    assert all(
        "5 is no rank of this world: 0 to 1 are. Start 6 or more" in text
        for text in run(refused_start("process_sets=[[0, 5]]"), 2).succeeded()
    )


@pytest.mark.parametrize("ranks", [[], [1, 1], [-1], 3, ["a"]])
def test_what_is_no_set_is_refused(ranks):
    with pytest.raises(ConfigError, match="name each rank once"):
        ProcessSet(ranks)


def test_sets_as_a_setting():
    assert setting_of(None) is None
    assert setting_of("dynamic") is None
    assert setting_of([ProcessSet([3, 1]), [0]]) == "1,3;0"
    with pytest.raises(ConfigError, match="list of ProcessSet"):
        setting_of("0,1")
