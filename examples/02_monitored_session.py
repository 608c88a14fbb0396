"""Trains on handwritten digits in the style of TensorFlow 1: a graph and a MonitoredTrainingSession.

mpirun --bind-to none -np 2 python examples/02_monitored_session.py [--checkpoints FOLDER] [--fp16]
"""

import argparse
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

import rdmacoll

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoints", help="rank 0 saves there, and goes on from what is there")
parser.add_argument("--fp16", action="store_true", help="gradients travel as 16 bits")
arguments = parser.parse_args()
STEPS, BATCH = 400, 32

rdmacoll.init()
rank, ranks = rdmacoll.rank(), rdmacoll.size()
digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.images))
images, labels = digits.data[order].astype(np.float32) / 16.0, digits.target[order]
test_images, test_labels, images, labels = images[:360], labels[:360], images[360:], labels[360:]
images, labels = images[rank::ranks], labels[rank::ranks]  # this rank's share

tf.disable_eager_execution()
tf.set_random_seed(1 + rank)  # each rank has other weights; the hook broadcasts those of rank 0
x, y = tf.placeholder(tf.float32, (None, 64)), tf.placeholder(tf.int64, (None,))
weights = [tf.get_variable(f"w{i}", shape) for i, shape in enumerate([(64, 128), (128,), (128, 10), (10,)])]
logits = tf.nn.relu(x @ weights[0] + weights[1]) @ weights[2] + weights[3]
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))

compression = rdmacoll.Compression.fp16 if arguments.fp16 else rdmacoll.Compression.none
optimizer = rdmacoll.DistributedOptimizer(tf.train.AdamOptimizer(2e-3), compression=compression)
step = tf.train.get_or_create_global_step()
train = optimizer.minimize(loss, step)

hooks = [rdmacoll.BroadcastGlobalVariablesHook(0)]
folder = arguments.checkpoints if rank == 0 else None
batches = np.random.default_rng([2, rank])
with tf.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks) as session:
    for _ in range(STEPS):
        batch = batches.integers(0, len(images), BATCH)
        session.run(train, {x: images[batch], y: labels[batch]})
    reached, values = session.run([accuracy, weights], {x: test_images, y: test_labels})
    steps = session.run(step)

flat = np.concatenate([value.ravel() for value in values])
highest, lowest = (rdmacoll.engine.allreduce(flat, op) for op in (rdmacoll.Max, rdmacoll.Min))
are_equal = "are" if (highest == lowest).all() else "ARE NOT"
if rank == 0:
    print(f"accuracy {reached:.3f} after {steps} steps; weights of all ranks {are_equal} equal")
sys.exit(0 if reached >= 0.95 and are_equal == "are" else 1)
