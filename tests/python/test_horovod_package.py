"""The package `horovod` over rdmacoll, which programs import unchanged."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import ROOT, clean_environment, run

COMPAT = ROOT / "compat" / "horovod"
NAMES = """
import importlib, json, sys
from pathlib import Path
import horovod
sys.path.insert(0, {docs!r})
import horovod_table
missing = []
for name, place in horovod_table.PLACES.items():
    if horovod_table.is_there(place) and name != "horovod":
        theirs, own = importlib.import_module(name), importlib.import_module(place)
        for one in horovod_table.surface()[name]:
            if hasattr(own, one) and getattr(theirs, one, None) is not getattr(own, one):
                missing.append(f"{{name}}.{{one}}")
for name in {inside!r}:
    importlib.import_module(name)
print(json.dumps([horovod.__version__, missing]))
"""
INSIDE = (
    "horovod._keras.callbacks",
    "horovod.common.exceptions",
    "horovod.common.process_sets",
    "horovod.common.util",
    "horovod.runner.common.service.compute_service",
    "horovod.runner.common.util.env",
    "horovod.runner.common.util.secret",
    "horovod.runner.util.threads",
    "horovod.tensorflow.compression",
    "horovod.tensorflow.data.compute_service",
    "horovod.tensorflow.data.compute_worker",
    "horovod.tensorflow.elastic",
    "horovod.tensorflow.functions",
    "horovod.tensorflow.gradient_aggregation",
    "horovod.tensorflow.gradient_aggregation_eager",
    "horovod.tensorflow.mpi_ops",
    "horovod.tensorflow.sync_batch_norm",
    "horovod.tensorflow.util",
)


PRIVATE = """
import numpy as np
import tensorflow as tf
import horovod
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
from horovod.tensorflow.mpi_ops import _allreduce
from ranks import report
hvd.init()
rank, size = hvd.rank(), hvd.size()
alone = hvd.add_process_set([1])
slices = tf.IndexedSlices(tf.fill((1, 2), 2.0), tf.constant([rank]), tf.constant([size, 2]))
calls = [
    lambda: _allreduce(tf.constant([1.0 + rank])),
    lambda: hvd.mpi_ops._allreduce([rank], "named", hvd.Max, process_set=hvd.global_process_set),
    lambda: _allreduce(slices, prescale_factor=0.5),
    lambda: hvd._grouped_allreduce([tf.constant(1.0), slices]),
    lambda: hvd._reducescatter(tf.range(size), op=hvd.Sum),
    lambda: hvd._grouped_reducescatter([tf.range(size)]),
]
results = [[call(), tf.function(call)()] for call in calls]
found = [tf.nest.map_structure(lambda one: one.numpy().tolist(), one) for one in results]
defaults = hvd.broadcast.__defaults__
assert defaults == (None, False, hvd.global_process_set)
hvd.broadcast.__defaults__ = (None, True, alone)
assert rank == 0 or float(hvd.broadcast(5.0, 1)) == 5.0  # rank 0 does not take part
hvd.broadcast.__defaults__ = defaults
assert float(hvd.broadcast(rank + 1.0, 1)) == 2.0
callback = hvd_keras.callbacks.LearningRateScheduleCallback(1.0, 1.0)
assert isinstance(callback, horovod._keras.callbacks.LearningRateScheduleCallbackImpl)
report(found)
"""


def python(program: str, *more: Path) -> subprocess.CompletedProcess[str]:
    path = ":".join(map(str, (COMPAT, ROOT, *more)))
    return subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment({"PYTHONPATH": path}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_its_modules_have_the_names_of_rdmacolls() -> None:
    done = python(NAMES.format(docs=str(ROOT / "release" / "docs"), inside=INSIDE))
    assert done.returncode == 0, done.stderr
    version, missing = json.loads(done.stdout.splitlines()[-1])
    assert [int(one) for one in version.split(".")] == [0, 28, 1]  # programs read it so
    assert missing == []


@pytest.mark.parametrize("module", ["torch", "mxnet", "spark", "ray"])
def test_other_frameworks_are_refused_with_a_sentence(module: str) -> None:
    done = python(f"import horovod.{module}")
    assert f"ImportError: rdmacoll has no horovod.{module}, since it serves TensorFlow alone." in done.stderr


def test_it_refuses_to_mix_with_horovod_itself_and_may_stand_before_it(tmp_path: Path) -> None:
    facts = tmp_path / "horovod-0.28.1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    shutil.copytree(COMPAT / "horovod", tmp_path / "horovod")
    done = python(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import horovod")
    assert "pip uninstall horovod rdmacoll-horovod" in done.stderr
    done = python("import horovod; print(horovod.__file__)", tmp_path)
    assert done.stdout.startswith(str(COMPAT)), done.stderr


def test_its_small_helpers_are_right() -> None:
    program = """
