"""What belongs to Keras: `rdmacoll.keras.callbacks`. And Horovod's place for the names that a training with
Keras needs: `import rdmacoll.keras as hvd`."""

from rdmacoll.engine.operators import Average, Max, Min, Product, Sum
from rdmacoll.engine.world import init, is_initialized, local_rank, local_size, rank, shutdown, size
from rdmacoll.keras import callbacks
from rdmacoll.ops import (
    Compression,
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
)
from rdmacoll.optimizer import DistributedOptimizer

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]
