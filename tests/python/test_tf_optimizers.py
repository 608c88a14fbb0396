"""Every optimizer of TensorFlow, in every way to train: a table of outcomes.

Each rank has its own data and initial weights. The word "same" means that the trained weights have the same
bits on all ranks. They also equal those of one process that trains on the joined batches. In the column of
mixed precision, a batch overflows on the last rank alone, and all ranks leave it out.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from ranks import ROOT, run
from test_tf_ranks import run_checks
from test_tf_versions import cache_folder, old_python as old_python, run_in_old_python

PROGRAM = ROOT / "tests" / "multiprocess" / "tf_optimizers.py"
COLUMNS = ("graph", "eager", "accumulation", "mixed_precision", "clipnorm", "clipvalue", "global_clipnorm")
COLUMNS += ("steps_per_execution", "jit_compile", "passes")
# way: `fit`, a loop of the program (a tf.function, or eager), `Session` or `MonitoredTrainingSession`.
# wrapped: the optimizer, the gradient tape, or nothing.
# norm, value, global: clipping by each gradient's norm, by value, by the norm of all gradients.
# passes: two backward passes a step, compared with one process whose batches have twice the size.
TABLE = """
way        wrapped    library         graph  eager  accum.   mixed  norm   value  global  steps  jit    passes
fit        optimizer  Keras 3         same   same   same     same   same   same   same    same   same   same
fit        optimizer  Keras 2         same   same   unknown  same   same   same   same    same   xla    same
fit        optimizer  Keras 2 legacy  same   same   unknown  same   same   same   same    same   xla    same
loop       optimizer  Keras 3         same   same   same     same   same   same   same    same   xla    same
loop       optimizer  Keras 2         same   same   same     same   same   same   same    same   xla    same
loop       optimizer  Keras 2 legacy  same   same   same     same   same   same   same    same   xla    same
loop       optimizer  v1              same   same   same     -      same   same   same    same   xla    same
loop       tape       Keras 3         same   same   same     same   same   same   same    same   xla    tape
loop       tape       Keras 2         same   same   same     same   same   same   same    same   xla    tape
loop       tape       Keras 2 legacy  same   same   same     same   same   same   same    same   xla    tape
loop       tape       v1              same   same   same     -      same   same   same    same   xla    tape
Session    optimizer  v1              same   same   same     same   same   same   same    -      xla    same
Monitored  optimizer  v1              same   -      same     same   same   same   same    -      xla    same
fit        none       Keras 3         plain  plain  plain    plain  plain  plain  plain   plain  plain  -
fit        none       Keras 2         plain  plain  unknown  plain  plain  plain  plain   plain  plain  -
loop       none       Keras 2         apart  apart  apart    apart  apart  apart  apart   apart  apart  -
loop       none       v1              apart  apart  apart    -      apart  apart  apart   apart  apart  -
Session    none       v1              apart  apart  apart    apart  apart  apart  apart   -      apart  -
"""
# A cell must report exactly "same" or "apart", or contain this part of an error. "-": not possible.
OUTCOMES = {
    "same": "same",
    "apart": "ranks differ",
    "plain": "ConfigError: the first batch of fit has reduced no gradient of model ",
    "unknown": "TypeError: ",  # Keras 2 knows no gradient_accumulation_steps: accumulate in a loop
    "xla": "ConfigError: a collective cannot be compiled by XLA, and this function is traced with "
    "jit_compile=True. Leave jit_compile off where you call rdmacoll. ",
    "tape": "ConfigError: backward_passes_per_step=2 is not for a tape, which lives for one pass: ",
    "parts": "create its optimizers with gradient_accumulation_steps=2.",
}
OPTIMIZERS = {
    "Keras 3": "SGD RMSprop Adam AdamW Adadelta Adagrad Adamax Adafactor Nadam Ftrl Lion Lamb Muon "
    "ScheduleFreeAdamW MultiOptimizer",
    "Keras 2": "SGD RMSprop Adam AdamW Adadelta Adagrad Adamax Adafactor Nadam Ftrl Lion",
    "Keras 2 legacy": "SGD RMSprop Adam Adadelta Adagrad Adamax Nadam Ftrl",
    "v1": "GradientDescentOptimizer MomentumOptimizer AdamOptimizer RMSPropOptimizer AdagradOptimizer "
    "AdadeltaOptimizer FtrlOptimizer ProximalGradientDescentOptimizer ProximalAdagradOptimizer "
    "AdagradDAOptimizer",
}
ONE_OF = {"Keras 3": "Adam", "Keras 2": "Adam", "Keras 2 legacy": "Adam", "v1": "AdamOptimizer"}
# Other words than those of the row. A MultiOptimizer has no accumulation of its own. Nadam of Keras 2 counts
# how often it is traced, which the variables for several passes change.
OTHER_WORDS = {
    ("fit", "Keras 3", "MultiOptimizer", "passes"): "parts",
    ("loop", "Keras 3", "MultiOptimizer", "passes"): "parts",
    ("fit", "Keras 2", "Nadam", "passes"): "-",
}
# Columns that a loop or a tape implements, whatever the optimizer: tried with one optimizer alone.
OF_ONE: dict[tuple[str, str], tuple[str, ...]] = {
    ("loop", "optimizer"): ("accumulation", "steps_per_execution"),
    ("loop", "tape"): COLUMNS[2:],
}
ROWS = [tuple(part.strip() for part in line.split("  ") if part) for line in TABLE.splitlines()[2:]]
Row = tuple[str, ...]
Cell = tuple[list[str], str]  # the program's arguments, and the word in the table


@pytest.fixture(scope="session")
def tf_keras() -> Path:
    """Returns a folder with `tf_keras`, and downloads it if it is missing.

    Its dependency, the package `tensorflow`, is left out, since `tensorflow-cpu` is installed.
    """
    wanted = "tf_keras==2.21.*"
    folder = cache_folder() / "tf_keras-2.21"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade"]
            subprocess.run([*pip, "--target", str(folder), wanted], check=True, timeout=600)
            (folder / "complete").touch()
    return folder


def path_of(*folders: Path) -> str:
    """PYTHONPATH of ranks that need more than the tree."""
    return os.pathsep.join(map(str, (ROOT, ROOT / "tests", *folders)))


def cells(rows: Iterable[Row], *, of_each: bool = False) -> list[Cell]:
    """The cells of these rows, for one optimizer or for each."""
    return [
        ([way, wrapper, library, optimizer, column], word)
        for way, wrapper, library, *words in rows
        for optimizer in (OPTIMIZERS[library].split() if of_each else [ONE_OF[library]])
        for column, said in zip(COLUMNS, words)
        if optimizer == ONE_OF[library] or column not in OF_ONE.get((way, wrapper), ())
        for word in [OTHER_WORDS.get((way, library, optimizer, column), said)]
        if word != "-"
    ]


def come_true(wanted: list[Cell], folder: Path | None = None, python: Path | None = None) -> None:
    """Trains in all these cells on two ranks, and compares the outcomes with the table."""
    text = json.dumps([cell for cell, _ in wanted])
    if python is None:
        env = {"PYTHONPATH": path_of(*([folder] if folder else []))}
        outcome = run(PROGRAM, 2, arguments=[text], env=env, preloaded=True, deadline_s=1200)
    else:
        command = [str(python), str(PROGRAM), text]
        program = f"import os\nos.execv({command[0]!r}, {command!r})\n"
        outcome = run(program, 2, launcher="mpirun", deadline_s=1200)
    wrong = []
    for (cell, word), *found in zip(wanted, *outcome.succeeded()):
        said = [text for text in found if text is not None]
        is_text = word in ("same", "apart")
        good = [text == OUTCOMES[word] if is_text else OUTCOMES[word] in text for text in said]
        if not good or not all(good) or len(said) < (1 if word == "same" else 2):
            wrong.append(f"{' '.join(cell)}: {word} was expected, not {found}")
    assert not wrong, "\n".join(wrong)


def test_the_table_has_every_cell() -> None:
    assert len(ROWS) == 18
    for row in ROWS:
        assert len(row) == 3 + len(COLUMNS)
        assert set(row[3:]) <= {*OUTCOMES, "-"}


# Rows that `make test` tries nowhere else. test_keras_ranks.py tries Keras 3.
FEW = [row for row in ROWS if row[0] == "Session" or row[:3] == ("fit", "optimizer", "Keras 2")]


def test_the_table_comes_true_for_one_optimizer(tf_keras: Path) -> None:
    # One column shows that training without a wrapper is seen. The slow run tries the others.
    wanted = [cell for cell in cells(FEW) if cell[0][1] != "none" or cell[0][4] == COLUMNS[0]]
    come_true(wanted, tf_keras)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row[:3]))
def test_the_table_comes_true_for_each_optimizer(tf_keras: Path, row: Row) -> None:
    come_true(cells([row], of_each=row[1] != "none"), tf_keras)


@pytest.mark.slow
def test_all_of_keras_2_works_with_tf_keras(tf_keras: Path) -> None:
    env = {"TF_USE_LEGACY_KERAS": "1", "PYTHONPATH": path_of(tf_keras)}
    run_checks("tf_keras2.py", 2, launcher="mpirun", env=env)


@pytest.mark.parametrize("launcher", ["tcp", pytest.param("mpirun", marks=pytest.mark.slow)])
def test_what_is_special_in_tensorflow_1(launcher: str) -> None:
    run_checks("tf_v1.py", 2, launcher=launcher)


@pytest.mark.slow
def test_the_table_comes_true_in_tensorflow_2_15(old_python: Path) -> None:
    come_true(cells(row for row in ROWS if row[2] != "Keras 3"), python=old_python)
    for done in run_in_old_python(old_python, "tf_v1.py", 2):
        assert len(done) == 6


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_passes_of_several_sets_of_variables_train_as_one_process(ranks: int) -> None:
    run_checks("tf_passes.py", ranks)


WHOLE = [pytest.param(2, (), id="few"), pytest.param(3, ("all",), id="all", marks=pytest.mark.slow)]


@pytest.mark.parametrize(("ranks", "more"), WHOLE)
def test_a_gradient_is_reduced_once(tf_keras: Path, ranks: int, more: tuple[str, ...]) -> None:
    run_checks(
        "tf_gradient_origins.py", ranks, first="tf_single_reduction.py", arguments=[str(tf_keras), *more]
    )


@pytest.mark.parametrize(("ranks", "more"), WHOLE)
def test_replicas_of_a_process_train_as_one_process(
    tf_keras: Path, ranks: int, more: tuple[str, ...]
) -> None:
    run_checks("tf_replicas.py", ranks, arguments=[str(tf_keras), *more])
