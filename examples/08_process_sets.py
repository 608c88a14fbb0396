"""Process sets: collectives of some of the ranks. Sets may overlap.

rdmacoll run -np 4 python examples/08_process_sets.py
"""

import numpy as np

import rdmacoll

evens = rdmacoll.ProcessSet([0, 2])
others = rdmacoll.ProcessSet([1, 2, 3])
rdmacoll.init(process_sets=[evens, others])  # every rank names all sets, also the sets of others
rank = rdmacoll.rank()

mine = np.full(3, float(rank))
found = {}
if evens.included():
    found["mean of 0 and 2"] = rdmacoll.engine.allreduce(mine, process_set=evens)
if others.included():
    # A root is a rank of the world.
    found["values of 3"] = rdmacoll.engine.broadcast(mine, root_rank=3, process_set=others)
    found["sum of 1, 2, 3"] = rdmacoll.engine.allreduce(mine, rdmacoll.Sum, process_set=others)
found["mean of all"] = rdmacoll.engine.allreduce(mine)

# A set can be added later, too. All ranks call this together.
pair = rdmacoll.add_process_set([0, 1])
if pair.included():
    found["ranks of 0, 1"] = rdmacoll.engine.allgather(np.array([rank]), process_set=pair)

print("\n".join(f"rank {rank}: {what:<16} {value.tolist()}" for what, value in found.items()))
rdmacoll.engine.barrier()  # a rank that left now would be missing in the others' sets
