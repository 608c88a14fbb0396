"""Programs that a rank starts inherit its variables. They are no ranks, and get an error with the cure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ranks import run

from rdmacoll._start.bootstrap import clean_environment, find_start
from rdmacoll._start.inherited import MARK, check_inherited, mark_of, without_launch
from rdmacoll.errors import ConfigError

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "prte-1@1"}
BY_HAND = {"RDMACOLL_RANK": "1", "RDMACOLL_SIZE": "2", "RDMACOLL_RENDEZVOUS": "node1:4000"}


def processes(folder: Path, *, began: str = "500") -> Path:
    """Makes a /proc in which this process is a grandchild of process 77, which began at `began`."""
    for pid, parent, start in ((os.getpid(), 78, "900"), (78, 77, "800"), (77, 1, began)):
        (folder / str(pid)).mkdir()
        fields = ["S", str(parent), *"0" * 17, start, "0"]
        (folder / str(pid) / "stat").write_text(f"{pid} (py thon) x) {' '.join(fields)}")
    return folder


def marked(variables: dict[str, str]) -> dict[str, str]:
    digest = mark_of(0, variables).split(":")[3]
    return {**variables, MARK: f"77:500:3:{digest}"}


@pytest.mark.parametrize("variables", [OPEN_MPI, BY_HAND, {"RANK": "3", "WORLD_SIZE": "4"}])
def test_a_program_of_a_rank_is_named_with_the_cure(tmp_path, variables):
    with pytest.raises(ConfigError) as caught:
        check_inherited(marked(variables), processes(tmp_path))
    text = str(caught.value)
    name, value = next(iter(variables.items()))
    assert "started by rank 3 of a running job (pid 77)" in text
    assert f"{name}={value!r}" in text
    assert "env=rdmacoll.clean_environment()" in text


def test_other_programs_start_as_they_did(tmp_path):
    proc = processes(tmp_path)
    check_inherited(OPEN_MPI, proc)  # no rank above
    check_inherited({**marked(OPEN_MPI), "PMIX_NAMESPACE": "prte-2@1"}, proc)  # a launcher in between
    check_inherited({**marked(BY_HAND), "RDMACOLL_RANK": "0", "RDMACOLL_SIZE": "1"}, proc)
    check_inherited(marked({"SLURM_JOB_ID": "7"}), proc)  # which makes no rank
    check_inherited({**OPEN_MPI, MARK: "nonsense"}, proc)
    check_inherited({**OPEN_MPI, MARK: mark_of(3, OPEN_MPI)})  # the rank itself, a second time


def test_a_rank_that_has_gone_or_whose_number_another_has_refuses_nothing(tmp_path):
    check_inherited(marked(OPEN_MPI), processes(tmp_path, began="501"))
    check_inherited(marked(OPEN_MPI), tmp_path / "nothing")


def test_a_clean_environment_has_no_launch(monkeypatch):
    for name in (*OPEN_MPI, *BY_HAND, "SLURM_PROCID", "TF_CONFIG", "MASTER_ADDR", MARK):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("RDMACOLL_LOG", "info")
    clean = clean_environment({"MORE": "1"})
    assert clean["RDMACOLL_LOG"] == "info"
    assert clean["MORE"] == "1"
    assert clean["PATH"] == os.environ["PATH"]
    assert clean == {**without_launch(clean), "MORE": "1"}
    assert find_start(environ=clean).launch.size == 1


PROGRAM = """
import os, subprocess, sys
import numpy as np
import rdmacoll
from ranks import report

CHILD = "import rdmacoll; rdmacoll.init(); print('rank', rdmacoll.rank(), 'of', rdmacoll.size())"

def child(env):
    done = subprocess.run([sys.executable, "-c", CHILD], env=env, capture_output=True, text=True, timeout=60)
    return [done.returncode, (done.stdout + done.stderr).strip().splitlines()[-1]]

rdmacoll.init()
rank = rdmacoll.rank()
said = [child(None), child(rdmacoll.clean_environment())] if rank == 1 else []
total = rdmacoll.engine.allreduce(np.array([rank + 1.0]), op=rdmacoll.Sum)
rdmacoll.shutdown()
report([said, float(total[0]), "_RDMACOLL_RANK" in os.environ], rank)
"""


def test_a_program_of_a_rank_ends_with_a_sentence_and_the_rank_goes_on():
    reports = run(PROGRAM, 2, deadline_s=120).succeeded()
    (refused, refusal), (code, logged) = reports[1][0]
    assert refused == 1
    assert "was started by rank 1 of a running job" in refusal
    assert "RDMACOLL_RANK='1'" in refusal
    assert (code, logged) == (0, "rank 0 of 1")
    assert [report[1:] for report in reports] == [[3.0, False]] * 2
