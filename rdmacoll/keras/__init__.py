"""The Keras callbacks (`rdmacoll.keras.callbacks`), and the names that Horovod has in this place:
`import rdmacoll.keras as hvd`."""

from rdmacoll._world.world import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from rdmacoll.engine.operators import Average, Max, Min, Product, Sum
from rdmacoll.engine.process_set import ProcessSet, global_process_set
from rdmacoll.engine.process_sets import add_process_set, remove_process_set
from rdmacoll.keras import callbacks
from rdmacoll.ops import (
    Compression,
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    reducescatter,
)
from rdmacoll.ops._library import register
from rdmacoll.optimizer import DistributedOptimizer

register()

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "reducescatter",
    "remove_process_set",
    "shutdown",
    "size",
]
