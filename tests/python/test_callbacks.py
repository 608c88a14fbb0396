"""Callbacks of `fit`: their decisions, and real ranks in every Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from marks import slow
from ranks import ROOT, run
from test_tf_optimizers import tf_keras  # noqa: F401
from test_tf_ranks import run_checks
from test_tf_versions import old_python, run_in_old_python  # noqa: F401

from rdmacoll.errors import ConfigError, MismatchError
from rdmacoll.keras.callbacks import agreement
from rdmacoll.keras.callbacks.metrics import averages


@pytest.mark.slow
def test_keras_3_begins_equal_on_three_ranks() -> None:
    run_checks("tf_callbacks.py", 3, first="tf_callback_passes.py", arguments=["3"])


@pytest.mark.slow
def test_keras_2_begins_equal_on_two_ranks(tf_keras: Path) -> None:  # noqa: F811
    run_checks("tf_callbacks.py", 2, first="tf_callback_passes.py", arguments=[str(tf_keras)])


@pytest.mark.slow
def test_keras_of_tensorflow_2_15_begins_equal(old_python: Path) -> None:  # noqa: F811
    for done in run_in_old_python(old_python, "tf_callbacks.py", 2, "2"):
        assert len(done) == 22


# Each check costs seconds. The usual run tries these checks, and the slow run tries all of them.
# With Keras 2, the sample of test_situations.py tests restores.
FIRST = [
    "check_half_filled_sums_come_from_the_root_alone",
    "check_a_model_that_is_never_built_trains_as_in_one_process",
    "check_a_callback_behind_ours_restores_on_one_rank_alone",
    "check_rank_0_alone_loads_a_training",
    "check_a_model_without_reductions_is_an_error",
    "check_an_optimizer_beside_wrapped_ones_is_an_error",
    "check_a_training_without_the_wrapped_optimizer_is_an_error",
    "check_a_model_that_is_traced_before_its_optimizer_is_wrapped_is_traced_again",
    "check_a_tape_with_a_plain_optimizer_is_legal",
    "check_an_optimizer_beside_the_model_goes_on_from_one_rank",
]


@pytest.mark.parametrize(
    ("library", "checks"),
    [("3", FIRST), ("2", ["check_steps_per_execution_and_one_callback_alone"])],
)
def test_ranks_begin_equal(tf_keras: Path, library: str, checks: list[str]) -> None:  # noqa: F811
    first = "3" if library == "3" else str(tf_keras)
    program = ROOT / "tests" / "multiprocess" / "tf_callbacks.py"
    outcome = run(program, 2, arguments=[first, *checks], deadline_s=900, preloaded=True)
    assert [report["done"] for report in outcome.succeeded()] == [checks] * 2


STOPPING = """
import os
import numpy as np, keras, rdmacoll
from ranks import report
from rdmacoll.keras.callbacks import BroadcastGlobalVariablesCallback
rdmacoll.init()
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
model.compile(rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
stop = keras.callbacks.EarlyStopping("loss", patience=2 if rdmacoll.rank() == 1 else 99)
data = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)
try:
    model.fit(*data, 4, 50, 0, callbacks=[BroadcastGlobalVariablesCallback(0), stop])
except Exception as error:
    report(str(rdmacoll.error_from(error)))
else:
    report("left")
    END
