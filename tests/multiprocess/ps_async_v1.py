"""TensorFlow 1's optimizers with asynchronous parameter servers. The arguments are a function and the number
of servers. The function's result is reported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from ranks import report

import rdmacoll
from rdmacoll import ps

TASK, SERVERS, *ARGUMENTS = sys.argv[1:]
WRAP = rdmacoll.DistributedOptimizer
STEPS = 12
# Adam also moves rows without a gradient. The worker receives such a row only when it pushes it again, so it
# is later than the plain optimizer.
is_dense = "adam" in ARGUMENTS
v1 = tf.compat.v1
train = v1.train
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "gradient_descent": lambda: train.GradientDescentOptimizer(0.1),
    "decayed": lambda: train.GradientDescentOptimizer(decayed(0.1)),
    "momentum": lambda: train.MomentumOptimizer(decayed(0.05), 0.9),
    "nesterov": lambda: train.MomentumOptimizer(decayed(0.05), 0.9, use_nesterov=True),
    "adam": lambda: train.AdamOptimizer(decayed(0.02), beta1=0.8),
    "adagrad": lambda: train.AdagradOptimizer(decayed(0.1)),
    "rmsprop": lambda: train.RMSPropOptimizer(decayed(0.01), momentum=0.5),
    "centered": lambda: train.RMSPropOptimizer(0.01, decay=0.8, epsilon=1e-3, centered=True),
}


def decayed(rate: float) -> Any:
    return train.exponential_decay(rate, train.get_or_create_global_step(), 4, 0.5)


def values(salt: int, *shape: int) -> np.ndarray:
    return np.random.default_rng([4, salt]).normal(size=shape).astype(np.float32)


def weights(own: float = 0) -> dict[str, Any]:
    """Makes an embedding, a matrix and a float64 bias."""
    return {
        "words": v1.get_variable("words", initializer=values(1, 50, 3) + np.float32(own)),
        "kernel": v1.get_variable("kernel", initializer=values(2, 3, 4) + np.float32(own)),
        "bias": v1.get_variable("bias", initializer=values(3, 4).astype(np.float64) + own),
    }


def loss_of(made: dict[str, Any], rows: Any) -> Any:
    words = made["words"] * 1.0 if is_dense else made["words"]
    out = tf.cast(tf.gather(words, rows) @ made["kernel"], tf.float64) + made["bias"]
    return tf.reduce_mean((tf.tanh(out) - 0.3) ** 2)


def batch(step: int, worker: int = 0) -> np.ndarray:
    rows = np.random.default_rng([5, step, worker]).integers(0, 25, 8)
    return np.concatenate([rows, rows[:2]])  # two rows occur twice


def in_session(wrap: Callable[[Any], Any], make: Callable[[], Any], way: str) -> list[Any]:
    """Returns all variables after each step, then those of the servers, and the global step."""
    with tf.Graph().as_default(), v1.Session() as session:
        made = weights()
        rows = v1.placeholder(tf.int64, (None,))
        step_count = train.get_or_create_global_step()
        optimizer = wrap(make())
        if way == "minimize":
            step = optimizer.minimize(loss_of(made, rows), global_step=step_count)
        else:
            pairs = optimizer.compute_gradients(loss_of(made, rows))
            step = optimizer.apply_gradients(pairs, global_step=step_count)
        assert step in v1.get_collection(v1.GraphKeys.TRAIN_OP)
        session.run(v1.global_variables_initializer())
        seen = []
        for number in range(STEPS):
            session.run(step, {rows: batch(number)})
            seen.append(session.run(made))
        return [seen, session.run(step_count)]


def in_eager_steps(wrap: Callable[[Any], Any], make: Callable[[], Any], way: str) -> list[Any]:
    made = {
        name: tf.Variable(start, name=f"eager/{name}")
        for name, start in [("words", values(1, 50, 3)), ("kernel", values(2, 3, 4))]
    }
    made["bias"] = tf.Variable(values(3, 4).astype(np.float64), name="eager/bias")
    optimizer, step_count = wrap(make()), tf.Variable(0, dtype=tf.int64)
    variables = list(made.values())

    def step(rows: Any) -> None:
        if way == "eager":
            optimizer.minimize(lambda: loss_of(made, rows), step_count, variables)
            return
        with tf.GradientTape() as tape:
            loss = loss_of(made, rows)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables), step_count)

    run = tf.function(step) if way == "function" else step
    seen = []
    for number in range(STEPS):
        run(tf.constant(batch(number)))
        seen.append({name: one.numpy() for name, one in made.items()})
    return [seen, int(step_count.numpy())]


def same_as_plain(name: str, way: str) -> list[float]:
    """Trains one worker. Returns the largest difference to the plain optimizer in any step, the difference of
    the servers' variables at the end, and how far the variables moved."""
    there = in_session if way in ("minimize", "apply", "refs") else in_eager_steps
    if way == "refs":
        v1.disable_v2_behavior()
    (plain, steps), (served, counted) = [
        there(wrap, OPTIMIZERS[name], way) for wrap in (lambda one: one, WRAP)
    ]
    assert steps == counted == STEPS
    in_steps = max(
        float(np.abs(one[key] - other[key]).max()) for one, other in zip(plain, served) for key in one
    )
    prefix = "eager/" if there is in_eager_steps else ""
    ends = max(float(np.abs(plain[-1][key] - ps.pull(prefix + key)).max()) for key in plain[-1])
    return [in_steps, ends, float(np.abs(plain[0]["kernel"] - plain[-1]["kernel"]).max())]


