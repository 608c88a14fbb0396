"""Trains on handwritten digits with several ranks. Each rank has its own data and its own random weights.

At the end, the weights of all ranks are equal.

mpirun --bind-to none -np 2 python examples/01_keras_digits.py [--json FILE] [--epochs N] [--no-wrap]
"""

import argparse
import hashlib
import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras
import numpy as np
from sklearn.datasets import load_digits

import rdmacoll
from rdmacoll.optimizer import bucket_count

parser = argparse.ArgumentParser()
parser.add_argument("--json", help="write the summary to this file")
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--no-wrap", action="store_true", help="control run: each rank trains alone")
arguments = parser.parse_args()


def write(summary):
    if arguments.json and rank == 0:
        with open(arguments.json, "w") as file:
            json.dump(summary, file)


rdmacoll.init()
rank, ranks = rdmacoll.rank(), rdmacoll.size()
started = {"command": "train", "version": rdmacoll.__version__, "ok": False, "ranks": ranks}
try:
    write(started)  # if the training fails, this summary stays
except OSError as error:
    parser.error(f"--json {arguments.json} cannot be written: {error.strerror}")
keras.utils.set_random_seed(1 + rank)  # each rank has other weights and another order of batches

digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.images))
images, labels = digits.images[order, :, :, None] / 16.0, digits.target[order]
test_images, test_labels, images, labels = images[:360], labels[:360], images[360:], labels[360:]
each = len(images) // ranks  # equal shards give equal numbers of batches
shard = slice(rank * each, (rank + 1) * each)

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
optimizer = keras.optimizers.Adam(2e-3)
callbacks = []
if not arguments.no_wrap:
    optimizer = rdmacoll.DistributedOptimizer(optimizer)
    callbacks = [rdmacoll.keras.callbacks.BroadcastGlobalVariablesCallback(0)]
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
batch = max(1, min(32, 64 // ranks))
verbose = 2 if rank == 0 else 0
model.fit(images[shard], labels[shard], batch, arguments.epochs, verbose, callbacks=callbacks)

metrics = rdmacoll.metrics()
accuracy = float(np.mean(model.predict(test_images, verbose=0).argmax(-1) == test_labels))
digest = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).digest()
digests = rdmacoll.engine.allgather(np.frombuffer(digest, np.uint8)[None])
summary = {
    **started,
    "test_accuracy": accuracy,
    "weights_equal": bool((digests == digests[0]).all()),
    "weights_sha256": digest.hex(),
    "buckets": bucket_count(optimizer),
    "batches": metrics["batches"],
    "bytes": metrics["bytes_sent"] + metrics["bytes_received"],
    "communication_s": metrics["communication_s"],
    **{key: rdmacoll._world.world.describe()[key] for key in ("transport", "determinism")},
}
summary["ok"] = accuracy >= 0.95 and summary["weights_equal"]
if rank == 0:
    units = {"bytes": " sent and received by rank 0", "communication_s": " s"}
    for key in [key for key in summary if key not in ("command", "version", "ok")]:
        value = summary[key]
        text = f"{value:.3f}" if isinstance(value, float) else value
        print(f"{key.removesuffix('_s'):>16}  {text}{units.get(key, '')}")
    print("weights of all ranks are", "bitwise equal" if summary["weights_equal"] else "NOT EQUAL")
write(summary)
rdmacoll.shutdown()
sys.exit(0 if summary["ok"] else 1)
