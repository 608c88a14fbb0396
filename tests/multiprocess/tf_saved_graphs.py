"""Saves graphs with our ops, or loads them. Arguments: the folder; save, or what is called before loading."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from ranks import report

folder, way = Path(sys.argv[1]), sys.argv[2]


class Model(tf.Module):
    def __init__(self) -> None:
        self.weights = tf.Variable([1.0, 2.0])

    @tf.function(input_signature=[tf.TensorSpec([2])])
    def step(self, gradient: Any) -> Any:
        import rdmacoll

        self.weights.assign_sub(rdmacoll.allreduce(gradient))
        return self.weights.read_value()


def save() -> None:
    import rdmacoll

    rdmacoll.init()
    tf.saved_model.save(Model(), str(folder / "module"))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None, 2], name="x")
        weights = tf.compat.v1.get_variable("w", initializer=tf.ones((2, 1)))
        tf.matmul(x, weights, name="y")
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - 5.0))
        optimizer = rdmacoll.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
        optimizer.minimize(loss, name="train")
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(folder / "v1"))


def load(*, steps: bool) -> None:
    model = tf.saved_model.load(str(folder / "module"))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        saver = tf.compat.v1.train.import_meta_graph(str(folder / "v1.meta"), clear_devices=True)
        saver.restore(session, str(folder / "v1"))
        data = {"x:0": np.ones((3, 2), np.float32)}
        assert np.array_equal(session.run("y:0", data), np.full((3, 1), 2.0))
        if steps:
            session.run("train", data)
            assert np.all(session.run("y:0", data) > 2.0)
    if steps:
        assert np.array_equal(model.step(tf.constant([1.0, 1.0])), [0.0, 1.0])


if way == "save":
    save()
elif way == "import":
    import rdmacoll.tensorflow

    load(steps=False)
    rdmacoll.init()
    load(steps=True)
elif way == "keras":
    import rdmacoll.keras

    load(steps=False)
else:
    import rdmacoll

    rdmacoll.init()
    load(steps=True)
report({"done": way}, rank=0)
