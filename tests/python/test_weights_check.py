"""Wrapped optimizers and check_weights() check that the weights of all ranks are equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from marks import slow
from ranks import ROOT, run
from test_tf_optimizers import path_of, tf_keras as tf_keras
from test_tf_ranks import run_checks
from test_tf_versions import old_python as old_python, run_in_old_python

from rdmacoll._abi.library import load
from rdmacoll._abi.settings import Values
from rdmacoll.errors import ConfigError
from rdmacoll.ops._baselines import fingerprint_of
from rdmacoll.optimizer.comparison import _distance
from rdmacoll.optimizer.gradient_equality import _projection
from rdmacoll.optimizer.update_check import next_due


def test_ranks_that_come_apart_are_found_with_keras_3() -> None:
    run_checks("tf_weights.py", 3, arguments=["3"])


@pytest.mark.slow
def test_ranks_that_come_apart_in_fit_are_found_with_keras_3() -> None:
    run_checks("tf_weights_in_fit.py", 3, arguments=["3"])


def test_ranks_that_come_apart_are_found_with_tensorflow_1() -> None:
    run_checks("tf_weights_modes.py", 2, arguments=["3"])


def test_ranks_that_come_apart_are_found_with_wrapped_tapes() -> None:
    run_checks("tf_weights_tapes.py", 3, arguments=["3"])


def test_updates_by_plain_optimizers_beside_wrapped_ones_are_noticed() -> None:
    run_checks("tf_plain_updates.py", 2, arguments=["3"])


def test_programs_that_broadcast_and_reduce_nothing_are_warned() -> None:
    run_checks("tf_plain_alone.py", 2, arguments=["3"])


# Rank 1 forgets to wrap, and ends when its steps are done.
FORGETFUL = """
import numpy as np, keras, tensorflow as tf, rdmacoll
from ranks import report
rdmacoll.init()
rank = rdmacoll.rank()
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1)
rdmacoll.broadcast_variables(model.variables, 0)
if rank == 0 and "WAY" != "tape":
    optimizer = rdmacoll.DistributedOptimizer(optimizer)
x, y = np.ones((4, 3), np.float32) * rank, np.ones((4, 1), np.float32)
try:
    if "WAY" == "fit":
        model.compile(optimizer, "mse")
        model.fit(x, y, verbose=0)
    else:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        if rank == 0 and "WAY" == "tape":
            tape = rdmacoll.DistributedGradientTape(tape)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    report("left")
except Exception as error:
    report(str(rdmacoll.error_from(error) or error))
