"""Compression: gradients travel as 16 bits. The weights stay float32.

rdmacoll run -np 2 python examples/09_compression.py
"""

import keras
import numpy as np

import rdmacoll

rdmacoll.init()
rank, ranks = rdmacoll.rank(), rdmacoll.size()
x = np.random.default_rng(rank).normal(size=(2048, 256)).astype("float32")  # each rank has its own data
y = x.sum(axis=1, keepdims=True)


def train(compression: object) -> tuple[float, float]:
    """Trains a fresh model. Returns its loss, and the megabytes of its gradients on the wire."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((256,)), keras.layers.Dense(256), keras.layers.Dense(1)])
    optimizer = rdmacoll.DistributedOptimizer(keras.optimizers.Adam(1e-3), compression=compression)
    model.compile(optimizer=optimizer, loss="mse")
    before = rdmacoll.metrics()["payload_bytes"]
    model.fit(x, y, batch_size=32, epochs=3, verbose=0)
    travelled = rdmacoll.metrics()["payload_bytes"] - before
    return model.evaluate(x, y, verbose=0), travelled / 1e6


for name in ("none", "fp16", "bf16"):
    loss, megabytes = train(getattr(rdmacoll.Compression, name))
    if rank == 0:
        print(f"{name}: loss {loss:.4f}, {megabytes:.1f} MB of gradients")
