"""An asynchronous parameter server: it owns a line and applies each gradient of two workers as it comes.

rdmacoll run -np 3 python examples/05_asynchronous_server.py
"""

import keras
import numpy as np

import rdmacoll

rdmacoll.init(mode="ps", num_servers=1, sync=False)  # the last rank is the server, and stays in this call
rank, workers = rdmacoll.rank(), rdmacoll.size()  # these count the workers
random = np.random.default_rng(rank)  # each worker has its own data
inputs = np.column_stack([random.normal(size=(200, 3)), np.ones(200)])
targets = inputs @ np.array([1.0, -2.0, 0.5, 3.0])

line = np.zeros(4)
rdmacoll.ps.declare({"line": line}, keras.optimizers.SGD(0.3))  # worker 0's values, and the rule of updates
for _ in range(100):
    gradient = inputs.T @ (inputs @ line - targets) / len(inputs)
    line = rdmacoll.push_pull(gradient, name="line")  # the updated line, without a wait for the other worker

rdmacoll.engine.barrier()  # all workers have pushed their last gradient
line = rdmacoll.pull("line")
if rank == 0:
    found_by = "1 worker" if workers == 1 else f"{workers} workers"  # -np 2 are a worker and a server
    print(f"{found_by} and 1 server found {np.round(line[:3], 3).tolist()} and {line[3]:.3f}")
