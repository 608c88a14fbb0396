"""`make train`: runs the first example on all ranks, then judges the model and writes a summary.

    mpirun --bind-to none -np 2 python tests/train.py [--json FILE] [--epochs N] [--no-wrap]

The exit code is 0 if the accuracy is at least 95 % and the weights of all ranks are bitwise equal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np

import rdmacoll
from rdmacoll._world import world
from rdmacoll.optimizer import bucket_count

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "01_keras_digits.py"
ACCURACY = 0.95
_UNITS = {"bytes": " sent and received by rank 0", "communication_s": " s"}


def arguments_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Reads the command line."""
    parser.add_argument("--json", help="write the summary to this file")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--no-wrap", action="store_true", help="control run: each rank trains alone")
    return parser.parse_args()


def train_alone() -> None:
    """Makes the wrapper and the broadcast do nothing, so that each rank trains alone."""
    import keras

    rdmacoll.DistributedOptimizer = lambda optimizer: optimizer
    rdmacoll.keras.callbacks.BroadcastGlobalVariablesCallback = lambda _: keras.callbacks.Callback()


def summary_of(found: dict[str, Any]) -> dict[str, Any]:
    """The summary of a training, the same on all ranks but for this rank's totals. found: the example's
    variables."""
    model, metrics = found["model"], rdmacoll.metrics()
    predicted = model.predict(found["test_images"], verbose=0).argmax(-1)
    digest = hashlib.sha256(b"".join(array.tobytes() for array in model.get_weights())).digest()
    digests = rdmacoll.engine.allgather(np.frombuffer(digest, np.uint8)[None])
    engine = world.describe()
    return {
        "test_accuracy": float(np.mean(predicted == found["test_labels"])),
        "weights_equal": bool((digests == digests[0]).all()),
        "weights_sha256": digest.hex(),
        "buckets": bucket_count(found["optimizer"]),
        "batches": metrics["batches"],
        "bytes": metrics["bytes_sent"] + metrics["bytes_received"],
        "communication_s": metrics["communication_s"],
        "transport": engine["transport"],
        "determinism": engine["determinism"],
    }


def show(summary: dict[str, Any]) -> None:
    """Prints the summary."""
    for key in [key for key in summary if key not in ("command", "version", "ok")]:
        value = summary[key]
        text = f"{value:.3f}" if isinstance(value, float) else value
        print(f"{key.removesuffix('_s'):>16}  {text}{_UNITS.get(key, '')}")
    print("weights of all ranks are", "bitwise equal" if summary["weights_equal"] else "NOT EQUAL")


def main() -> int:
    """Runs this rank. Returns the exit code."""
    parser = argparse.ArgumentParser()
    arguments = arguments_of(parser)
    rdmacoll.init()
    is_first = rdmacoll.rank() == 0

    def write(summary: dict[str, Any]) -> None:
        if arguments.json and is_first:
            Path(arguments.json).write_text(json.dumps(summary))

    begun = {"command": "train", "version": rdmacoll.__version__, "ok": False, "ranks": rdmacoll.size()}
    try:
        write(begun)  # this summary stays if the training fails
    except OSError as error:
        parser.error(f"--json {arguments.json} cannot be written: {error.strerror}")
    if arguments.no_wrap:
        train_alone()
    sys.argv = [str(EXAMPLE), str(arguments.epochs)]
    summary = {**begun, **summary_of(runpy.run_path(str(EXAMPLE), run_name="__main__"))}
    summary["ok"] = summary["test_accuracy"] >= ACCURACY and summary["weights_equal"]
    if is_first:
        show(summary)
    write(summary)
    rdmacoll.shutdown()
    return 0 if summary["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