def together(name: str) -> dict[str, Any]:
    """Trains several workers. Their session is restarted in the middle."""
    me = rdmacoll.rank()
    with tf.Graph().as_default():
        made = weights()
        rows = v1.placeholder(tf.int64, (None,))
        loss = loss_of(made, rows)
        step_count = train.get_or_create_global_step()
        step = WRAP(OPTIMIZERS[name]()).minimize(loss, global_step=step_count)
        for _ in range(2):
            with train.MonitoredTrainingSession() as session:
                for number in range(60):
                    session.run(step, {rows: batch(number, me)})
                steps = int(session.run(step_count))
        rdmacoll.engine.barrier()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            begin = float(session.run(loss, {rows: np.arange(25)}))
            for key, variable in made.items():
                variable.load(ps.pull(key), session)
            end = float(session.run(loss, {rows: np.arange(25)}))
    return {"loss": end / begin, "steps": steps, "updates": sum(s["updates"] for s in ps.stats())}


def first_values(way: str) -> list[bool]:
    """Takes one step on each worker. The first worker's changes nothing; the other's would change much.

    Returns whether both workers and the servers have the first worker's values."""
    me = rdmacoll.rank()
    optimizer = WRAP(train.GradientDescentOptimizer(1000.0 * me))
    if way == "eager":
        own = np.float32(me)
        made = {"words": tf.Variable(values(1, 50, 3) + own, name="words")}
        made["kernel"] = tf.Variable(values(2, 3, 4) + own, name="kernel")
        made["bias"] = tf.Variable(values(3, 4).astype(np.float64) + own, name="bias")
        optimizer.minimize(lambda: loss_of(made, [1, 2]), None, list(made.values()))
        found = {name: one.numpy() for name, one in made.items()}
    else:
        with tf.Graph().as_default(), v1.Session() as session:
            made = weights(own=me)
            step = optimizer.minimize(loss_of(made, [1, 2]))
            session.run(v1.global_variables_initializer())
            session.run(step)
            found = session.run(made)
    rdmacoll.engine.barrier()
    wanted = {"words": values(1, 50, 3), "kernel": values(2, 3, 4), "bias": values(3, 4)}
    return [bool((one == wanted[name]).all()) for name in wanted for one in (found[name], ps.pull(name))]


