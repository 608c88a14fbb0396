"""Checkpoints of asynchronous servers, and runs that go on from them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ranks import run

LIFE = """
import sys
import numpy as np
import rdmacoll
from ranks import report
from rdmacoll import ps

path, is_first = sys.argv[1], sys.argv[2] == "first"
rdmacoll.init(mode="ps", sync=False, num_servers=2)
values = {"w": np.full(5000, is_first, np.float32), "words": np.full((100, 3), is_first, np.float64)}
rule = ps.Rule("optimizer=adam\\ninitial_learning_rate=0.1\\n")
if not is_first:
    ps.restore(path)
ps.declare(values, rule, by_rows=["words"])
gradients = np.random.default_rng(3).normal(size=(4, 5000)).astype(np.float32)
for gradient in gradients[: 2 if is_first else 0]:
    ps.push(gradient, "w")
    ps.push_rows([1, 50], np.ones((2, 3)), "words")
if is_first:
    ps.save(path)
for gradient in gradients[2:]:
    ps.push(gradient, "w")
    ps.push_rows([1, 99], np.ones((2, 3)), "words")
report({name: ps.pull(name).ravel().tolist() for name in values}, 0)
"""


def _lives(program: str, folder: Path) -> list[Any]:
    """Returns the reports of rank 0 from a run that saves and from a run that goes on from there."""
    path = str(folder / "model")
    return [run(program, 3, arguments=[path, life]).succeeded()[0] for life in ("first", "second")]


def test_a_run_goes_on_from_what_the_servers_saved(tmp_path):
    lives = _lives(LIFE, tmp_path)
    assert lives[0] == lives[1]
    assert lives[0]["w"][0] != 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"model.server-{i}-of-2" for i in range(2)]


# A first run saves twice. A second run reports its errors for a path.
SAVES = """
import sys
import numpy as np, rdmacoll
from rdmacoll import ps
rdmacoll.init(mode="ps", sync=False, num_servers=2)
ps.declare({"w": np.zeros(5000, np.float32)}, ps.Rule("optimizer=sgd\\ninitial_learning_rate=1\\n"))
for name in ("one", "two"):
    ps.push(np.ones(5000, np.float32), "w")
    ps.save(f"{sys.argv[1]}/{name}")
"""
REFUSED = """
import sys
import numpy as np, rdmacoll
from ranks import report
from rdmacoll import ps
rdmacoll.init(mode="ps", sync=False, num_servers=int(sys.argv[2]))
variables = {"w": np.zeros(5000, np.float32)}
said = []
def say(call, *given, **named):
    try:
        call(*given, **named)
    except rdmacoll.RdmacollError as error:
        said.append(str(error))
rule = ps.Rule("optimizer=sgd\\ninitial_learning_rate=1\\n")
say(ps.declare, variables, rule, restore_from=sys.argv[1])
say(ps.restore, sys.argv[1])
say(ps.save, sys.argv[1] + "/not_there/model")
ps.declare(variables, rule)  # from the beginning, since there is nothing to go on from
ps.push(np.ones(5000, np.float32), "w")
report([*said, float(ps.pull("w")[4999])], 0)
"""


def test_files_that_do_not_fit_together_are_refused_with_the_cure(tmp_path):
    run(SAVES, 3, arguments=[str(tmp_path)]).succeeded()
    mixed = tmp_path / "mixed.server-0-of-2", tmp_path / "mixed.server-1-of-2"
    for name, place in zip(("one", "two"), mixed):
        shutil.copy(tmp_path / place.name.replace("mixed", name), place)

    def said(name: str, servers: int) -> list[str]:
        found = run(REFUSED, 1 + servers, arguments=[str(tmp_path / name), str(servers)]).succeeded()
        restored, restored_later, *others, value = found[0]
        assert all("the checkpoint " in one for one in (restored, restored_later))
        assert value == -1
        return [restored, *others]

    several, no_folder = said("mixed", 2)
    assert f"the checkpoint {tmp_path}/mixed mixes files of several saves" in several
    assert "use the files of one rdmacoll.ps.save" in several
    assert "cannot be written: no such file or directory. Make its folder" in no_folder
    assert "is of 2 servers, and this run has 1. Start as many" in said("one", 1)[0]
    assert "no such file or directory on this server's machine. Give the path" in said("none", 2)[0]


KERAS = """
import sys
import keras, numpy as np, rdmacoll
from ranks import report
from rdmacoll import ps
rdmacoll.init(mode="ps", sync=False, num_servers=2)
path, is_first = sys.argv[1], sys.argv[2] == "first"
keras.utils.set_random_seed(1 if is_first else 2)
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
model.compile(optimizer=rdmacoll.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
inputs = np.random.default_rng(3).normal(size=(4, 32, 8)).astype(np.float32)
if not is_first:
    ps.restore(path)
for batch in inputs[: 2 if is_first else 0]:
    model.train_on_batch(batch, batch.sum(axis=1))
if is_first:
    ps.save(path)
for batch in inputs[2:]:
    model.train_on_batch(batch, batch.sum(axis=1))
report([weight.ravel().tolist() for weight in model.get_weights()], 0)
"""


def test_keras_goes_on_from_what_the_servers_saved(tmp_path):
    lives = _lives(KERAS, tmp_path)
    assert lives[0] == lives[1]


SEVERAL = """
import sys
import numpy as np, rdmacoll
from ranks import report
from rdmacoll import ps
path, is_first = sys.argv[1], sys.argv[2] == "first"
rdmacoll.init(mode="ps", sync=False, num_servers=2)
rule = ps.Rule("optimizer=sgd\\ninitial_learning_rate=1\\n")
for name in ("a", "b"):
    ps.declare({name: np.zeros(5000, np.float32)}, rule)
if is_first:
    ps.push(np.ones(5000, np.float32), "b")
    ps.save(path)
else:
    ps.restore(path)
report([float(ps.pull(name)[7]) for name in ("a", "b")], 0)
"""


REFUSED_LATER = """
import sys
import numpy as np, rdmacoll
from ranks import report
from rdmacoll import ps
path, is_first = sys.argv[1], sys.argv[2] == "first"
rdmacoll.init(mode="ps", sync=False, num_servers=2)
rule = ps.Rule("optimizer=sgd\\ninitial_learning_rate=1\\n")
w = np.full(5000 if is_first else 6000, 3, np.float32)
said = ""
if not is_first:
    ps.restore(path)
try:
    ps.declare({"w": w}, rule)
except rdmacoll.ConfigError as error:
    said = str(error)
    ps.declare({"w": w}, rule)
if is_first:
    ps.save(path)
ps.push(np.ones(w.size, np.float32), "w")
rdmacoll.engine.barrier()
report([said, float(ps.pull("w")[7])])
"""


def test_a_run_begins_anew_where_what_was_saved_does_not_fit(tmp_path):
    path = str(tmp_path / "saved")
    run(REFUSED_LATER, 3, arguments=[path, "first"]).succeeded()
    (said, value), (nothing, other) = run(REFUSED_LATER, 4, arguments=[path, "second"]).succeeded()[:2]
    assert "cannot be restored: its variable 0 is w (float32, shape (5000), " in said
    assert nothing == ""
    assert value == other == 1


def test_what_is_declared_in_parts_is_restored_behind_the_last(tmp_path):
    assert _lives(SEVERAL, tmp_path) == [[0, -1], [0, -1]]
