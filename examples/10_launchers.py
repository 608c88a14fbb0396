"""Starts: one program for all launchers. The launcher's variables tell each process its rank.

    rdmacoll run -np 2 python examples/10_launchers.py
    mpirun --bind-to none -np 2 python examples/10_launchers.py
    srun --ntasks 2 python examples/10_launchers.py
    torchrun --nproc-per-node 2 examples/10_launchers.py

By hand, each process is told its rank, the number of ranks, and the host and port of rank 0:

    python examples/10_launchers.py 0 2 node1:4000    # on node1
    python examples/10_launchers.py 1 2 node1:4000    # on node2
"""

import socket
import sys

import numpy as np

import rdmacoll

if sys.argv[1:]:  # variables do the same: RDMACOLL_RANK, RDMACOLL_SIZE, RDMACOLL_RENDEZVOUS
    rank, size, address = sys.argv[1:]
    rdmacoll.init(rank=int(rank), size=int(size), rendezvous=address)
else:
    rdmacoll.init()

total = rdmacoll.engine.allreduce(np.array([rdmacoll.rank()]), rdmacoll.Sum)
print(
    f"rank {rdmacoll.rank()} of {rdmacoll.size()} on {socket.gethostname()}, where it is number "
    f"{rdmacoll.local_rank()} of {rdmacoll.local_size()}; sum of all ranks: {total[0]}"
)