def second_session(way: str) -> dict[str, bool]:
    """Starts a second session, which initializes variables that the servers have trained.

    Returns whether its first step takes the servers' values and pushes nothing."""
    if way == "refs":
        v1.disable_v2_behavior()
    with tf.Graph().as_default():
        made = weights(own=rdmacoll.rank())
        rate = v1.placeholder(tf.float32, ())
        step_count = train.get_or_create_global_step()
        optimizer = WRAP(train.GradientDescentOptimizer(rate))
        step = optimizer.minimize(loss_of(made, [1, 2]), global_step=step_count)
        found = []
        for _ in range(2):
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                rdmacoll.engine.barrier()
                trained = {name: ps.pull(name) for name in made} if found else {}
                updates = [one["updates"] for one in ps.stats()]
                rdmacoll.engine.barrier()
                session.run(step, {rate: 0.5})
                rdmacoll.engine.barrier()
                found = [session.run(made), {name: ps.pull(name) for name in made}]
                unchanged = updates == [one["updates"] for one in ps.stats()]
                rdmacoll.engine.barrier()
                session.run(step, {rate: 0.5})
                rdmacoll.engine.barrier()
                steps = int(session.run(step_count))
        end = {name: ps.pull(name) for name in made}
    return {
        "pushed nothing": unchanged,
        "took values": all((one[name] == trained[name]).all() for one in found for name in made),
        "went on": all((end[name] != trained[name]).any() for name in made),
        "counted": steps == 2,
    }


def refused() -> list[str]:
    answers = []

    class Own(train.MomentumOptimizer):
        def _apply_dense(self, grad: Any, var: Any) -> Any:
            return tf.no_op()

    def trained(optimizer: Any, dtype: Any = tf.float32, name: str = "v", **options: Any) -> None:
        with tf.Graph().as_default(), v1.Session() as session:
            step = WRAP(optimizer).minimize(tf.reduce_sum(v1.get_variable(name, (2,), dtype, **options)))
            session.run(v1.global_variables_initializer())
            session.run(step)

    attempts = [
        lambda: WRAP(train.FtrlOptimizer(0.1)),
        lambda: WRAP(Own(0.1, 0.9)),
        lambda: WRAP(train.MomentumOptimizer(0.1, lambda: 0.9)),
        lambda: WRAP(train.AdamOptimizer(0.1), op=rdmacoll.Sum),
        lambda: trained(train.AdamOptimizer(0.1), tf.float16),
        lambda: trained(train.AdamOptimizer(0.1), constraint=tf.nn.relu),
        lambda: [trained(train.AdamOptimizer(0.1)) for _ in range(2)],
    ]
    for attempt in attempts:
        try:
            attempt()
            answers.append("nothing")
        except (rdmacoll.RdmacollError, tf.errors.OpError) as error:
            typed = rdmacoll.error_from(error)
            answers.append(f"{type(typed).__name__}: {typed}")
    return answers


def scaled_losses() -> list[float]:
    """Trains with loss scaling, which skips steps with gradients that are not finite."""
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("weight", initializer=np.float32([1.0, 2.0]))
        factor = v1.placeholder(tf.float32, ())
        scaling = v1.mixed_precision.MixedPrecisionLossScaleOptimizer
        optimizer = scaling(train.GradientDescentOptimizer(0.25), v1.mixed_precision.DynamicLossScale())
        step = WRAP(optimizer).minimize(tf.reduce_sum(weight) * factor)
        session.run(v1.global_variables_initializer())
        for number in range(3):
            session.run(step, {factor: np.inf if number == 1 else 1.0})
        return [*map(float, session.run(weight)), *map(float, ps.pull("weight"))]


def two_in_one_run() -> list[float]:
    """Runs the steps of two optimizers in one session run. Variables are declared in the program's order.

    Each variable follows its own optimizer."""
    with tf.Graph().as_default(), v1.Session() as session:
        made = [v1.get_variable(f"w{i}", initializer=np.zeros(2, np.float32)) for i in range(2)]
        steps = [
            WRAP(optimizer).minimize(tf.reduce_sum(one), var_list=[one])
            for optimizer, one in zip(
                (train.GradientDescentOptimizer(0.5), train.MomentumOptimizer(10, 0)), made
            )
        ]
        session.run(v1.global_variables_initializer())
        session.run(steps[rdmacoll.rank()])
        session.run(steps)
        rdmacoll.engine.barrier()
        return [float(ps.pull(f"w{i}")[1]) for i in range(2)]


if __name__ == "__main__":
    placement = "colocated" if SERVERS == "colocated" else "dedicated"
    rdmacoll.init(
        mode="ps",
        sync=False,
        placement=placement,
        num_servers=1 if placement == "colocated" else int(SERVERS),
    )
    report(globals()[TASK](*ARGUMENTS))
    rdmacoll.shutdown()
