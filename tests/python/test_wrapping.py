"""An object that cannot be wrapped is refused when it is wrapped, or at its first use."""

from __future__ import annotations

from pathlib import Path

from ranks import run
from test_tf_optimizers import tf_keras  # noqa: F401

IMPORTS = """
import sys
sys.path.append({path!r})
import keras, tf_keras
LIBRARIES = [keras, tf_keras]
"""
PROGRAM = """
import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import tensorflow as tf
from ranks import report

import rdmacoll

rdmacoll.init()
wrap = rdmacoll.DistributedOptimizer
SGD, Multi, Map = keras.optimizers.SGD, keras.optimizers.MultiOptimizer, keras.optimizers.OptimizerMap


def said(call):
    try:
        call()
    except rdmacoll.ConfigError as error:
        return str(error)
    return "nothing"


def parts_first():
    return wrap(Multi(Map(SGD(), {"a/.*": wrap(SGD())})))


def parts_afterwards():
    inner = SGD()
    wrap(Multi(Map(inner)))
    return wrap(inner)


def parts_that_a_function_gives():
    inner = wrap(SGD())
    variable = keras.Variable(np.ones(3), dtype="float32", name="a")
    wrap(Multi(lambda variable: inner)).apply([tf.ones(3)], [variable])


def both_ways_to_accumulate():
    return wrap(SGD(gradient_accumulation_steps=3), backward_passes_per_step=2)


def too_late():
    optimizer = SGD()
    optimizer.build([keras.Variable(np.ones(3))])
    return wrap(optimizer, backward_passes_per_step=2)


def of_many():
    return wrap(Multi(Map(SGD())), backward_passes_per_step=2)


def no_number():
    return wrap(SGD(), backward_passes_per_step=0)


def of_a_tape():
    return rdmacoll.DistributedGradientTape(tf.GradientTape(), backward_passes_per_step=4)


calls = [parts_first, parts_afterwards, parts_that_a_function_gives, both_ways_to_accumulate, too_late]
calls += [of_many, no_number, of_a_tape]
found = {call.__name__: said(call) for call in calls}

# The sum of the passes, and a copy that accumulates as its original does.
variable = keras.Variable(np.zeros(3), dtype="float32")
optimizer = wrap(SGD(1.0), backward_passes_per_step=2)
for pair in ([1.0, 2.0], [3.0, 4.0]):
    for gradient in pair:
        optimizer.apply([tf.fill((3,), gradient)], [variable])
found["sum"] = np.asarray(variable).tolist()
again = type(optimizer).from_config(optimizer.get_config())
variable = keras.Variable(np.zeros(3), dtype="float32")
for gradient in (1.0, 2.0):
    again.apply([tf.fill((3,), gradient)], [variable])
found["copy"] = [again.gradient_accumulation_steps, np.asarray(variable).tolist()]


class Derived(type(wrap(SGD(1.0)))):
    pass


found["derived"] = said(Derived)

# A model that has trained with the plain optimizer before it is wrapped.
for number, library in enumerate(LIBRARIES):
    for way in ("fit", "train_on_batch"):
        model = library.Sequential([library.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        optimizer = library.optimizers.SGD(1.0)
        model.compile(optimizer, loss=lambda wanted, output: output)  # the gradient is the input
        getattr(model, way)(np.ones((1, 1)), np.ones((1, 1)))
        wrap(optimizer, op=rdmacoll.Sum, postscale_factor=10.0)
        getattr(model, way)(np.ones((1, 1)), np.ones((1, 1)))
        getattr(model, way)(np.ones((1, 1)), np.ones((1, 1)))
        found[f"trained {number} {way}"] = float(model.get_weights()[0][0, 0])
report(found)
rdmacoll.shutdown()
"""


def test_what_cannot_be_wrapped_is_said(tf_keras: Path) -> None:  # noqa: F811
    program = IMPORTS.format(path=str(tf_keras)) + PROGRAM
    (found,) = run(program, 1, preloaded=True, deadline_s=240).succeeded()
    trained = {name: weight for name, weight in found.items() if name.startswith("trained")}
    assert len(trained) == 4, found
    assert set(trained.values()) == {-21.0}, trained
    for case in ("parts_first", "parts_afterwards"):
        assert "a part of it or the optimizer around it is wrapped already" in found[case], found
    assert "a MultiOptimizer and the SGD in it are both wrapped" in found["parts_that_a_function_gives"]
    assert "has gradient_accumulation_steps=3 already" in found["both_ways_to_accumulate"]
    assert "is built already: wrap it before its first step" in found["too_late"]
    assert "create its optimizers with gradient_accumulation_steps=2" in found["of_many"]
    assert found["no_number"] == "backward_passes_per_step=0: give a whole number from 1."
    assert found["of_a_tape"].startswith(
        "backward_passes_per_step=4 is not for a tape, which lives for one pass"
    )
    assert found["sum"] == [-10.0] * 3
    assert found["copy"] == [2, [-3.0] * 3]
    assert "class Derived is derived from the class of one wrapped optimizer" in found["derived"]
