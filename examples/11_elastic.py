"""An elastic job: one of three ranks dies, and the others go on from their last commit.

rdmacoll run -np 3 --min-np 2 python examples/11_elastic.py
"""

import os
import signal

import keras
import numpy as np
import tensorflow as tf

import rdmacoll

rdmacoll.init()
dies = rdmacoll.rank() == 2
x = np.random.default_rng(1).normal(size=(512, 3)).astype("float32")
y = x @ np.array([[1.0], [-2.0], [0.5]], "float32") + 3.0

model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
optimizer = rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.1))
state = rdmacoll.keras.elastic.KerasState(model, optimizer, step=0, loss=0.0)


@tf.function
def update(inputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """One step. Returns the loss of this rank's part."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(inputs) - targets) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@rdmacoll.keras.elastic.run
def train(state):
    """Trains from the state's step on, in each world."""
    print(f"rank {rdmacoll.rank()} of {rdmacoll.size()} begins at step {state.step}")
    mine = slice(rdmacoll.rank(), None, rdmacoll.size())  # each world divides the data anew
    while state.step < 200:
        state.loss = float(update(x[mine], y[mine]))
        state.step += 1
        if state.step % 50 == 0:
            state.commit()
        if dies and state.step == 120:
            os.kill(os.getpid(), signal.SIGKILL)


train(state)
if rdmacoll.rank() == 0:
    kernel, bias = model.get_weights()
    print(f"loss {state.loss:.6f}, kernel {kernel.ravel().round(3).tolist()}, bias {bias[0]:.3f}")
