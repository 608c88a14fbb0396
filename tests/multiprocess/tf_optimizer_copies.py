"""Tests copies of wrapped optimizers beside their originals. Both take turns with steps of two backward
passes.

Each has its own variables and gradients. The argument is a folder with `tf_keras`, or "" in TensorFlow
2.15."""

from __future__ import annotations

import copy
import functools
import importlib
import pathlib
import pickle
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from ranks import report
from tf_common import SEED, value

import rdmacoll

PASSES = 2
if sys.argv[1]:
    sys.path.insert(0, sys.argv[1])
keras2 = importlib.import_module("tf_keras") if sys.argv[1] else tf.keras
FAMILIES = {
    "Keras 2": (keras2, lambda: keras2.optimizers.SGD(1.0)),
    "Keras 2 legacy": (keras2, lambda: keras2.optimizers.legacy.SGD(1.0)),
}
if sys.argv[1]:
    scaling, sgd = tf.keras.optimizers.LossScaleOptimizer, tf.keras.optimizers.SGD
    FAMILIES["Keras 3"] = (tf.keras, lambda: sgd(1.0))
    FAMILIES["Keras 3 scaled"] = (tf.keras, lambda: scaling(sgd(1.0), initial_scale=1.0))

rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()


def wrap(optimizer: Any) -> Any:
    return rdmacoll.DistributedOptimizer(optimizer, backward_passes_per_step=PASSES)


def make_variables(keras: Any, count: int) -> list[Any]:
    make = keras.Variable if hasattr(keras, "Variable") else tf.Variable
    return [make(np.zeros((3, 1), np.float32)) for _ in range(count)]


def one_pass(optimizer: Any, variables: list[Any], number: int) -> None:
    gradients = [tf.constant(value(RANK, (3, 1), salt=number + 10 * i)) for i in range(len(variables))]
    optimizer.apply_gradients(list(zip(gradients, variables)))


def holds(variables: list[Any], numbers: list[int]) -> bool:
    """Returns whether the variables equal those of one process with learning rate 1.

    This process sums the passes, and takes the mean of all ranks' gradients."""
    for i, variable in enumerate(variables):
        means = [np.mean([value(r, (3, 1), salt=n + 10 * i) for r in range(SIZE)], axis=0) for n in numbers]
        wanted = -np.sum([np.zeros((3, 1)), *means], axis=0)
        if not np.allclose(np.asarray(variable.numpy()), wanted, atol=1e-6):
            return False
    return True


def trains_alone(original: Any, other: Any, mine: list[Any], its: list[Any], begun: int = 0) -> str:
    """Runs passes of both in turns. The original has already made `begun` passes. Returns the result's
    text."""
    for number in range(2 * PASSES):
        if number >= begun:
            one_pass(original, mine, number)
        one_pass(other, its, 100 + number)
        complete = (number + 1) // PASSES * PASSES
        if not holds(mine, list(range(complete))) or not holds(its, list(range(100, 100 + complete))):
            return f"wrong after pass {number}: {[one.numpy().ravel() for one in mine + its]}"
    reducers = [type(one)._rdmacoll_reduce for one in (original, other)]
    if reducers[0] is reducers[1] or reducers[0].name == reducers[1].name:
        return "shared"
    if [len(one.buckets[0].indices) for one in reducers] != [len(mine), len(its)]:
        return "buckets of another one"
    return "own"


WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda optimizer: pickle.loads(pickle.dumps(optimizer)),
    "from_config": lambda optimizer: type(optimizer).from_config(optimizer.get_config()),
    "class": lambda optimizer: type(optimizer)(1.0),
    "copy of a copy": lambda optimizer: copy.copy(type(optimizer).from_config(optimizer.get_config())),
}


def copied(keras: Any, make: Callable[[], Any], way: str) -> str:
    original = wrap(make())
    return trains_alone(original, WAYS[way](original), make_variables(keras, 1), make_variables(keras, 2))


def copied_between_passes(keras: Any, make: Callable[[], Any], way: str) -> str:
    """Copies an optimizer after its first pass. The copy begins with a first pass of its own."""
    original, mine = wrap(make()), make_variables(keras, 1)
    one_pass(original, mine, 0)
    its = make_variables(keras, 2 if way in ("from_config", "class", "copy of a copy") else 1)
    return trains_alone(original, WAYS[way](original), mine, its, begun=1)


def model_of(keras: Any, make: Callable[[], Any]) -> Any:
    kernel = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.layers.Input((3,)), kernel])
    model.compile(optimizer=wrap(make()), loss=keras.losses.MeanSquaredError())
    return model


def of_a_model(model: Any, made: Any) -> str:
    """Returns whether the optimizer of such a model is wrapped, and whether it works once it is wrapped."""
    found = getattr(made, "optimizer", None)
    if found is None:
        return "none"
    is_ours = hasattr(type(found), "_rdmacoll_reduce")
    other = found if is_ours else wrap(found)
    answers = trains_alone(model.optimizer, other, model.trainable_variables, made.trainable_variables)
    return answers if is_ours else answers.replace("own", "plain")


def loaded(keras: Any, make: Callable[[], Any], suffix: str, *, by_class: bool) -> str:
    model = model_of(keras, make)
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / f"model.{suffix}")
        model.save(path)
        objects = {"custom_objects": {"SGD": type(model.optimizer)}} if by_class else {}
        return of_a_model(model, keras.models.load_model(path, **objects))


def cloned(keras: Any, make: Callable[[], Any]) -> str:
    model = model_of(keras, make)
    return of_a_model(model, keras.models.clone_model(model))


def deep_copied_with_its_model(keras: Any, make: Callable[[], Any]) -> str:
    model = model_of(keras, make)
    return of_a_model(model, copy.deepcopy(model))


Rows = dict[str, Callable[[Any, Callable[[], Any]], str]]
ROWS: Rows = {way: functools.partial(copied, way=way) for way in WAYS}
ROWS.update(
    {f"{way} between passes": functools.partial(copied_between_passes, way=way) for way in WAYS},
)
ROWS.update({"clone_model": cloned, "deepcopy of a model": deep_copied_with_its_model})
for suffix in ("keras", "h5"):
    ROWS[f"load_model .{suffix}"] = functools.partial(loaded, suffix=suffix, by_class=False)
    ROWS[f"load_model .{suffix} by class"] = functools.partial(loaded, suffix=suffix, by_class=True)


def outcome(keras: Any, make: Callable[[], Any], row: str) -> str:
    try:
        return ROWS[row](keras, make)
    except Exception as error:  # ranks fail alike
        answers = f"{type(error).__name__}: {str(error)[:300]}"
    try:
        WAYS[row.partition(" between")[0]](make())
    except Exception as error:
        return "refused" if answers == f"{type(error).__name__}: {str(error)[:300]}" else answers
    return answers


if __name__ == "__main__":
    done = {name: {row: outcome(*family, row) for row in ROWS} for name, family in FAMILIES.items()}
    report({"done": done, "seed": SEED})
    rdmacoll.shutdown()
