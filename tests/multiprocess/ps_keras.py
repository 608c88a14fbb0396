"""Runs the same small training with gradients over any path. Runs on every rank, and reports the final
weights.

Arguments: the number of workers that share the data, and "plain" for the control run without the wrapper.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import tensorflow as tf
from ps_network import BATCH, EPOCHS, MOMENTUM, RATE, keras, network, rows_of
from ranks import report

import rdmacoll

WORKERS, IS_PLAIN = int(sys.argv[1]), "plain" in sys.argv

rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
assert SIZE in (1, WORKERS), SIZE


def fit() -> list[np.ndarray]:
    model, optimizer = network(), keras.optimizers.SGD(RATE, MOMENTUM)
    callbacks = []
    if not IS_PLAIN:
        if RANK > 0:  # the broadcast makes them equal
            model.set_weights([weight + RANK for weight in model.get_weights()])
        optimizer = rdmacoll.DistributedOptimizer(optimizer)
        callbacks = [rdmacoll.keras.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.compile(optimizer=optimizer, loss="mse")
    x, y = rows_of(RANK, SIZE)
    model.fit(x, y, BATCH // SIZE, EPOCHS, verbose=0, shuffle=False, callbacks=callbacks)
    return model.get_weights()


def loop() -> list[np.ndarray]:
    model, optimizer = network(), keras.optimizers.Adam(1e-2)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        if not IS_PLAIN:
            tape = rdmacoll.DistributedGradientTape(tape)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    x, y = rows_of(RANK, SIZE)
    each = BATCH // SIZE
    for _ in range(EPOCHS):
        for begin in range(0, len(x), each):
            step(tf.constant(x[begin : begin + each]), tf.constant(y[begin : begin + each]))
    return model.get_weights()


def pushes() -> None:
    """Tests push_pull of tensors, eager and in a graph, with its gradient."""
    mine = tf.constant([1.0, 2.0]) * float(RANK + 1)
    mean = (SIZE + 1) / 2
    assert np.allclose(rdmacoll.push_pull(mine), [mean, 2 * mean])
    total = tf.function(lambda tensor: rdmacoll.push_pull(tensor, rdmacoll.Sum, name="total"))
    assert np.allclose(total(mine), [SIZE * mean, 2 * SIZE * mean])
    with tf.GradientTape() as tape:
        tape.watch(mine)
        pulled = rdmacoll.push_pull(mine, rdmacoll.Sum)
    assert np.allclose(tape.gradient(pulled, mine), SIZE)


pushes()
weights = {"fit": fit(), "loop": loop()}
digest = hashlib.sha256(b"".join(one.tobytes() for way in weights.values() for one in way)).hexdigest()
flat = {way: np.concatenate([one.ravel() for one in found]).tolist() for way, found in weights.items()}
report({"digest": digest, "weights": flat})
