"""Measures the cost of comparing the ranks' weights (RDMACOLL_CHECK_WEIGHTS=epoch) over 100 steps.

    python benchmarks/weights_check.py [--ranks 2] [--turns 7] [--model cnn] [--json FILE]

The cost is smaller than the noise of whole steps, so the parts are timed separately. An ordinary step counts
the update. An epoch has two comparisons: after the first update and after the last one. Before the timing,
the check must find equal ranks equal, and it must find a planted difference.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS = 100  # in an epoch
COMPARISONS = 2
GOAL = 0.001
COUNTS = 200  # updates that one call of the timed function counts
MODELS = ("cnn", "mlp", "resnet50")


def network(keras: Any, name: str) -> tuple[Any, tuple[int, ...], int]:
    """Returns the model, the shape of its input, and the batch size of a rank."""
    layers = keras.layers
    if name == "resnet50":
        return keras.applications.ResNet50(weights=None), (224, 224, 3), 8
    if name == "mlp":
        parts = [layers.Input((784,)), layers.Dense(512, "relu"), layers.Dense(256, "relu")]
        return keras.Sequential([*parts, layers.Dense(10)]), (784,), 128
    parts = [layers.Input((64, 64, 3))]
    for width in (32, 64, 128):
        parts += [layers.Conv2D(width, 3, activation="relu"), layers.BatchNormalization()]
        parts += [layers.MaxPooling2D()]
    return keras.Sequential([*parts, layers.Flatten(), layers.Dense(10)]), (64, 64, 3), 64


def work(name: str, turns: int) -> None:
    """Measures on one rank. Rank 0 prints its times."""
    import keras
    import numpy as np
    import tensorflow as tf

    import rdmacoll
    from rdmacoll.ops import _updates
    from rdmacoll.optimizer import update_check

    rdmacoll.init()
    rank = rdmacoll.rank()
    keras.utils.set_random_seed(11)
    model, shape, batch = network(keras, name)
    optimizer = rdmacoll.DistributedOptimizer(keras.optimizers.Adam(1e-4))
    generator = np.random.default_rng(rank)
    x = tf.constant(generator.standard_normal((batch, *shape)).astype(np.float32))
    y = tf.constant(generator.integers(0, 10, batch))
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    step()
    check = update_check.check_of(optimizer)
    assert check is not None
    sees_a_difference(rdmacoll, model, optimizer)

    @tf.function
    def count() -> None:
        for _ in range(COUNTS):
            _updates.count_update("benchmark", [one.value for one in model.trainable_variables])

    def timed(call: Any, times: int) -> list[float]:
        call()
        found = []
        for _ in range(times):
            rdmacoll.barrier()
            began = time.perf_counter()
            call()
            found.append(time.perf_counter() - began)
        return found

    steps = timed(lambda: float(step()), 3 * turns)
    comparisons = timed(check.compare, turns)
    counting = [seconds / COUNTS for seconds in timed(count, turns)]
    values = sum(int(np.prod(one.shape)) for one in [*model.trainable_variables, *optimizer.variables])
    if rank == 0:
        found = {"step": steps, "comparison": comparisons, "count": counting}
        print(json.dumps({"values": values, "seconds": found}), flush=True)
    rdmacoll.shutdown()


def sees_a_difference(rdmacoll: Any, model: Any, optimizer: Any) -> None:
    """Ends the benchmark unless the check accepts equal ranks and refuses different ones."""
    rdmacoll.check_weights(model, optimizer)
    kernel = model.trainable_variables[0]
    kept = kernel.numpy()
    kernel.assign(kept + 0.01 * rdmacoll.rank())
    try:
        rdmacoll.check_weights(model, optimizer)
    except rdmacoll.MismatchError:
        kernel.assign(kept)
        return
    raise SystemExit("a planted difference was not found")


def measured(ranks: int, turns: int, model: str) -> dict[str, Any]:
    """Starts the ranks and returns rank 0's report. Ends the benchmark if a rank fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            **os.environ,
            "RDMACOLL_SIZE": str(ranks),
            "RDMACOLL_RENDEZVOUS": address,
            "RDMACOLL_SECRET_FILE": str(Path(folder) / "secret"),
            "RDMACOLL_CHECK_WEIGHTS": "epoch",
            "KERAS_BACKEND": "tensorflow",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        command = [sys.executable, __file__, "--work", "--model", model, "--turns", str(turns)]
        processes = [
            subprocess.Popen(
                command, env={**environ, "RDMACOLL_RANK": str(rank)}, stdout=subprocess.PIPE, text=True
            )
            for rank in range(ranks)
        ]
        outputs = [process.communicate(timeout=1800)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a rank failed")
    found: dict[str, Any] = json.loads(outputs[0].splitlines()[-1])
    return found


def main() -> None:
    """Measures, prints, judges."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--model", choices=MODELS, default=MODELS[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.model, options.turns)
        return
    found = measured(options.ranks, options.turns, options.model)
    median = {what: statistics.median(times) for what, times in found["seconds"].items()}
    cost = STEPS * median["count"] + COMPARISONS * median["comparison"]
    share = cost / (STEPS * median["step"])
    print(f"{options.model}, {options.ranks} ranks, {found['values']:,} values, {platform.node()}")
    for what, times in found["seconds"].items():
        print(
            f"{what:>12}  {median[what] * 1e6:12.2f} us  ({min(times) * 1e6:.2f} to {max(times) * 1e6:.2f})"
        )
    print(f"{'share':>12}  {share:12.4%} of {STEPS} steps; the goal is {GOAL:.1%} at most")
    if options.json:
        facts = {"machine": platform.node(), "model": options.model, "ranks": options.ranks, **found}
        options.json.write_text(json.dumps({**facts, "share": share, "is_met": share <= GOAL}))


if __name__ == "__main__":
    main()
