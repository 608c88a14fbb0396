"""Keras 3 training on real ranks, and `make train`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from marks import slow
from ranks import ROOT, run
from test_tf_optimizers import tf_keras as tf_keras
from test_tf_ranks import run_checks


@pytest.mark.parametrize(("ranks", "launcher"), [slow(2, "mpirun"), (2, "tcp"), slow(3, "tcp")])
def test_training_is_that_of_one_process(ranks: int, launcher: str) -> None:
    run_checks("tf_keras3.py", ranks, launcher=launcher)


def test_a_loaded_model_trains_on_or_is_warned_of() -> None:
    run_checks("tf_loaded_models.py", 2, arguments=[""])


@pytest.mark.parametrize("ranks", [slow(1), 2, slow(3)])
def test_train_steps_may_reduce_by_themselves(tf_keras: Path, ranks: int) -> None:
    run_checks("tf_own_reductions.py", ranks, arguments=[str(tf_keras)])


@pytest.mark.slow
def test_a_loaded_model_of_keras_2_trains_on_or_is_warned_of(tf_keras: Path) -> None:
    run_checks("tf_loaded_models.py", 3, arguments=[str(tf_keras)])


@pytest.mark.parametrize("ranks", [2, slow(3)])
def test_variables_whose_gradients_are_their_next_values_get_the_greatest(ranks: int) -> None:
    run_checks("tf_overwritten.py", ranks)


def train(
    ranks: int, folder: Path, *arguments: str, launcher: str = "mpirun"
) -> tuple[int | None, dict[str, Any]]:
    path = folder / "summary.json"
    program, words = ROOT / "tests" / "train.py", ["--json", str(path), *arguments]
    is_warm = launcher == "tcp"
    outcome = run(program, ranks, launcher=launcher, arguments=words, preloaded=is_warm, deadline_s=300)
    assert path.exists(), outcome.text()
    return outcome.ranks[0].code, json.loads(path.read_text())


@pytest.mark.parametrize("ranks", [slow(1), slow(2)])
def test_the_digits_are_learned(tmp_path: Path, ranks: int) -> None:
    code, summary = train(ranks, tmp_path)
    assert code == 0, summary
    assert summary["ok"]
    assert summary["command"] == "train"
    assert summary["ranks"] == ranks
    assert summary["test_accuracy"] >= 0.95
    assert summary["weights_equal"]
    assert len(summary["weights_sha256"]) == 64
    assert summary["buckets"] >= 1
    assert summary["batches"] > 100
    assert summary["determinism"] in ("ranks", "run", "canonical")
    assert ranks == 1 or summary["bytes"] > 10_000_000


def test_without_the_wrapper_the_weights_differ(tmp_path: Path) -> None:
    code, summary = train(2, tmp_path, "--no-wrap", "--epochs", "2", launcher="tcp")
    assert code != 0
    assert not summary["ok"]
    assert not summary["weights_equal"]
