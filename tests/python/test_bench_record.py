"""`rdmacoll bench record`: the sizes of trainings, and what cannot be recorded."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from command_lines import command_line
from marks import slow
from ranks import ROOT, run
from test_by_hand import ByHand

from rdmacoll import ps
from rdmacoll.benchmarks.rpc import payloads, record
from rdmacoll.cli import main

TRAINS = """
import json, os, sys
import numpy as np, rdmacoll
import keras
assert sys.argv[1:] == ["--epochs", "1"], sys.argv
rdmacoll.init(**json.loads(os.environ["RANKS_ARGUMENTS"]))
keras.utils.set_random_seed(1)  # ranks that begin with other weights train apart, which is an error
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(5), keras.layers.Dense(2)])
model.compile(rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
model.fit(np.ones((8, 3), np.float32), np.ones((8, 2), np.float32), 4, 1, 0)
rdmacoll.shutdown()
"""

TRAINS_V1 = """
import json, os
import numpy as np, rdmacoll
import tensorflow.compat.v1 as tf
rdmacoll.init(**json.loads(os.environ["RANKS_ARGUMENTS"]))
with tf.Graph().as_default(), tf.Session() as session:
    made = [tf.get_variable(f"w{i}", shape) for i, shape in enumerate([(3, 5), (5,), (5, 2), (2,)])]
    plain, loss = tf.train.GradientDescentOptimizer(0.1), sum(tf.reduce_sum(one * one) for one in made)
    step = rdmacoll.DistributedOptimizer(plain).minimize(loss)
    session.run(tf.global_variables_initializer())
    session.run(step)
rdmacoll.shutdown()
"""
SUM, SERVED = {"mode": "ps"}, {"mode": "ps", "sync": False}


@pytest.mark.parametrize(
    ("text", "ranks", "arguments", "launcher"),
    [
        (TRAINS, 1, {}, "tcp"),
        (TRAINS, 2, SERVED, "tcp"),
        (TRAINS_V1, 2, SERVED, "tcp"),
        slow(TRAINS, 2, {}, "mpirun"),
        slow(TRAINS, 2, SUM, "mpirun"),
    ],
)
def test_a_training_is_recorded_and_its_sizes_can_be_replayed(tmp_path, text, ranks, arguments, launcher):
    program, sizes = tmp_path / "train.py", tmp_path / "sizes.json"
    program.write_text(text)
    outcome = run(
        ROOT / "rdmacoll" / "cli" / "main.py",
        ranks,
        launcher=launcher,
        # Options behind the program belong to the program.
        arguments=["bench", "record", "--out", str(sizes), str(program), "--epochs", "1"],
        env={"RANKS_ARGUMENTS": json.dumps(arguments)},
        deadline_s=200,
        preloaded=launcher == "tcp",
    )
    outcome.succeeded()
    output = outcome.ranks[0].output
    found = json.loads(sizes.read_text())
    assert sorted(tensor["bytes"] for tensor in found["tensors"]) == [8, 20, 40, 60]
    assert len({tensor["name"] for tensor in found["tensors"]}) == 4
    assert found["lists"] == 1
    assert "4 tensors, 128 bytes" in output
    (payload,) = payloads.payloads_of(str(sizes), payloads.Recipe())
    assert payload.total == 128


PUSHES = """
import numpy as np, rdmacoll
from rdmacoll import ps
rdmacoll.init(argv=True, sync=False)
ps.declare({"w": np.zeros(10)}, ps.Rule("optimizer=sgd\\ninitial_learning_rate=1\\n"))
ps.exchange({"w": np.ones(10)})
rdmacoll.shutdown()
"""


def test_by_hand_worker_0_alone_writes_what_was_recorded(tmp_path):
    program, hand = tmp_path / "train.py", ByHand(2, 1)
    program.write_text(PUSHES)

    def words(place: int) -> list[str]:
        files = ["--out", str(tmp_path / f"sizes-{place}.json"), "--json", str(tmp_path / f"{place}.json")]
        return ["bench", "record", *files, str(program), *hand.flags(place)]

    with hand.run(
        tmp_path, arguments_of={place: words(place) for place in range(3)}, preloaded=True
    ) as started:
        outcome = started.finish(200)
    outcome.succeeded()
    assert ["1 tensor, 80 bytes" in rank.output for rank in outcome.ranks] == [True, False, False]
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["0.json", "sizes-0.json"]


@pytest.fixture
def without_tensorflow(monkeypatch):
    """Hides TensorFlow. Its import would take seconds, and would leave variables behind for later tests."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)


@pytest.mark.usefixtures("without_tensorflow")
def test_exchanges_with_servers_are_recorded(monkeypatch):
    monkeypatch.setattr(ps, "exchange", lambda gradients, out=None: out or gradients)
    with record.recording() as seen:
        ps.exchange({"small": np.zeros(1)})
        ps.exchange({"a": np.zeros((2, 3), np.float32), "b": np.zeros(5)})
        values = {"a": np.ones((2, 3), np.float32)}
        assert ps.exchange({"a": np.zeros((2, 3), np.float32)}, out=values) is values
    assert seen.tensors == [{"name": "a", "bytes": 24}, {"name": "b", "bytes": 40}]
    assert seen.lists == 3


def test_the_sizes_of_a_known_model_need_no_training(tmp_path):
    sizes = tmp_path / "resnet50.json"
    code, found, output = command_line(
        tmp_path, "bench", "record", "--model", "resnet50", "--out", str(sizes)
    )
    assert code == 0, output
    (payload,) = payloads.payloads_of(str(sizes), payloads.Recipe())
    assert (len(payload.sizes), payload.total) == (161, 102_228_128)
    assert found["tensors"] == json.loads(sizes.read_text())["tensors"]


@pytest.mark.usefixtures("without_tensorflow")
@pytest.mark.parametrize("words", [[], ["--model", "resnet50", "train.py"], ["nowhere.py"]])
def test_what_cannot_be_recorded_is_wrong_usage(tmp_path, words):
    result = CliRunner().invoke(main.commands, ["bench", "record", "--out", str(tmp_path / "x"), *words])
    assert result.exit_code == 2, result.output


@pytest.mark.usefixtures("without_tensorflow")
def test_a_program_without_gradients_is_said(tmp_path):
    program, sizes = tmp_path / "nothing.py", str(tmp_path / "x")
    program.write_text("import sys\nsys.exit(0)\n")
    result = CliRunner().invoke(main.commands, ["bench", "record", "--out", sizes, str(program)])
    assert result.exit_code == 1
    assert "reduced no gradients" in result.output


@pytest.mark.usefixtures("without_tensorflow")
def test_what_a_program_that_fails_has_shown_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(ps, "exchange", lambda gradients, out=None: out or gradients)
    program, sizes = tmp_path / "fails.py", tmp_path / "x"
    program.write_text(
        "import numpy, sys\nfrom rdmacoll import ps\nps.exchange({'a': numpy.ones(2)})\nsys.exit(3)\n"
    )
    result = CliRunner().invoke(main.commands, ["bench", "record", "--out", str(sizes), str(program)])
    assert result.exit_code == 1
    assert "ended with 3" in result.output
    assert json.loads(sizes.read_text())["tensors"] == [{"name": "a", "bytes": 16}]
