"""Copies of wrapped optimizers, for every way to make one: a table of outcomes.

A copy and its original take turns on two ranks, each with its own gradients. Each optimizer has to reach the
weights of one process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks import ROOT, run
from test_tf_optimizers import tf_keras  # noqa: F401
from test_tf_versions import old_python, run_in_old_python  # noqa: F401

PROGRAM = ROOT / "tests" / "multiprocess" / "tf_optimizer_copies.py"
# own: wrapped, with a name, buckets and sums of its own.
# plain: not wrapped, as it comes out of a file. It works when it is wrapped again.
# none: no optimizer.
# refused: Keras refuses it, for a plain optimizer too.
TABLE = """
way                            Keras 2  Keras 2 legacy  Keras 3  Keras 3 scaled
copy                           own      own             own      own
deepcopy                       refused  own             own      own
pickle                         refused  refused         own      own
from_config                    own      own             own      own
class                          own      own             own      refused
copy of a copy                 own      own             own      own
copy between passes            own      own             own      own
deepcopy between passes        refused  own             own      own
pickle between passes          refused  refused         own      own
from_config between passes     own      own             own      own
class between passes           own      own             own      refused
copy of a copy between passes  own      own             own      own
clone_model                    none     none            plain    plain
deepcopy of a model            plain    plain           plain    plain
load_model .keras              plain    plain           plain    plain
load_model .keras by class     plain    plain           plain    plain
load_model .h5                 plain    plain           -        -
load_model .h5 by class        plain    plain           -        -
"""
LINES = [[part.strip() for part in line.split("  ") if part.strip()] for line in TABLE.splitlines() if line]
FAMILIES = LINES[0][1:]
ROWS = {row: dict(zip(FAMILIES, words)) for row, *words in LINES[1:]}
Found = Callable[[Path], dict[str, Any]]


@pytest.fixture(scope="module")
def found() -> Found:
    """Trains once, for all rows."""

    @functools.cache
    def train(folder: Path) -> dict[str, Any]:
        reports = run(PROGRAM, 2, preloaded=True, arguments=[str(folder)], deadline_s=600).succeeded()
        assert reports[0] == reports[1]
        return dict(reports[0])

    return train


@pytest.mark.parametrize("row", ROWS)
def test_a_copy_has_a_state_of_its_own(row: str, found: Found, tf_keras: Path) -> None:  # noqa: F811
    outcome = found(tf_keras)
    outcomes = {family: outcome["done"][family][row] for family, word in ROWS[row].items() if word != "-"}
    wanted = {family: word for family, word in ROWS[row].items() if word != "-"}
    assert outcomes == wanted, f"seed {outcome['seed']}"


@pytest.mark.slow
def test_a_copy_has_a_state_of_its_own_in_tensorflow_2_15(old_python: Path) -> None:  # noqa: F811
    for outcome in run_in_old_python(old_python, "tf_optimizer_copies.py", 2, ""):
        for family in FAMILIES[:2]:
            assert outcome[family] == {row: words[family] for row, words in ROWS.items()}
