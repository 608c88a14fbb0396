"""Runs the small training with TensorFlow's own parameter servers over gRPC, without rdmacoll.

The arguments are this process's number, the kind, the number of servers, and the addresses of the servers and
of the workers. There are two kinds:

- "sessions": TensorFlow 1. Each worker has its own graph and session. The servers have the variables and
  gather the gradients. The first worker applies their mean, and the last worker reports the weights.
- "strategy": ParameterServerStrategy. The workers compute the gradients of their shares at the same time. One
  more process, the last, is the client. It applies their mean and reports the weights.
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
FOLDER = Path(os.environ["RANKS_FOLDER"])  # it gets a file for each process that has trained
v1 = tf.compat.v1


def loss_of(weights: Sequence[Any], x: Any, y: Any) -> Any:
    """Returns the loss of the Keras network with these weights."""
    hidden = tf.tanh(tf.matmul(x, weights[0]) + weights[1])
    hidden = tf.nn.relu(tf.matmul(hidden, weights[2]) + weights[3])
    return tf.reduce_mean(tf.square(tf.matmul(hidden, weights[4]) + weights[5] - y))


def train_in_a_session(worker: int, target: str) -> list[Any]:
    initial = network().get_weights()
    setter = v1.train.replica_device_setter(cluster=CLUSTER, worker_device=f"/job:worker/task:{worker}")
    with tf.Graph().as_default(), v1.device(setter):
        # The device setter places the weights on the servers in turn.
        weights = [v1.get_variable(f"w{i}", initializer=one) for i, one in enumerate(initial)]
        x, y = v1.placeholder(tf.float32, (None, 6)), v1.placeholder(tf.float32, (None, 1))
        number = v1.placeholder(tf.int64, ())
        gathered, pushes, tokens = [], [], []
        for i, (weight, gradient) in enumerate(zip(weights, tf.gradients(loss_of(weights, x, y), weights))):
            with v1.device(weight.device):
                gathered.append(v1.ConditionalAccumulator(tf.float32, weight.shape, f"gradients{i}"))
                pushes.append(gathered[-1].apply_grad(gradient, number))
        with v1.device("/job:ps/task:0"):
            for one in range(WORKERS):
                tokens.append(v1.FIFOQueue(1, [tf.bool], shared_name=f"tokens{one}"))
        work = [*pushes, tokens[worker].dequeue()]
        if worker == 0:
            means = [one.take_grad(WORKERS) for one in gathered]
            applied = v1.train.MomentumOptimizer(RATE, MOMENTUM).apply_gradients(zip(means, weights))
            with tf.control_dependencies([applied]):
                work += [one.enqueue(True) for one in tokens]
        inputs, targets = rows_of(worker, WORKERS)
        each = BATCH // WORKERS
        with v1.Session(target) as session:
            if worker == 0:
                session.run(v1.global_variables_initializer())
            while session.run(v1.report_uninitialized_variables(weights)).size:
                time.sleep(0.1)
            for step in range(EPOCHS * STEPS):
                batch = slice(step % STEPS * each, (step % STEPS + 1) * each)
                session.run(work, {x: inputs[batch], y: targets[batch], number: step})
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
    def gradients(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(weights, x, y)
        return tape.gradient(loss, weights)

    shares = [[tf.constant(one) for one in rows_of(worker, WORKERS)] for worker in range(WORKERS)]
    each = BATCH // WORKERS
    for number in range(EPOCHS * STEPS):
        batch = slice(number % STEPS * each, (number % STEPS + 1) * each)
        parts = [coordinator.schedule(gradients, args=(x[batch], y[batch])) for x, y in shares]
        found = [part.fetch() for part in parts]
        for weight, speed, *one_each in zip(weights, speeds, *found):
            mean = tf.add_n(one_each) / WORKERS
            weight.assign_add(speed.assign(MOMENTUM * speed - RATE * mean))  # the formula of Keras' SGD
    return [weight.numpy() for weight in weights]


def has_trained(number: int) -> Path:
    return FOLDER / f"trained-{number}"


LAST = len(ADDRESSES) - (KIND == "sessions")  # the process that reports
TRAINING = range(int(SERVERS), LAST + 1) if KIND == "sessions" else [LAST]
me = int(NUMBER)
server = None
if me < len(ADDRESSES):
    worker = me - len(CLUSTER["ps"])
    job, index = ("ps", me) if worker < 0 else ("worker", worker)
    server = tf.distribute.Server(CLUSTER, job_name=job, task_index=index, protocol="grpc")
if me in TRAINING:
    try:
        trained = train_by_a_strategy() if server is None else train_in_a_session(worker, server.target)
        if me == LAST:
            report(np.concatenate([weight.ravel() for weight in trained]).tolist(), me)
    finally:
        has_trained(me).touch()
while not all(has_trained(one).exists() for one in TRAINING):
    time.sleep(0.1)
sys.stdout.flush()
os._exit(0)  # servers of TensorFlow do not end
