"""The TensorFlow ops and the tape on real ranks: one start, many checks (the import is the cost)."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import ROOT, run

PROGRAMS = ROOT / "tests" / "multiprocess"


def run_checks(program: str, ranks: int, **options: object) -> None:
    path: Path = PROGRAMS / program
    checks = [line for line in path.read_text().splitlines() if line.startswith("def check_")]
    reports = run(path, ranks, deadline_s=300, **options).succeeded()
    assert len(checks) > 4
    for report in reports:
        assert len(report["done"]) == len(checks)


@pytest.mark.parametrize(
    ("ranks", "launcher", "inter_op_threads"), [(1, "tcp", 1), (2, "mpirun", 1), (3, "tcp", 2)]
)
def test_ops_are_right_on_every_rank(ranks: int, launcher: str, inter_op_threads: int) -> None:
    run_checks("tf_ops.py", ranks, launcher=launcher, arguments=[str(inter_op_threads)])


@pytest.mark.parametrize(("ranks", "inter_op_threads"), [(2, 2), (3, 1)])
def test_what_is_wrong_is_refused_on_every_rank(ranks: int, inter_op_threads: int) -> None:
    run_checks("tf_refusals.py", ranks, arguments=[str(inter_op_threads)])


DEADLINE_S = 5.0  # five times what is promised


@pytest.mark.parametrize(
    ("how", "where"), [("kill", "graph"), ("exception", "eager"), ("kill", "fit"), ("exit", "fit")]
)
def test_a_rank_that_ends_is_named_on_the_others(how: str, where: str) -> None:
    outcome = run(PROGRAMS / "tf_failure.py", 3, arguments=[how, where], deadline_s=200)
    *survivors, ended = outcome.ranks
    assert ended.code != 0, outcome.text()
    for survivor in survivors:
        assert survivor.code == 1, outcome.text()
        assert survivor.report["class"] == ("RankFailedError" if where == "eager" else "AbortedError")
        assert survivor.report["rank"] == 2
        assert "rank 2" in survivor.report["text"]
        assert survivor.report["at"] - ended.report["ended_at"] < DEADLINE_S
        if how == "exception":
            assert "ValueError" in survivor.report["cause"]
