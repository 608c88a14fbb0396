"""Uneven data: a rank whose data ends calls join(). The other ranks go on without it.

rdmacoll run -np 2 python examples/03_uneven_data.py
"""

import keras
import numpy as np
from sklearn.datasets import load_digits

import rdmacoll

rdmacoll.init()
rank, ranks = rdmacoll.rank(), rdmacoll.size()
keras.utils.set_random_seed(1 + rank)

digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.images))  # the same order on all ranks
images, labels = digits.data[order] / 16.0, digits.target[order]
test_images, test_labels, images, labels = images[:360], labels[:360], images[360:], labels[360:]
# Rank 0 has one part of the data, rank 1 has two parts, and so on.
cuts = np.cumsum(np.arange(ranks + 1)) * len(images) // (ranks * (ranks + 1) // 2)
mine = slice(cuts[rank], cuts[rank + 1])

model = keras.Sequential(
    [keras.layers.Input((64,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = rdmacoll.DistributedOptimizer(keras.optimizers.Adam(2e-3))
model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
callback = rdmacoll.keras.callbacks.BroadcastGlobalVariablesCallback(0)
for _ in range(12):
    model.fit(images[mine], labels[mine], batch_size=32, verbose=0, callbacks=[callback])
    # A rank that has joined misses the last steps. The rank that joins last has run all steps, so the others
    # take its variables.
    last = rdmacoll.join()
    rdmacoll.broadcast_variables(model.variables + model.optimizer.variables, root_rank=last)

_, accuracy = model.evaluate(test_images, test_labels, verbose=0)
steps = rdmacoll.engine.allgather(-(-(cuts[rank + 1] - cuts[rank]) // 32))
if rank == 0:
    print(f"steps of an epoch, by rank: {steps.tolist()}; accuracy {accuracy:.3f}")
