"""Collectives of numpy arrays. TensorFlow is not needed.

rdmacoll run -np 3 python examples/06_numpy.py
"""

import numpy as np

import rdmacoll

rdmacoll.init()
rank, ranks = rdmacoll.rank(), rdmacoll.size()


def show(what: str, value: object) -> None:
    """Prints at rank 0. Every rank has made the call whose result is shown."""
    if rank == 0:
        print(f"{what:>12}  {np.asarray(value).tolist()}")


mine = np.arange(4.0) + rank
show("average", rdmacoll.engine.allreduce(mine))
show("sum", rdmacoll.engine.allreduce(mine, rdmacoll.Sum))
show("maximum", rdmacoll.engine.allreduce(mine, rdmacoll.Max))
show("broadcast", rdmacoll.engine.broadcast(mine, root_rank=ranks - 1))

# Each rank gives as many rows as it wants.
show("allgather", rdmacoll.engine.allgather(np.full((rank + 1, 2), rank)))

# Each rank gives one row to every rank.
show("alltoall", rdmacoll.engine.alltoall(np.full((ranks, 2), rank)))

# Work can go on while the ranks communicate.
handle = rdmacoll.engine.allreduce_async(mine, name="later")
squares = mine * mine
show("async", handle.wait() + squares)

# A call that comes again and again is prepared once. It sums in place here.
total = np.ones(4)
add = rdmacoll.engine.prepare_allreduce(total, total, rdmacoll.Sum)
for _ in range(3):
    add()
show("prepared", total)  # ranks to the power of 3
