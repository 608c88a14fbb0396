"""Two workers fit a line with the help of one parameter server.

The server sums the workers' gradients, and push_pull() returns their mean. With --async, the server updates
the line at each push instead. Neither the server nor the workers need TensorFlow.

mpirun --bind-to none -np 3 python examples/04_parameter_server.py [--async]
"""

import sys

import numpy as np

import rdmacoll

is_async = "--async" in sys.argv
rdmacoll.init(mode="ps", num_servers=1, sync=not is_async)  # a server stays in this call until the end
rank, workers = rdmacoll.rank(), rdmacoll.size()

random = np.random.default_rng(rank)  # each worker has its own data
inputs = np.column_stack([random.normal(size=(200, 3)), np.ones(200)])
targets = inputs @ np.array([1.0, -2.0, 0.5, 3.0])

line = np.zeros(4)
if is_async:  # the server keeps the line and applies each pushed gradient to it
    rule = "optimizer=sgd\ninitial_learning_rate=0.3\n"
    rdmacoll.ps.declare({"line": line}, rdmacoll.ps.Rule(rule))
for _ in range(100):
    gradient = inputs.T @ (inputs @ line - targets) / len(inputs)
    if is_async:
        line = rdmacoll.push_pull(gradient, name="line")  # the updated line; no wait for the other worker
    else:
        line -= 0.3 * rdmacoll.push_pull(gradient, name="gradient")  # the mean of all workers' gradients

if is_async:
    rdmacoll.engine.barrier()  # both workers have pushed all gradients
    line = rdmacoll.pull("line")
everybody = rdmacoll.engine.allgather(line[None])
assert (everybody == everybody[0]).all(), "workers differ"
if rank == 0:
    print(f"{workers} workers found {np.round(line[:3], 3).tolist()} and {line[3]:.3f}")
