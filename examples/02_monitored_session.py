"""TensorFlow 1: a graph, and a MonitoredTrainingSession. Rank 0 saves to a folder and continues from it.

rdmacoll run -np 2 python examples/02_monitored_session.py [FOLDER]
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

import rdmacoll

rdmacoll.init()
rank, ranks = rdmacoll.rank(), rdmacoll.size()
folder = sys.argv[1] if sys.argv[1:] and rank == 0 else None

digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.images))  # the same order on all ranks
images, labels = digits.data[order].astype(np.float32) / 16.0, digits.target[order]
test_images, test_labels, images, labels = images[:360], labels[:360], images[360:], labels[360:]
images, labels = images[rank::ranks], labels[rank::ranks]  # this rank's part

tf.disable_eager_execution()
tf.set_random_seed(1 + rank)  # other weights on each rank, until the hook sends those of rank 0
x, y = tf.placeholder(tf.float32, (None, 64)), tf.placeholder(tf.int64, (None,))
weights = [tf.get_variable(f"w{i}", shape) for i, shape in enumerate([(64, 128), (128,), (128, 10), (10,)])]
logits = tf.nn.relu(x @ weights[0] + weights[1]) @ weights[2] + weights[3]
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))

step = tf.train.get_or_create_global_step()
optimizer = rdmacoll.DistributedOptimizer(tf.train.AdamOptimizer(2e-3))  # averages the gradients of all ranks
train = optimizer.minimize(loss, step)
hooks = [rdmacoll.BroadcastGlobalVariablesHook(0)]
batches = np.random.default_rng([2, rank])
with tf.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks) as session:
    for _ in range(400):
        batch = batches.integers(0, len(images), 32)
        session.run(train, {x: images[batch], y: labels[batch]})
    reached, steps, values = session.run([accuracy, step, weights], {x: test_images, y: test_labels})

if rank == 0:
    print(f"ranks: {ranks}, accuracy {reached:.3f} after {steps} steps")
