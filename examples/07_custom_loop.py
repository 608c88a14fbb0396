"""A training loop of your own: a gradient tape, and the averages of its gradients over all ranks.

rdmacoll run -np 2 python examples/07_custom_loop.py
"""

import keras
import numpy as np
import tensorflow as tf

import rdmacoll

rdmacoll.init()
rank, ranks = rdmacoll.rank(), rdmacoll.size()
keras.utils.set_random_seed(1 + rank)

x = np.random.default_rng(rank).normal(size=(512, 3)).astype("float32")  # each rank has its own data
y = x @ np.array([[1.0], [-2.0], [0.5]], "float32") + 3.0

model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1)
rdmacoll.broadcast_variables(model.variables, root_rank=0)  # all ranks begin with the same weights


@tf.function
def train(inputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """One step. Returns the loss of this rank's batch."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(inputs) - targets) ** 2)
    tape = rdmacoll.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


for step in range(200):
    first = 32 * step % len(x)
    loss = train(x[first : first + 32], y[first : first + 32])
mean = rdmacoll.allreduce(loss)  # the average of all ranks' losses
if rank == 0:
    kernel, bias = model.get_weights()
    print(f"ranks: {ranks}, loss {mean:.6f}, kernel {kernel.ravel().round(3).tolist()}, bias {bias[0]:.3f}")
