"""A parameter server: two workers fit a line, and the third rank sums their gradients.

rdmacoll run -np 3 python examples/04_parameter_server.py
"""

import numpy as np

import rdmacoll

# The last rank is the server. There, init() serves until the workers are done, and ends the process.
rdmacoll.init(mode="ps", num_servers=1)
rank, workers = rdmacoll.rank(), rdmacoll.size()  # these count the workers

random = np.random.default_rng(rank)  # each worker has its own data
inputs = np.column_stack([random.normal(size=(200, 3)), np.ones(200)])
targets = inputs @ np.array([1.0, -2.0, 0.5, 3.0])

line = np.zeros(4)
for _ in range(100):
    gradient = inputs.T @ (inputs @ line - targets) / len(inputs)
    line -= 0.3 * rdmacoll.push_pull(gradient, name="gradient")  # the mean of all workers' gradients

if rank == 0:
    found_by = "1 worker" if workers == 1 else f"{workers} workers"  # -np 2 are a worker and a server
    print(f"{found_by} and 1 server found {np.round(line[:3], 3).tolist()} and {line[3]:.3f}")