"""


# Only rank 1 has a loss that is no number, and no callback of rdmacoll takes part.
STOPPED_BY_NAN = """
import numpy as np, keras, rdmacoll
from ranks import report
rdmacoll.init()
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
model.compile(rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
inputs, outputs = np.ones((32, 3), np.float32), np.ones((32, 1), np.float32)
outputs[9] = np.nan if rdmacoll.rank() == 1 else 1.0
stop = [keras.callbacks.TerminateOnNaN()] if rdmacoll.rank() == 1 else []
try:
    model.fit(inputs, outputs, 4, 50, 0, callbacks=stop, shuffle=False)
except Exception as error:
    report(str(rdmacoll.error_from(error)))
else:
    report("left")
"""


# Rank 1 has no batch. Keras begins one before it finds that.
EMPTY = """
import numpy as np, keras, tensorflow as tf, rdmacoll
from ranks import report
from rdmacoll.keras.callbacks import BroadcastGlobalVariablesCallback
rdmacoll.init()
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
model.compile(rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
data = tf.data.Dataset.from_tensor_slices((np.ones((8, 3)), np.ones((8, 1)))).batch(4)
validation = (np.ones((8, 3)), np.ones((8, 1)))
try:
    model.fit(
        data.take(0) if rdmacoll.rank() == 1 else data,
        verbose=0,
        validation_data=validation,
        callbacks=[BroadcastGlobalVariablesCallback(0)],
    )
except Exception as error:
    report(str(rdmacoll.error_from(error) or error))
    raise
"""


def test_a_rank_without_a_batch_is_an_error_with_the_cure() -> None:
    outcome = run(EMPTY, 2, deadline_s=60, preloaded=True)
    message = "rank 1 got no batch in fit: its data is empty. Give every rank at least one batch."
    assert all(message in report for report in outcome.reports), outcome.text()


@pytest.mark.parametrize("end", ["pass", slow("rdmacoll.shutdown()")])
def test_a_rank_that_a_callback_stops_is_named_with_the_cure(end: str) -> None:
    outcome = run(STOPPING.replace("END", end), 2, deadline_s=200, preloaded=True)
    assert outcome.reports[1] == "left", outcome.text()
    message = "it left after EarlyStopping had stopped fit after epoch 3: put MetricAverageCallback before it"
    assert message in outcome.reports[0], outcome.text()


def test_the_callback_that_stops_a_rank_is_named_without_callbacks_of_rdmacoll() -> None:
    outcome = run(STOPPED_BY_NAN, 2, deadline_s=200, preloaded=True)
    assert outcome.reports[1] == "left", outcome.text()
    message = "it left after TerminateOnNaN had stopped fit in epoch 1: it sees its own rank's loss alone"
    assert message in outcome.reports[0], outcome.text()


def test_means_are_those_of_one_metric() -> None:
    assert averages({0: {"top_5": 1.0, "top_10": 2.0}, 1: {"top_10": 4.0, "top_5": 3.0}})[0] == {
        0: {"top_5": 2.0, "top_10": 3.0},
        1: {"top_5": 2.0, "top_10": 3.0},
    }
    means, missing = averages({0: {"auc": 1.0, "auc_1": 2.0}, 1: {"auc_1": 5.0}, 4: {"auc": 5.0}})
    assert means == {0: {}, 1: {}, 4: {}}
    assert missing == {"auc": "auc (fewer on ranks 1, 4)"}


KERNEL, BIAS = {"model/0": "float32 (2, 3)"}, {"model/1": "float32 (3,)"}
Group = tuple[Any, dict[str, str], dict[str, str]]


def group(variables: Any = None, built_for: Any = None, **settings: str) -> Group:
    return built_for, variables or {}, settings


def test_slots_are_built_for_what_another_rank_has() -> None:
    built = {"model": group(), "optimizer": group(built_for=["model/0", "model/1"])}
    plain = {"model": group(), "optimizer": group()}
    wanted = {"optimizer": ["model/0", "model/1"]}
    assert agreement.slots_to_build({0: built, 1: plain}) == wanted
    assert agreement.slots_to_build({0: plain, 1: built, 2: {"model": group()}}) == wanted
    assert agreement.slots_to_build({0: built, 1: built}) == {}


def test_the_first_variable_that_differs_is_named() -> None:
    here, there = {"model": group({**KERNEL, **BIAS})}, {"model": group(KERNEL)}
    labels = {0: {"model: model/0": "net/kernel", "model: model/1": "net/bias"}, 1: {}, 2: {}}
    message = r"net/bias \(model: model/1\) is float32 \(3,\) on rank 0 and missing on ranks 1, 2"
    with pytest.raises(MismatchError, match=message):
        agreement.check_equal({0: here, 1: there, 2: there}, labels)
    other = {"model": group({"model/0": "float32 (2, 4)"})}
    message = r"net/kernel .* is float32 \(2, 4\) on ranks 0, 2 and float32 \(2, 3\) on rank 1"
    with pytest.raises(MismatchError, match=message):
        agreement.check_equal({0: other, 1: there, 2: other}, labels)
    agreement.check_equal({0: here, 1: here}, labels)


def test_an_optimizer_that_differs_is_named() -> None:
    first, second = {"optimizer": group(beta="0.8")}, {"optimizer": group(beta="0.9")}
    with pytest.raises(
        MismatchError, match=r"beta \(optimizer\) is 0.8 on rank 0 and 0.9 on ranks 1, 2, and"
    ):
        agreement.check_equal({0: first, 1: second, 2: second}, {})
    first, second = ({"optimizer": group(built_for=order)} for order in (["model/0"], ["model/1"]))
    with pytest.raises(MismatchError, match="optimizer is built for other variables on rank 1"):
        agreement.check_equal({0: first, 1: second}, {})


def test_variables_that_each_rank_has_changed_by_itself_are_named() -> None:
    agreement.check_unreduced({0: {"model/0": 7}, 1: {"model/0": 7}, 2: {"model/1": 9}}, {})
    message = "given net/kernel different values on rank 0 and ranks 1, 2, and no gradient of it was reduced"
    with pytest.raises(MismatchError, match=message):
        agreement.check_unreduced(
            {0: {"model/0": 7}, 1: {"model/0": 8}, 2: {"model/0": 8}}, {"model/0": "net/kernel"}
        )


def test_where_fit_begins_is_agreed_on() -> None:
    agreement.check_begin({0: 3, 1: 3})
    agreement.check_begin({0: None, 1: None})
    with pytest.raises(ConfigError, match="begins at epoch 2 on rank 0 and begins at epoch 0 on ranks 1, 2:"):
        agreement.check_begin({0: 2, 1: 0, 2: 0})
    agreement.check_tuning({0: False, 1: False})
    with pytest.raises(ConfigError, match=r'steps_per_execution="auto" on ranks 1, 2: .* the same number'):
        agreement.check_tuning({0: False, 1: True, 2: True})
    with pytest.raises(
        ConfigError, match="rank 2 cannot create the optimizer variables that other ranks have restored: Adam"
    ):
        agreement.check_problems({0: "", 2: "Adam.build: x"})


@pytest.mark.parametrize(("ranks", "library"), [slow(1, "3"), (2, "3"), slow(2, "2")])
def test_learning_rates_change_as_horovods(tf_keras: Path, ranks: int, library: str) -> None:  # noqa: F811
    run_checks("tf_schedules.py", ranks, arguments=["3" if library == "3" else str(tf_keras)])
