"""Compares a server's updates with Keras, step by step. Also tests rules that a server refuses."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import optimizers
from keras.optimizers import schedules

from rdmacoll import ConfigError, ps

STEPS = 12

OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.1),
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: optimizers.SGD(0.1, momentum=0.8, nesterov=True),
    "decayed sgd": lambda: optimizers.SGD(0.1, weight_decay=0.05),
    "adam": lambda: optimizers.Adam(0.01),
    "other betas": lambda: optimizers.Adam(0.02, beta_1=0.7, beta_2=0.95, epsilon=1e-3),
    "no betas": lambda: optimizers.Adam(0.02, beta_1=0.0, beta_2=0.0, epsilon=1e-3),
    "amsgrad": lambda: optimizers.Adam(0.01, beta_2=0.5, amsgrad=True),
    "adamw": lambda: optimizers.AdamW(0.01, weight_decay=0.1),
    "rmsprop": lambda: optimizers.RMSprop(0.01),
    "centered rmsprop": lambda: optimizers.RMSprop(0.01, rho=0.7, momentum=0.5, epsilon=1e-2, centered=True),
    "adagrad": lambda: optimizers.Adagrad(0.1, initial_accumulator_value=0.3),
    "adagrad from nothing": lambda: optimizers.Adagrad(0.1, initial_accumulator_value=0.0, epsilon=1e-3),
    "clipped": lambda: optimizers.Adam(0.01, clipvalue=0.4),
    "exponential": lambda: optimizers.SGD(schedules.ExponentialDecay(0.1, 5, 0.5)),
    "stairs": lambda: optimizers.SGD(schedules.ExponentialDecay(0.1, 5, 0.5, staircase=True)),
    "piecewise": lambda: optimizers.SGD(schedules.PiecewiseConstantDecay([2, 7], [0.3, 0.2, 0.1])),
    "cosine": lambda: optimizers.Adam(schedules.CosineDecay(0.1, 9, alpha=0.2)),
    "warm cosine": lambda: optimizers.AdamW(
        schedules.CosineDecay(0.0, 5, warmup_target=0.2, warmup_steps=4), weight_decay=0.1
    ),
    "target without warm-up": lambda: optimizers.SGD(schedules.CosineDecay(0.0, 5, warmup_target=0.2)),
    "unused warm-up": lambda: optimizers.SGD(schedules.CosineDecay(0.1, 5, warmup_steps=4)),
    "restarts": lambda: optimizers.SGD(schedules.CosineDecayRestarts(0.1, 5, m_mul=0.5, alpha=0.1)),
    "slow restarts": lambda: optimizers.SGD(schedules.CosineDecayRestarts(0.1, 3, t_mul=1.5)),
    "periods": lambda: optimizers.SGD(schedules.CosineDecayRestarts(0.1, 4, t_mul=1.0, m_mul=0.9)),
    "polynomial": lambda: optimizers.SGD(schedules.PolynomialDecay(0.1, 5, 0.01, power=2.0)),
    "cycles": lambda: optimizers.SGD(schedules.PolynomialDecay(0.1, 5, 0.01, cycle=True)),
    "inverse time": lambda: optimizers.SGD(schedules.InverseTimeDecay(0.1, 5, 0.5)),
}


def close(mine, theirs, dtype):
    # float64 too: Keras rounds the learning rate to float32, and so do servers.
    tolerance = 2e-5 if dtype == "float32" else 1e-6
    np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_those_of_keras(name, dtype):
    random = np.random.default_rng(len(name))
    optimizer = OPTIMIZERS[name]()
    values = random.normal(size=(7, 90)).astype(dtype)
    theirs = keras.Variable(values, dtype=dtype)
    optimizer.build([theirs])
    rule = ps.rule_of(optimizer, [theirs])
    slots = rule.slots(values)
    for step in range(STEPS):
        gradient = random.normal(size=values.shape).astype(dtype)
        optimizer.apply([keras.ops.convert_to_tensor(gradient)])
        rule.apply(values, slots, gradient, step=step)
        close(values, theirs.numpy(), dtype)
    kept = {v.name.rsplit("_", 1)[-1]: v.numpy() for v in optimizer.variables if v.shape == values.shape}
    assert len(kept) == len(slots)
    for slot, array in slots.items():
        close(array, kept[slot.rsplit("_", 1)[-1]], dtype)


@pytest.mark.parametrize(
    "name", [name for name in OPTIMIZERS if "sgd" in name or "adam" in name or "prop" in name]
)
def test_a_learning_rate_that_comes_with_a_push_is_as_one_that_is_set(name):
    random = np.random.default_rng(len(name))
    optimizer = OPTIMIZERS[name]()
    values = random.normal(size=40).astype("float32")
    theirs = keras.Variable(values)
    optimizer.build([theirs])
    rule = ps.rule_of(optimizer, [theirs])
    slots = rule.slots(values)
    for step in range(STEPS):
        gradient = random.normal(size=values.shape).astype("float32")
        optimizer.learning_rate = 0.1 / (1 + step)
        optimizer.apply([keras.ops.convert_to_tensor(gradient)])
        rate = float(optimizer.learning_rate.numpy())
        rule.apply(values, slots, gradient, step=step, learning_rate=rate)
        close(values, theirs.numpy(), "float32")


def test_weight_decay_spares_what_the_optimizer_spares():
    rule = ps.rule_of(optimizers.SGD(0.5, weight_decay=0.1))
    spared, decayed = np.ones(3, np.float32), np.ones(3, np.float32)
    rule.apply(spared, {}, np.zeros(3, np.float32), step=0, decays=False)
    rule.apply(decayed, {}, np.zeros(3, np.float32), step=0)
    np.testing.assert_array_equal(spared, 1)
    np.testing.assert_array_equal(decayed, np.float32(0.95))


class Mine(optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        pass


class Warm(schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.1

    def get_config(self):
        return {}


@pytest.mark.parametrize(
    ("optimizer", "message_part"),
    [
        (lambda: optimizers.Lion(0.1), "class Lion cannot be applied"),
        (lambda: Mine(0.1), "Mine changes update_step of SGD"),
        (lambda: optimizers.SGD(0.1, global_clipnorm=1.0), "global_clipnorm=1.0: no server sees all"),
        (
            lambda: optimizers.SGD(0.1, clipnorm=1.0),
            "clipnorm=1.0: a server with a part of a gradient does not know its norm",
        ),
        (lambda: optimizers.SGD(0.1, use_ema=True), "use_ema=True: servers keep no moving average"),
        (lambda: optimizers.SGD(0.1, gradient_accumulation_steps=2), "gradient_accumulation_steps=2"),
        (lambda: optimizers.SGD(0.1, loss_scale_factor=2.0), "loss_scale_factor=2.0"),
        (lambda: optimizers.SGD(Warm()), "learning rate of class Warm"),
        (lambda: object(), "class object"),
    ],
)
def test_what_servers_cannot_apply_is_refused_with_what_they_can(optimizer, message_part):
    with pytest.raises(ConfigError) as refused:
        ps.rule_of(optimizer())
    assert message_part in str(refused.value)
    assert "Servers apply Keras' SGD, Adam, AdamW, RMSprop, Adagrad" in str(refused.value)
    assert "CosineDecay" in str(refused.value)


def test_a_constraint_of_a_variable_is_refused():
    layer = keras.layers.Dense(2, kernel_constraint="non_neg")
    layer.build((None, 3))
    with pytest.raises(ConfigError, match="kernel has a constraint"):
        ps.rule_of(optimizers.SGD(0.1), layer.trainable_variables)


def test_a_rule_without_a_learning_rate_needs_one():
    rule = ps.Rule("optimizer=sgd\nschedule=pushed\n")
    values = np.zeros(3, np.float32)
    with pytest.raises(ConfigError, match="this rule has no learning rate"):
        rule.apply(values, {}, np.ones(3, np.float32), step=0)
    rule.apply(values, {}, np.ones(3, np.float32), step=0, learning_rate=0.5)
    np.testing.assert_array_equal(values, -0.5)


def test_arrays_that_do_not_fit_are_refused():
    rule = ps.rule_of(optimizers.SGD(0.1))
    values = np.zeros(3, np.float32)
    with pytest.raises(ConfigError, match=r"float32\[3\], float64\[3\]"):
        rule.apply(values, {}, np.zeros(3), step=0)
    with pytest.raises(ConfigError, match="arrays of int64 to update"):
        rule.apply(np.zeros(3, np.int64), {}, np.zeros(3, np.int64), step=0)
