"""Two workers fit a line, one server sums what they push. A server needs no TensorFlow, and nor does this.

mpirun --bind-to none -np 3 python examples/04_parameter_server.py
"""

import numpy as np

import rdmacoll

rdmacoll.init(mode="ps", num_servers=1)  # a server stays in here until the workers are done
rank, workers = rdmacoll.rank(), rdmacoll.size()

random = np.random.default_rng(rank)  # data of its own for each worker
inputs = random.normal(size=(200, 3))
targets = inputs @ np.array([1.0, -2.0, 0.5]) + 3.0

weights, bias = np.zeros(3), np.zeros(1)
for _ in range(100):
    error = inputs @ weights + bias - targets
    gradient = np.append(inputs.T @ error, error.sum()) / len(inputs)
    gradient = rdmacoll.push_pull(gradient, name="gradient")  # the mean of all workers'
    weights -= 0.3 * gradient[:3]
    bias -= 0.3 * gradient[3:]

everybody = rdmacoll.engine.allgather(np.append(weights, bias)[None])
assert (everybody == everybody[0]).all(), "workers differ"
if rank == 0:
    print(f"{workers} workers found {np.round(weights, 3).tolist()} and {bias[0]:.3f}")
