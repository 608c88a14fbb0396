"""The small training by TensorFlow's own parameter server over gRPC, without rdmacoll; reports the weights.

Arguments: this process's number, "graph" (as of TensorFlow 1: variables on the server, a copy of the network
on each worker, the mean of their gradients) or "strategy" (ParameterServerStrategy, whose workers take steps
of the whole batch, one at a time), how many servers there are, and the addresses of the servers and of the
workers. These serve; one more, the last, is the client that trains.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from ps_network import BATCH, EPOCHS, MOMENTUM, RATE, STEPS, network, rows_of
from ranks import report

NUMBER, KIND, SERVERS, *ADDRESSES = sys.argv[1:]
CLUSTER = {"ps": ADDRESSES[: int(SERVERS)], "worker": ADDRESSES[int(SERVERS) :]}
WORKERS = len(CLUSTER["worker"])
IS_TRAINED = Path(os.environ["RANKS_FOLDER"]) / "trained"
v1 = tf.compat.v1


def loss_of(weights: Sequence[Any], x: Any, y: Any) -> Any:
    """What the network of Keras computes, of its weights."""
    hidden = tf.tanh(tf.matmul(x, weights[0]) + weights[1])
    hidden = tf.nn.relu(tf.matmul(hidden, weights[2]) + weights[3])
    return tf.reduce_mean(tf.square(tf.matmul(hidden, weights[4]) + weights[5] - y))


def train_in_a_graph() -> list[Any]:
    initial = network().get_weights()
    with tf.Graph().as_default():
        with v1.device(v1.train.replica_device_setter(len(CLUSTER["ps"]))):
            # In turn on the servers.
            weights = [v1.get_variable(f"w{i}", initializer=value) for i, value in enumerate(initial)]
        places, shares = [], []
        for worker in range(WORKERS):
            with tf.device(f"/job:worker/task:{worker}"):
                x, y = v1.placeholder(tf.float32, (None, 6)), v1.placeholder(tf.float32, (None, 1))
                places.append((x, y))
                shares.append(tf.gradients(loss_of(weights, x, y), weights))
        means = [tf.add_n(parts) / WORKERS for parts in zip(*shares)]
        step = v1.train.MomentumOptimizer(RATE, MOMENTUM).apply_gradients(zip(means, weights))
        rows = [rows_of(worker, WORKERS) for worker in range(WORKERS)]
        each = BATCH // WORKERS
        with v1.Session(f"grpc://{CLUSTER['worker'][0]}") as session:
            session.run(v1.global_variables_initializer())
            for number in range(EPOCHS * STEPS):
                batch = slice(number % STEPS * each, (number % STEPS + 1) * each)
                fed = {}
                for (x, y), (inputs, targets) in zip(places, rows):
                    fed.update({x: inputs[batch], y: targets[batch]})
                session.run(step, fed)
            return list(session.run(weights))


def train_by_a_strategy() -> list[Any]:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(CLUSTER), rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = [tf.Variable(value) for value in network().get_weights()]
        speeds = [tf.Variable(tf.zeros_like(weight)) for weight in weights]

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(weights, x, y)
        for weight, speed, gradient in zip(weights, speeds, tape.gradient(loss, weights)):
            weight.assign_add(speed.assign(MOMENTUM * speed - RATE * gradient))  # as Keras' SGD

    x, y = (tf.constant(values) for values in rows_of(0, 1))
    for number in range(EPOCHS * STEPS):
        batch = slice(number % STEPS * BATCH, (number % STEPS + 1) * BATCH)
        coordinator.schedule(step, args=(x[batch], y[batch]))
        coordinator.join()
    return [weight.numpy() for weight in weights]


if int(NUMBER) < len(ADDRESSES):
    index = int(NUMBER) - len(CLUSTER["ps"])
    job, index = ("ps", int(NUMBER)) if index < 0 else ("worker", index)
    server = tf.distribute.Server(CLUSTER, job_name=job, task_index=index, protocol="grpc")
    while not IS_TRAINED.exists():
        time.sleep(0.1)
else:
    try:
        trained = train_in_a_graph() if KIND == "graph" else train_by_a_strategy()
        report(np.concatenate([weight.ravel() for weight in trained]).tolist(), int(NUMBER))
    finally:
        IS_TRAINED.touch()
sys.stdout.flush()
os._exit(0 if IS_TRAINED.exists() else 1)  # servers of TensorFlow do not end