"""


@pytest.mark.parametrize("way", ["optimizer", slow("tape"), "fit"])
def test_a_rank_that_forgets_to_wrap_is_named_with_the_cure(way: str) -> None:
    outcome = run(FORGETFUL.replace("WAY", way), 2, deadline_s=200, preloaded=True)
    assert outcome.reports[1] == "left", outcome.text()
    cause = "fit had trained model" if way == "fit" else "a plain SGD had updated"
    assert f"it left after {cause}" in outcome.reports[0], outcome.text()
    assert "there by gradients of one rank alone: wrap " in outcome.reports[0], outcome.text()


def of_keras_2(folder: Path, program: str, *arguments: str) -> list[list[str]]:
    env = {"PYTHONPATH": path_of(folder), "TF_USE_LEGACY_KERAS": "1"}
    path = ROOT / "tests" / "multiprocess" / program
    outcome = run(path, 3, arguments=arguments, env=env, preloaded=True, deadline_s=900)
    return [report["done"] for report in outcome.succeeded()]


@pytest.mark.parametrize("kind", ["legacy", slow("2")])
def test_fit_with_keras_2_is_compared(tf_keras: Path, kind: str) -> None:
    for done in of_keras_2(tf_keras, "tf_weights.py", kind, "check_fit"):
        names = ["is_compared_after_its_first_update_and_each_epoch", "may_broadcast_behind_its_first_batch"]
        assert done == [f"check_fit_{name}" for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["legacy", "2"])
def test_ranks_that_come_apart_are_found_with_keras_2(tf_keras: Path, kind: str) -> None:
    for done in of_keras_2(tf_keras, "tf_weights.py", kind):
        assert len(done) > 8


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["legacy", "2"])
def test_ranks_that_come_apart_in_fit_are_found_with_keras_2(tf_keras: Path, kind: str) -> None:
    for done in of_keras_2(tf_keras, "tf_weights_in_fit.py", kind):
        assert len(done) > 8


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["legacy", "2"])
@pytest.mark.parametrize(
    "program", ["tf_weights_modes.py", "tf_weights_tapes.py", "tf_plain_updates.py", "tf_plain_alone.py"]
)
def test_ranks_that_come_apart_in_loops_are_found_with_keras_2(
    tf_keras: Path, program: str, kind: str
) -> None:
    for done in of_keras_2(tf_keras, program, kind):
        assert len(done) > 5


@pytest.mark.slow
def test_ranks_that_come_apart_are_found_without_eager_execution(tf_keras: Path) -> None:
    for done in of_keras_2(tf_keras, "tf_weights_graph.py"):
        assert len(done) == 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["legacy", "2"])
@pytest.mark.parametrize("program", ["tf_weights.py", "tf_plain_updates.py"])
def test_ranks_that_come_apart_are_found_with_tensorflow_2_15(
    old_python: Path, program: str, kind: str
) -> None:
    for done in run_in_old_python(old_python, program, 3, kind):
        assert len(done) > 8


def test_with_asynchronous_servers_there_is_nothing_to_compare() -> None:
    program = """
        import numpy as np, keras, rdmacoll
        from ranks import report
        rdmacoll.init(mode="ps", sync=False)
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        model.compile(rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
        x = np.full((4, 2), rdmacoll.rank(), np.float32)
        model.fit(x, x[:, :1], batch_size=1, epochs=2, verbose=0)
        try:
            rdmacoll.check_weights(model)
        except rdmacoll.ConfigError as error:
            report(str(error))
    """
    reports = run("\n".join(line[8:] for line in program.splitlines()), 3, preloaded=True).succeeded()
    assert all("asynchronous parameter servers" in said for said in reports[:2])


def test_the_setting_takes_words_and_numbers() -> None:
    library = load()
    for given, wanted in {"First": "first", "EPOCH": "epoch", "off": "off", "0100": "100"}.items():
        values = Values(library.settings(f"RDMACOLL_CHECK_WEIGHTS={given}"))
        assert values.text("RDMACOLL_CHECK_WEIGHTS") == wanted
    for wrong in ("0", "-1", "1.5", "10k", "never", "1e3"):
        with pytest.raises(ConfigError, match="first, epoch, off, or a number of updates"):
            library.settings(f"RDMACOLL_CHECK_WEIGHTS={wrong}")
    tolerance = Values(library.settings("RDMACOLL_CHECK_WEIGHTS_TOLERANCE=0.25"))
    assert tolerance.number("RDMACOLL_CHECK_WEIGHTS_TOLERANCE") == 0.25


def test_the_next_comparison_is_the_root_s_epoch() -> None:
    assert [next_due("epoch", count, True, remaining) for count, remaining in ((1, 9), (10, 10))] == [10, 20]
    # The number doubles while the end of the root's epoch is unknown, and until a comparison counts.
    assert [next_due("epoch", count, True, 0) for count in (1, 2, 4)] == [2, 4, 8]
    assert [next_due("epoch", count, False, 100) for count in (1, 2, 4)] == [2, 4, 8]
    assert [next_due("7", count, True, 100) for count in (1, 7, 13)] == [7, 14, 14]
    assert next_due("first", 1, True, 5) > 2**60


def test_every_byte_counts_in_a_fingerprint() -> None:
    generator = np.random.default_rng(7)
    for size in (1, 7, 8, 31, 32, 33, 100):
        array = generator.integers(0, 256, size, dtype=np.uint8)
        found = {fingerprint_of(array)}
        for at in range(size):
            for bit in range(8):
                changed = array.copy()
                changed[at] ^= 1 << bit
                found.add(fingerprint_of(changed))
        assert len(found) == 1 + 8 * size
        assert fingerprint_of(np.append(array, np.uint8(0))) not in found
    # The signs of two numbers, which are the highest bits of words.
    values = np.ones(8, np.float64)
    signs = [np.where(np.isin(range(8), pair), -1.0, 1.0) for pair in ((0, 4), (1, 5), (0, 1))]
    assert len({fingerprint_of(one) for one in (values, *signs)}) == 4


def test_the_distance_of_arrays_knows_numbers_that_are_none() -> None:
    nan, inf = np.nan, np.inf
    one = np.array([1.0, nan, inf, -4.0])
    assert _distance(one, one) == (0.0, 4.0)
    assert _distance(np.array([1.5, nan, inf, -4.0]), one) == (0.5, 4.0)
    assert _distance(np.array([nan, nan, inf, -4.0]), one)[0] == inf
    assert _distance(np.array([1.0, nan, -inf, -4.0]), one)[0] == inf
    assert _distance(np.zeros(0), np.zeros(0)) == (0.0, 0.0)


def test_every_place_counts_in_a_gradient_s_projection() -> None:
    generator = np.random.default_rng(7)
    values = generator.standard_normal(5000)
    found = [float(_projection(tf.constant(values)))]
    pairs = [(0, 1), (0, 1024), (1023, 1024), (17, 17 + 2 * 1024), (4998, 4999)]
    pairs += [tuple(generator.choice(5000, 2, replace=False)) for _ in range(20)]
    for one, other in pairs:
        swapped = values.copy()
        swapped[[one, other]] = values[[other, one]]
        found.append(float(_projection(tf.constant(swapped))))
    apart = np.abs(np.subtract.outer(found, found)) + np.eye(len(found))
    assert apart.min() > 1e-8
    assert float(_projection(tf.zeros((0,), tf.float64))) == 0
