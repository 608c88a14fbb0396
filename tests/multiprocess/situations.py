"""Trains in the situations that its argument lists, as JSON, and reports each result.

Each rank has other data and other initial weights. The result "same" means that the weights have the same
bits on all ranks, and equal those of one process with the joined batches. Any other result is a sentence, or
the class and text of an exception. TensorFlow has two logical processors, for two replicas in a process.
"""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import functools
import hashlib
import json
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from ranks import report
from tensorflow.python.framework import ops
from tf_common import value

import rdmacoll

CASES: list[dict[str, str]] = json.loads(sys.argv[1])
FOLDER = Path(os.environ["RANKS_FOLDER"])
if CASES[0]["mode"] == "session":
    tf.compat.v1.disable_eager_execution()
processors = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(processors[0], [tf.config.LogicalDeviceConfiguration()] * 2)
STALL_S = 20
rdmacoll.init(stall_error_s=STALL_S)
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
BATCH, UPDATES, EARLIER_STEPS = 4, 3, 2
TOLERANCE = {"float32": 3e-5, "mixed": 5e-3}


@functools.lru_cache(maxsize=1)
def two_replicas() -> Any:
    """Returns one strategy for all cases. TensorFlow numbers the collectives of each strategy from the
    start."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def keras_of(case: dict[str, str]) -> Any:
    if case["keras"] == "Keras 3":
        import keras

        return keras
    if tf.__version__.startswith("2.15"):
        return tf.keras
    import tf_keras

    return tf_keras


def data_of(rank: int, case: dict[str, str]) -> tuple[np.ndarray, np.ndarray]:
    x = value(rank, (BATCH * UPDATES * int(case["passes"]), 3), salt=3)
    return x, np.sin(x.sum(axis=1, keepdims=True)).astype(np.float32)


def joined(case: dict[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the data of all ranks, with the batches of one update together."""
    parts = [data_of(rank, case) for rank in range(SIZE)]
    size = BATCH * int(case["passes"])
    steps = [slice(step * size, (step + 1) * size) for step in range(UPDATES)]
    x, y = (np.concatenate([part[i][step] for step in steps for part in parts]) for i in (0, 1))
    return x, y


def restored_weights(salt: int) -> list[np.ndarray]:
    """Returns weights that only rank 0 restores. They are small, so that nothing overflows in 16 bits."""
    return [0.2 * value(0, shape, salt=salt + i) for i, shape in enumerate([(3, 4), (4,), (4, 1), (1,)])]


def optimizer_of(keras: Any, case: dict[str, str], passes: int = 1) -> Any:
    """Makes the optimizer. passes: the steps of Keras 3's own gradient accumulation."""
    module = keras.optimizers.legacy if case["keras"] == "Keras 2 legacy" else keras.optimizers
    return module.Adam(0.05, **({} if passes == 1 else {"gradient_accumulation_steps": passes}))


class OwnStep:
    """A mixin for `Sequential` with a train_step like those of user programs."""

    case: dict[str, str]
    is_distributed = False

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        scaled, unscaled = scaling(self.optimizer, self.case)
        with tape_of(self.case, is_distributed=self.is_distributed) as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            loss = scaled(loss / replicas)
        variables = self.trainable_variables
        gradients = unscaled(tape.gradient(loss, variables))
        self.optimizer.apply_gradients(zip(gradients, variables))
        return {"loss": loss}


def scaling(optimizer: Any, case: dict[str, str]) -> tuple[Any, Any]:
    """Returns the two functions that a program with loss scaling calls on its loss and on its gradients."""
    if case["precision"] == "float32":
        return (lambda loss: loss), (lambda gradients: gradients)
    if case["keras"] == "Keras 3":
        return optimizer.scale_loss, lambda gradients: gradients
    return optimizer.get_scaled_loss, optimizer.get_unscaled_gradients


def tape_of(case: dict[str, str], *, is_distributed: bool) -> Any:
    tape = tf.GradientTape()
    if is_distributed and case["wrapped"] == "tape":
        rdmacoll.DistributedGradientTape(tape)
    return tape


def model_of(keras: Any, case: dict[str, str], *, is_distributed: bool) -> Any:
    model_class = keras.Sequential
    if case["loop"] == "train_step":
        model_class = type(
            "Model", (OwnStep, keras.Sequential), {"case": case, "is_distributed": is_distributed}
        )
    rank = RANK if is_distributed else 0
    seeded = [keras.initializers.RandomNormal(stddev=0.5, seed=100 * rank + layer) for layer in (1, 2)]
    layers = [
        keras.layers.Dense(4, activation="tanh", kernel_initializer=seeded[0]),
        keras.layers.Dense(1, kernel_initializer=seeded[1]),
    ]
    first = [keras.layers.Input((3,))] if case["built"] == "yes" else []
    return model_class([*first, *layers, keras.layers.Activation("linear", dtype="float32")])


def wrap(optimizer: Any, case: dict[str, str]) -> Any:
    if case["wrapped"] == "tape":
        return optimizer
    passes = {} if case["passes"] == "1" else {"backward_passes_per_step": 2}
    if passes:
        passes["average_aggregated_gradients"] = True
    return rdmacoll.DistributedOptimizer(optimizer, **passes)


