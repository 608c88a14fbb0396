"""Asynchronous parameter servers through TensorFlow: ops, and Keras 3's `fit`."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from marks import slow
from ranks import ROOT, Outcome, Run, run

PROGRAMS = ROOT / "tests" / "multiprocess"
KERAS = PROGRAMS / "ps_async_keras.py"

# The order of sums of a few floats differs, over 16 to 24 steps. Weights move much farther than that.
TOLERANCE = 2e-6


def keras(workers: int, servers: int, task: str, *arguments: str, **options: Any) -> Outcome:
    """Runs a task of ps_async_keras.py. 0 servers: colocated ones."""
    words = [task, str(servers or "colocated"), *arguments]
    return run(KERAS, workers + servers, arguments=words, preloaded=True, deadline_s=240, **options)


def test_tensors_are_pushed_and_pulled_by_ops():
    found = run(PROGRAMS / "ps_ops.py", 3, preloaded=True, deadline_s=120).succeeded()[0]
    assert len(found) == 9, found


@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    [
        ("adam", "float32"),
        slow("nesterov", "float64"),
        ("global_clipnorm", "float32"),
        slow("clipnorm", "float64"),
        slow("adam", "mixed_float16"),
        slow("adam", "float64"),
        *[slow(name, "float32") for name in ("sgd", "momentum", "nesterov", "amsgrad", "adamw", "rmsprop")],
        slow("adagrad", "float32"),
    ],
)
def test_one_worker_trains_as_plain_keras_in_every_step(optimizer, dtype):
    difference, moved = keras(1, 1, "same_as_plain", optimizer, dtype).succeeded()[0]
    assert difference < TOLERANCE
    assert moved > 0.1


@pytest.mark.parametrize("optimizer", ["adam", slow("rmsprop"), slow("amsgrad"), slow("momentum")])
def test_a_training_goes_on_from_files_of_keras_and_to_them(optimizer, tmp_path):
    difference, moved = keras(1, 2, "resumed", optimizer, str(tmp_path)).succeeded()[0]
    assert difference < TOLERANCE
    assert moved > 0.1


def test_files_have_what_servers_have_or_what_early_stopping_restores(tmp_path):
    assert keras(1, 1, "set_after_fit", str(tmp_path)).succeeded()[0] == [True] * 10


def test_a_loop_of_ones_own_saves_what_it_has_set_and_keeps_its_count(tmp_path):
    found = keras(1, 1, "set_in_a_loop", str(tmp_path)).succeeded()[0]
    assert found == {"found": [True] * 8, "iterations": [5, 7]}


# Momentum also moves rows without a gradient. The worker sees such a move only when it pushes the row again,
# later than plain Keras does. The training therefore takes another path to the same end.
@pytest.mark.parametrize(
    ("optimizer", "tolerance"),
    [
        ("global_clipnorm", 1e-5),
        slow("sgd", 1e-5),
        slow("clipnorm", 0.2),
        slow("adagrad", 1e-5),
        slow("momentum", 0.2),
        slow("adam", 0.2),
    ],
)
def test_of_an_embedding_rows_alone_travel(optimizer, tolerance):
    difference, moved, bytes_received = keras(1, 2, "embedding", optimizer).succeeded()[0]
    assert difference < tolerance * moved
    assert moved > 1e-3
    # The worker sends the initial values, and in each of 16 steps 48 of 2000 rows with their numbers.
    assert 1 < bytes_received < 1.6


@pytest.mark.parametrize(
    ("workers", "servers", "launcher"),
    [(2, 1, "tcp"), slow(2, 2, "mpirun"), slow(3, 2, "tcp"), slow(3, 1, "mpirun"), slow(2, 0, "tcp")],
)
def test_workers_learn_digits_together(workers, servers, launcher, tmp_path):
    more = {} if launcher == "tcp" else {"launcher": launcher}
    epochs = 20
    reports = keras(workers, servers, "digits", str(epochs), str(tmp_path), **more).succeeded()
    assert reports[workers:] == [None] * servers
    for found in reports[:workers]:
        assert found["accuracy"] > 0.95
        # Single runs differ by half of this tolerance.
        assert found["accuracy"] > reports[0]["of one process"] - 0.04
        assert found["equal"]
        # Each push of each worker is one update.
        assert found["iterations"] == sum(one["mine"] for one in reports[:workers])


def test_models_with_optimizers_of_their_own_train_in_turn():
    assert keras(1, 2, "two_optimizers").succeeded()[0] < TOLERANCE


@pytest.mark.parametrize("optimizer", ["adam", slow("momentum")])
def test_callbacks_set_the_learning_rate(optimizer):
    difference, moved, rate = keras(1, 1, "rates_of_callbacks", optimizer).succeeded()[0]
    assert difference < TOLERANCE
    assert moved > 0.1
    assert rate < 1e-3


def test_what_servers_cannot_do_is_said_when_it_is_asked_for():
    errors = keras(1, 1, "refused").succeeded()[0]
    expected = [
        "an optimizer of class Lion cannot be applied. Servers apply Keras' SGD, Adam",
        "SGD has global_clipnorm=1.0: no server sees all gradients",
        "DistributedOptimizer(op=Sum) has no meaning with asynchronous parameter servers",
        "DistributedOptimizer(backward_passes_per_step=2)",
        "class AdadeltaOptimizer cannot be applied. Servers apply GradientDescentOptimizer, Momentum",
        "this SGD, a part of it or the optimizer around it is wrapped already",
        "cannot change after its first step: the servers count by the first schedule",
        "is at the servers already, with the optimizer of its first step: continue with that optimizer",
        "gradients are not reduced with asynchronous parameter servers",
    ]
    assert len(errors) == len(expected), errors
    for text, part in zip(errors, expected):
        assert part in text


FILES = """
import sys
import keras, numpy as np, rdmacoll
from ranks import report
mode, file = sys.argv[1:]
rdmacoll.init(**({"mode": "ps", "sync": False, "num_servers": 2} if mode == "ps" else {}))
inputs = np.random.default_rng(3).normal(size=(64, 8)).astype(np.float32)
targets = inputs.sum(axis=1)
if mode == "ps":
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
    model.compile(optimizer=rdmacoll.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
else:
    model = keras.models.load_model(file)
    model.compile(optimizer=rdmacoll.DistributedOptimizer(model.optimizer), loss="mse")
begin, steps = [weight.ravel().tolist() for weight in model.get_weights()], int(model.optimizer.iterations)
model.fit(inputs, targets, batch_size=16, verbose=0)
rdmacoll.engine.barrier()
if rdmacoll.rank() == 0 and mode == "ps":
    model.save(file)
    steps = int(keras.models.load_model(file).optimizer.iterations)
end = [weight.ravel().tolist() for weight in model.get_weights()]
report({"begin": begin, "end": end, "steps": steps}, 0)
"""


def test_a_file_of_a_run_with_servers_goes_on_in_allreduce_mode(tmp_path):
    file = str(tmp_path / "model.keras")
    saved = run(FILES, 4, arguments=["ps", file], preloaded=True, deadline_s=200).succeeded()[0]
    found = run(FILES, 2, arguments=["allreduce", file], preloaded=True, deadline_s=200).succeeded()[0]
    assert found["begin"] == saved["end"]
    assert found["steps"] == saved["steps"] == 2 * 4  # the servers count the steps of both workers
    assert found["end"] != found["begin"]


def test_keras_trains_on_without_a_worker_that_dies():
    outcome = keras(3, 1, "planned_failure", "worker")
    assert [rank.code for rank in outcome.ranks] == [0, 7, 0, 0], outcome.text()
    for rank in (0, 2):
        assert outcome.ranks[rank].report == {"steps_after_loss": 8, "error": ""}, outcome.text()
    assert "The server goes on with 2 workers" in outcome.ranks[3].output, outcome.text()


def test_a_server_that_dies_ends_fit_with_its_name():
    with Run(KERAS, 4, arguments=["planned_failure", "2", "server"], preloaded=True) as started:
        started.wait_for_reports([0, 1])
        os.kill(started.pid(3), signal.SIGKILL)
        outcome = started.finish(60)
    for worker in outcome.ranks[:2]:
        assert worker.code == 0, outcome.text()
        assert worker.report["error"].startswith("RankFailedError: server 1 (rank 3, "), outcome.text()
        assert "the variables that it stored are lost" in worker.report["error"]


def test_ctrl_c_ends_a_fit_that_is_held_back_by_a_slower_worker():
    with Run(KERAS, 3, arguments=["held_back", "1"], preloaded=True) as started:
        started.wait_for_reports([0, 1])
        time.sleep(1)  # the worker reaches the limit by then
        os.kill(started.pid(0), signal.SIGINT)
        outcome = started.finish(60)
    assert [rank.code for rank in outcome.ranks] == [0, 0, 0], outcome.text()
    assert outcome.ranks[0].report == {"class": "KeyboardInterrupt"}, outcome.text()
    assert outcome.ranks[1].report["class"] == "RankFailedError", outcome.text()
