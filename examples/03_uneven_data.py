"""Trains ranks with different numbers of batches. A rank whose data ends calls join(). The others go on.

mpirun --bind-to none -np 2 python examples/03_uneven_data.py
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras
import numpy as np
from sklearn.datasets import load_digits

import rdmacoll

rdmacoll.init()
rank, ranks = rdmacoll.rank(), rdmacoll.size()
keras.utils.set_random_seed(1 + rank)

digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.images))
images, labels = digits.images[order].reshape(-1, 64) / 16.0, digits.target[order]
test_images, test_labels, images, labels = images[:360], labels[:360], images[360:], labels[360:]
# Rank 0 has one part of the data, rank 1 has two parts, and so on.
cuts = np.cumsum(np.arange(ranks + 1)) * len(images) // (ranks * (ranks + 1) // 2)
shard = slice(cuts[rank], cuts[rank + 1])

model = keras.Sequential(
    [keras.layers.Input((64,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
)
optimizer = rdmacoll.DistributedOptimizer(keras.optimizers.Adam(2e-3))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
optimizer.build(model.trainable_variables)
rdmacoll.broadcast_variables(model.variables + optimizer.variables, root_rank=0)

for _ in range(12):
    model.fit(images[shard], labels[shard], 32, 1, 0)
    # A rank that joins early misses the last steps. The last rank has run all steps, so it broadcasts its
    # variables.
    last = rdmacoll.join()
    rdmacoll.broadcast_variables(model.variables + optimizer.variables, root_rank=last)

accuracy = float(np.mean(model.predict(test_images, verbose=0).argmax(-1) == test_labels))
steps = rdmacoll.engine.allgather(-(-(cuts[rank + 1] - cuts[rank]) // 32))
if rank == 0:
    print(f"steps per epoch, by rank: {steps.tolist()}; accuracy {accuracy:.3f}")
rdmacoll.shutdown()
sys.exit(0 if accuracy >= 0.9 else 1)