from horovod.common.util import is_version_greater_equal_than, num_rank_is_power_2, split_list
import horovod.tensorflow as hvd
from horovod.runner.common.util import env, secret
from horovod.runner.util.threads import in_thread
assert split_list(range(5), 3) == [range(2), range(2, 4), range(4, 5)]
assert [n for n in range(-1, 10) if num_rank_is_power_2(n)] == [1, 2, 4, 8]
assert hvd.gpu_available("tensorflow") is False
assert hvd._executing_eagerly()
assert is_version_greater_equal_than("2.15.1", "2.4.0")
assert env.get_env_rank_and_size() == (0, 1)
key = secret.make_secret_key()
assert secret.check_digest(key, b"text", secret.compute_digest(key, b"text"))
assert not secret.check_digest(key, b"other", secret.compute_digest(key, b"text"))
found = []
in_thread(found.append, (3,)).join()
assert found == [3]
"""
    done = python(program)
    assert done.returncode == 0, done.stderr


def test_private_names_that_programs_use_have_horovods_meaning() -> None:
    path = ":".join(map(str, (COMPAT, ROOT, ROOT / "tests")))
    for rank, found in enumerate(run(PRIVATE, 2, env={"PYTHONPATH": path}).succeeded()):
        rows = [[1.0, 1.0], [1.0, 1.0]]
        doubled = [[2.0, 2.0], [2.0, 2.0]]
        wanted = [[3.0], [1], rows, [2.0, doubled], [2 * rank], [[2 * rank]]]
        assert found == [[one, one] for one in wanted]


OWN_OPTIMIZER = """
import os
import numpy as np
import keras
import tensorflow as tf
import horovod.tensorflow.keras as hvd
import horovod.tensorflow
from horovod.common.util import env
from horovod.tensorflow import LocalGradientAggregationHelper, _LegacyOptimizer
from horovod.tensorflow import _make_allreduce_grads_fn, _make_cached_allreduce_grads_fn
from ranks import report
hvd.init()
rank, size = hvd.rank(), hvd.size()
assert LocalGradientAggregationHelper._OPTIMIZER_TYPE_LEGACY and hvd.size() == 2
with env(HOROVOD_CYCLE_TIME="1", PATH=None):
    assert os.environ["HOROVOD_CYCLE_TIME"] == "1" and "PATH" in os.environ
assert "HOROVOD_CYCLE_TIME" not in os.environ

wrapped = hvd.DistributedOptimizer(keras.optimizers.SGD())  # programs look for Horovod's module in its text
assert "horovod._keras" in str(wrapped) and "SGD" in str(wrapped)
assert "horovod" not in type(wrapped).__module__  # saved files name the plain optimizer

class Reducing(keras.optimizers.SGD):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._reduce = _make_allreduce_grads_fn(
            "mine", "", "", hvd.Compression.none, True, hvd.Average, 1.0, 0, hvd.global_process_set
        )

    def apply_gradients(self, grads_and_vars, **options):
        gradients, variables = zip(*grads_and_vars)
        return super().apply_gradients(zip(self._reduce(gradients, variables), variables), **options)

model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
model.compile(Reducing(0.1), "mse")
x = np.random.default_rng(rank).random((8, 3), np.float32)
model.fit(x, x[:, :2], batch_size=4, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
weights = [one.numpy().tolist() for one in model.trainable_variables]

reduce_sums = _make_cached_allreduce_grads_fn("other", "", "", hvd.Compression.fp16, False, hvd.Sum)
value = tf.constant([1.0 + rank])
plain = [one.numpy().tolist() for one in reduce_sums([value, value])]
total, nothing = tf.function(lambda: reduce_sums((value, None)))()
traced = [total.numpy().tolist(), nothing]

with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    class Legacy(_LegacyOptimizer):
        def __init__(self, optimizer):
            super().__init__(name="Mine", use_locking=False)
            self._optimizer = optimizer
            self._reduce = _make_allreduce_grads_fn("legacy", "", "", hvd.Compression.none, False)

        def compute_gradients(self, *args, **options):
            gradients, variables = zip(*self._optimizer.compute_gradients(*args, **options))
            return list(zip(self._reduce(gradients), variables))

        def apply_gradients(self, *args, **options):
            return self._optimizer.apply_gradients(*args, **options)

    wrapped = horovod.tensorflow.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer())
    assert "horovod.tensorflow" in str(wrapped) and "AdamOptimizer" in str(wrapped)
    variable = tf.compat.v1.get_variable("w", initializer=[0.0])
    step = Legacy(tf.compat.v1.train.GradientDescentOptimizer(1.0)).minimize(variable * (1.0 + rank))
    session.run(tf.compat.v1.global_variables_initializer())
    session.run(step)
    report([weights, plain, traced, session.run(variable).tolist()])
"""


def test_optimizers_of_programs_reduce_by_horovods_private_function() -> None:
    path = ":".join(map(str, (COMPAT, ROOT, ROOT / "tests")))
    first, second = run(OWN_OPTIMIZER, 2, env={"PYTHONPATH": path}).succeeded()
    assert first == second
    assert first[1:] == [[[3.0], [3.0]], [[3.0], None], [-1.5]]
