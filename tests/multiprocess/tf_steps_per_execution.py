"""Tests the error of ranks with different steps_per_execution. Argument: the number of each rank."""

from __future__ import annotations

import sys

import keras
import numpy as np
from ranks import report

import rdmacoll

rdmacoll.init(stall_warning_s=1, stall_error_s=4)
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
steps = int(sys.argv[1 + rdmacoll.rank()])
model.compile(rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", steps_per_execution=steps)
data = np.ones((64, 3), np.float32), np.ones((64, 1), np.float32)
try:
    model.fit(*data, batch_size=4, epochs=2, verbose=0)
    answers = "trained"
except Exception as error:
    typed = rdmacoll.error_from(error) or error
    answers = f"{type(typed).__name__}: {typed}"
report(answers)
