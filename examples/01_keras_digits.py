"""Keras: the ranks train one model on handwritten digits. Each rank has its own part of the images.

rdmacoll run -np 2 python examples/01_keras_digits.py [EPOCHS]
"""

import sys

import keras
import numpy as np
from sklearn.datasets import load_digits

import rdmacoll

epochs = int(sys.argv[1]) if sys.argv[1:] else 12
rdmacoll.init()
rank, ranks = rdmacoll.rank(), rdmacoll.size()
keras.utils.set_random_seed(1 + rank)  # other weights on each rank, until the callback sends those of rank 0

digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.images))  # the same order on all ranks
images, labels = digits.images[order, :, :, None] / 16.0, digits.target[order]
test_images, test_labels, images, labels = images[:360], labels[:360], images[360:], labels[360:]
each = len(images) // ranks  # equal parts, so that all ranks have the same number of batches
mine = slice(rank * each, (rank + 1) * each)

model = keras.Sequential(
    [
        keras.layers.Input((8, 8, 1)),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.Conv2D(64, 3, activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(10),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = rdmacoll.DistributedOptimizer(keras.optimizers.Adam(2e-3))  # averages the gradients of all ranks
model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
callbacks = [rdmacoll.keras.callbacks.BroadcastGlobalVariablesCallback(0)]
batch, verbose = max(1, min(32, 64 // ranks)), 2 if rank == 0 else 0
model.fit(images[mine], labels[mine], batch, epochs, verbose, callbacks=callbacks)

if rank == 0:
    _, accuracy = model.evaluate(test_images, test_labels, verbose=0)
    print(f"ranks: {ranks}, accuracy {accuracy:.3f} on images that no rank has trained with")