def compile_model(keras: Any, model: Any, optimizer: Any, case: dict[str, str]) -> None:
    eager = {"run_eagerly": True} if case["mode"] == "eager" else {}
    model.compile(optimizer, "mse", **eager)


def set_weights(model: Any, weights: list[np.ndarray]) -> None:
    if not model.built:
        model.build((None, 3))
    model.set_weights(weights)


def policy_of(case: dict[str, str]) -> str:
    return "mixed_float16" if case["precision"] == "mixed" else "float32"


def save_earlier_model(keras: Any, case: dict[str, str], number: int, *, is_distributed: bool) -> str:
    """Saves a trained model whose optimizer has slots, and returns the file's name.

    With Keras 3's accumulation, this training has as many passes as the later one."""
    passes = int(case["passes"]) if is_distributed and case["keras"] == "Keras 3" else 1
    path = FOLDER / f"earlier-{number}-{RANK}.{'keras' if case['keras'] == 'Keras 3' else 'h5'}"
    model = model_of(keras, {**case, "loop": "fit", "built": "yes"}, is_distributed=False)
    set_weights(model, restored_weights(70))
    model.compile(optimizer_of(keras, case, passes), "mse")
    x, y = data_of(0, {**case, "passes": "1"})
    model.fit(x, y, BATCH // passes, 1, 0, shuffle=False, steps_per_epoch=EARLIER_STEPS * passes)
    model.save(path)
    return str(path)


def save_checkpoint(keras: Any, file: str) -> str:
    """Saves the same model in TensorFlow's own files."""
    model = keras.models.load_model(file)
    return str(tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(f"{file}.checkpoint"))


def earlier_files(keras: Any, case: dict[str, str], number: int, *, is_distributed: bool) -> tuple[str, str]:
    """Saves what the case restores. Returns the names of Keras' file and of the checkpoint, or ""."""
    is_restored = RANK == 0 or not is_distributed
    if not is_restored or case["restore"] not in ("file", "checkpoint"):
        return "", ""
    # This is outside the strategy, since Keras 3 cannot accumulate inside one.
    file = save_earlier_model(keras, case, number, is_distributed=is_distributed)
    return (file, "") if case["restore"] == "file" else ("", save_checkpoint(keras, file))


def model_and_optimizer(
    keras: Any, case: dict[str, str], file: str, *, is_distributed: bool
) -> tuple[Any, Any]:
    """Makes model and optimizer like a program. Only rank 0 may have the file of an earlier training."""
    model = model_of(keras, case, is_distributed=is_distributed)
    optimizer = optimizer_of(keras, case)
    if file:
        loaded = keras.models.load_model(file)
        loaded.__class__ = type(model)
        model, optimizer = loaded, loaded.optimizer
    elif case["precision"] == "mixed" and case["loop"] != "fit":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    if is_distributed:
        optimizer = wrap(optimizer, case)
    return model, optimizer


def callbacks_of(keras: Any, case: dict[str, str], *, is_distributed: bool) -> list[Any]:
    class Restore(keras.callbacks.Callback):
        """A program's own loader, which only rank 0 uses."""

        def on_train_begin(self, logs: Any = None) -> None:
            if case["restore"] == "weights" and (RANK == 0 or not is_distributed):
                set_weights(self.model, restored_weights(50))

    own_callbacks = [Restore()]
    if not is_distributed:
        return own_callbacks
    broadcast = [rdmacoll.keras.callbacks.BroadcastGlobalVariablesCallback(0)]
    metrics = [rdmacoll.keras.callbacks.MetricAverageCallback()]
    return (
        [*broadcast, *metrics, *own_callbacks]
        if case["order"] == "first"
        else [*own_callbacks, *metrics, *broadcast]
    )


def train(case: dict[str, str], number: int, *, is_distributed: bool) -> list[np.ndarray]:
    keras = keras_of(case)
    keras.mixed_precision.set_global_policy(policy_of(case))
    keras.utils.set_random_seed(5 + RANK if is_distributed else 5)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _build_and_train(keras, case, number, is_distributed=is_distributed)
    finally:
        keras.mixed_precision.set_global_policy("float32")
        if case["mode"] == "session":
            ops._default_graph_stack.reset()  # an error inside of a strategy leaves its graph entered
        keras.backend.clear_session()


def _build_and_train(
    keras: Any, case: dict[str, str], number: int, *, is_distributed: bool
) -> list[np.ndarray]:
    strategy = tf.distribute.get_strategy()
    if case["replicas"] == "2" and is_distributed:
        strategy = two_replicas()
    try:
        file, checkpoint = earlier_files(keras, case, number, is_distributed=is_distributed)
    finally:
        if is_distributed:  # rank 0 alone needs this time: on a busy machine, more than the limit of a stall
            wait_for_all(number, "saved")
    with strategy.scope():
        model, optimizer = model_and_optimizer(keras, case, file, is_distributed=is_distributed)
        if case["loop"] != "loop":
            compile_model(keras, model, optimizer, case)
            optimizer = model.optimizer
        if checkpoint:
            # Values that do not exist yet are restored when they are created.
            tf.train.Checkpoint(model=model, optimizer=optimizer).restore(checkpoint)
    x, y = data_of(RANK, case) if is_distributed else joined(case)
    batch = BATCH if is_distributed else BATCH * SIZE * int(case["passes"])
    if case["loop"] == "loop":
        _loop(keras, case, model, optimizer, strategy, x, y, batch, is_distributed=is_distributed)
    else:
        callbacks = callbacks_of(keras, case, is_distributed=is_distributed)
        model.fit(x, y, batch, 1, 0, shuffle=False, callbacks=callbacks)
    return [np.array(weight) for weight in model.get_weights()]


def build_slots(optimizer: Any, model: Any) -> None:
    """Creates the optimizer's slots. A program does this before it broadcasts variables from a file."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if hasattr(inner, "_create_all_weights"):  # legacy
        inner._create_all_weights(model.trainable_variables)
    elif not getattr(optimizer, "built", False):
        optimizer.build(model.trainable_variables)


def _loop(
    keras: Any,
    case: dict[str, str],
    model: Any,
    optimizer: Any,
    strategy: Any,
    x: np.ndarray,
    y: np.ndarray,
    batch: int,
    *,
    is_distributed: bool,
) -> None:
    """Trains in a program's own loop."""
    with strategy.scope():
        if not model.built:
            model.build((None, 3))
        if case["restore"] == "weights" and (RANK == 0 or not is_distributed):
            model.set_weights(restored_weights(50))
        build_slots(optimizer, model)
    if is_distributed:
        owned = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        rdmacoll.broadcast_variables([*model.variables, *owned], root_rank=0)
    scaled, unscaled = scaling(optimizer, case)

    def replica_step(x: Any, y: Any) -> None:
        with tape_of(case, is_distributed=is_distributed) as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            loss = scaled(loss / strategy.num_replicas_in_sync)
        gradients = unscaled(tape.gradient(loss, model.trainable_variables))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    def step(x: Any, y: Any) -> None:
        if strategy.num_replicas_in_sync == 1:
            return replica_step(x, y)
        halves = [
            strategy.experimental_distribute_values_from_function(
                lambda context, whole=whole: tf.split(whole, 2)[context.replica_id_in_sync_group]
            )
            for whole in (x, y)
        ]
        return strategy.run(replica_step, args=tuple(halves))

    call = step if case["mode"] == "eager" else tf.function(step)
    for begin in range(0, len(x), batch):
        call(tf.constant(x[begin : begin + batch]), tf.constant(y[begin : begin + batch]))


def compare_with_one_process(case: dict[str, str], number: int, weights: list[np.ndarray]) -> str:
    """Compares the weights with those of one process on the joined batches. Returns the result's text."""
    tolerance = TOLERANCE[case["precision"]]
    expected_weights = train(case, number, is_distributed=False)
    difference = max(np.abs(a - b).max() for a, b in zip(expected_weights, weights))
    print(f"{case}: off by {difference:.2g}", flush=True)
    return "same" if difference < tolerance else f"other than one process: off by {difference}"


def digest_of(result: Any) -> str:
    """Returns the digest of the weights, or "failed" for an error."""
    if isinstance(result, str):
        return "failed"
    return hashlib.sha256(b"".join(one.tobytes() for one in result)).hexdigest()


def wait_for_all(number: int, moment: str) -> None:
    """Waits until all ranks have come to this moment of the case, without a collective."""
    (FOLDER / f"{moment}-{number}-{RANK}").touch()
    while not all((FOLDER / f"{moment}-{number}-{rank}").exists() for rank in range(SIZE)):
        time.sleep(0.01)


found: list[Any] = []
for number, case in enumerate(CASES):
    print(f"rank {RANK}: {case}", flush=True)
    try:
        result: Any = train(case, number, is_distributed=True)
    except rdmacoll.RankFailedError:
        report([*found, "another rank failed"])
        raise
    except Exception as error:
        traceback.print_exc()
        result = f"{type(error).__name__}: {error}"
    (FOLDER / f"outcome-{number}-{RANK}").write_text(digest_of(result))
    wait_for_all(number, "done")  # a failure on one rank must not disturb the next case
    texts = [(FOLDER / f"outcome-{number}-{rank}").read_text() for rank in range(SIZE)]
    is_equal = isinstance(result, str) or len(set(texts)) == 1
    found.append(result if is_equal else "ranks differ")
    if "failed" in texts:  # ranks may be at different operations
        rdmacoll.shutdown()
        rdmacoll.init(stall_error_s=STALL_S)
for number, case in enumerate(CASES):
    if not isinstance(found[number], str):
        try:
            found[number] = (
                compare_with_one_process(case, number, found[number]) if number % SIZE == RANK else None
            )
        except Exception as error:
            traceback.print_exc()
            found[number] = f"one process: {type(error).__name__}: {error}"
report(found)
rdmacoll.shutdown()
