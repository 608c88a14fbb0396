"""Trains in the ways that its argument names, and reports each result.

The argument is a JSON list of cells [way, wrapper, library, optimizer, column]. All ranks train each cell
together. Then each rank trains a share of the cells alone, with the joined batches of all ranks. The result
"same" means that the weights have the same bits on all ranks, and equal those of one process. The other
results are "ranks differ", "other than one process", or the class and text of an exception.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

import numpy as np
import tensorflow as tf
from ranks import report
from tf_common import equal_on_all_ranks
from tf_trainings import BATCH, STEPS, WAYS, Training, dataset, initial_weights

import rdmacoll

rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
tf.keras.utils.set_random_seed(77 + RANK)
# The mean of joined batches and the mean of the ranks' means differ by rounding, in float32 or float16. A
# forgotten reduction changes the weights by much more.
TOLERANCE, TOLERANCE_OF_FLOAT16 = 2e-5, 3e-3


def joined(column: str) -> tuple[np.ndarray, ...]:
    parts = [dataset(rank, column, is_last=rank == SIZE - 1) for rank in range(SIZE)]
    steps = [slice(step * BATCH, (step + 1) * BATCH) for step in range(STEPS)]
    return tuple(np.concatenate([part[i][step] for step in steps for part in parts]) for i in (0, 1))


def together(cell: list[str]) -> list[np.ndarray] | str:
    """Returns the weights after a training of all ranks, or the text of the exception."""
    data = dataset(RANK, cell[-1], is_last=RANK == SIZE - 1)
    try:
        return WAYS[cell[0]](Training(*cell, data, initial_weights(RANK), is_distributed=True))
    except rdmacoll.RankFailedError:
        raise
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"


def alone(cell: list[str]) -> list[np.ndarray]:
    training = Training(*cell, joined(cell[-1]), initial_weights(0), is_distributed=False)
    return WAYS[cell[0]](training)


def judged(cell: list[str], weights: list[np.ndarray]) -> str:
    tolerance = TOLERANCE_OF_FLOAT16 if cell[-1] == "mixed_precision" else TOLERANCE
    wanted = alone(cell)
    moved = max(np.abs(a - b).max() for a, b in zip(wanted, initial_weights(0)))
    off = max(np.abs(a - b).max() for a, b in zip(wanted, weights))
    print(f"{cell}: off by {off:.2g}, moved by {moved:.2g}", flush=True)
    if moved < 10 * tolerance:
        return f"nothing to be equal in: moved by {moved}"
    return "same" if off < tolerance else f"other than one process: off by {off}"


cells: list[list[str]] = json.loads(sys.argv[1])
found: list[Any] = []
for cell in cells:
    print(f"rank {RANK}: {cell}", flush=True)
    result = together(cell)
    is_equal = isinstance(result, str) or equal_on_all_ranks(result)
    found.append(result if is_equal else "ranks differ")
for number, cell in enumerate(cells):
    if not isinstance(found[number], str):
        found[number] = judged(cell, found[number]) if number % SIZE == RANK else None
report(found)
rdmacoll.shutdown()
