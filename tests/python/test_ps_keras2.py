"""Asynchronous parameter servers through Keras 2: `tf_keras` in new TensorFlow, and TensorFlow 2.15."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from marks import slow
from ranks import ROOT, run
from test_tf_optimizers import path_of, tf_keras  # noqa: F401
from test_tf_versions import old_python  # noqa: F401

PROGRAM = ROOT / "tests" / "multiprocess" / "ps_async_keras2.py"
# Sums of a few floats in another order, over 6 to 18 steps.
TOLERANCE = 2e-6


def there(folder: Path, workers: int, task: str, *arguments: str, python: Path | None = None) -> list[Any]:
    """Runs a task of ps_async_keras2.py with one server, and returns the reports of the ranks."""
    words = [str(PROGRAM), task, "1", *arguments]
    program: str | Path = PROGRAM
    if python is not None:
        program = f"import os\nos.execv({str(python)!r}, {[str(python), *words]!r})\n"
    env = {} if python is not None else {"PYTHONPATH": path_of(folder), "TF_USE_LEGACY_KERAS": "1"}
    words = words[1:] if python is None else []
    outcome = run(program, workers + 1, arguments=words, env=env, preloaded=python is None, deadline_s=300)
    return outcome.succeeded()


EACH = ["sgd", "momentum", "nesterov", "amsgrad", "adamw", "rmsprop", "adagrad"]


@pytest.mark.parametrize("optimizer", ["adam", *map(slow, EACH)])
def test_one_worker_trains_as_plain_keras_2(tf_keras: Path, optimizer: str) -> None:  # noqa: F811
    in_steps, at_the_end, moved = there(tf_keras, 1, "same_as_plain", optimizer)[0]
    assert in_steps < TOLERANCE
    assert at_the_end < TOLERANCE
    assert moved > 0.01


def test_what_servers_cannot_do_for_keras_2_is_said(tf_keras: Path) -> None:  # noqa: F811
    errors = there(tf_keras, 1, "refused")[0]
    expected = [
        "an optimizer of class legacy Adam cannot",
        "class Adadelta cannot",
        "cannot change after its first step",
    ]
    assert len(errors) == len(expected), errors
    for text, part in zip(errors, expected):
        assert part in text


@pytest.mark.parametrize("optimizer", [slow("adam"), slow("momentum")])
def test_a_training_goes_on_from_files_of_keras_2_and_to_them(
    tf_keras: Path,  # noqa: F811
    tmp_path: Path,
    optimizer: str,
) -> None:
    difference, moved = there(tf_keras, 1, "resumed", optimizer, str(tmp_path))[0]
    assert difference < TOLERANCE
    assert moved > 0.05


@pytest.mark.slow
def test_the_best_weights_are_what_keras_2_saves(tf_keras: Path, tmp_path: Path) -> None:  # noqa: F811
    assert there(tf_keras, 1, "best_kept", str(tmp_path))[0] == [True] * 6


@pytest.mark.slow
def test_workers_train_an_embedding_together_in_keras_2(tf_keras: Path) -> None:  # noqa: F811
    for found in there(tf_keras, 2, "together", "adam")[:2]:
        assert found["loss"] < 0.45  # it begins at 0.5, the loss of a network that returns 0
        assert found["equal"]
        assert found["steps"] == 120


@pytest.mark.slow
def test_the_same_in_tensorflow_2_15(old_python: Path, tmp_path: Path) -> None:  # noqa: F811
    difference, _, moved = there(tmp_path, 1, "same_as_plain", "momentum", python=old_python)[0]
    assert difference < TOLERANCE
    assert moved > 0.05
