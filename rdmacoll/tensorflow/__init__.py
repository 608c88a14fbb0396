"""Horovod's module name for these functions: `import rdmacoll.tensorflow as hvd`.

The import registers the ops in TensorFlow, so that saved graphs with them load.
"""

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
from rdmacoll.engine.joining import join
from rdmacoll.engine.operators import Average, Max, Min, Product, Sum
from rdmacoll.engine.process_set import ProcessSet, global_process_set
from rdmacoll.engine.process_sets import add_process_set, process_sets, remove_process_set
from rdmacoll.hooks import BroadcastGlobalVariablesHook
from rdmacoll.ops import (
    Compression,
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    broadcast_global_variables,
    broadcast_variables,
    gather,
    grouped_allgather,
    grouped_allreduce,
    grouped_broadcast,
    grouped_reducescatter,
    reduce,
    reducescatter,
    scatter,
)
from rdmacoll.ops._library import register
from rdmacoll.optimizer import DistributedOptimizer
from rdmacoll.optimizer.tape import DistributedGradientTape

register()

__all__ = [
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_variables",
    "cross_rank",
    "cross_size",
    "gather",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_broadcast",
    "grouped_reducescatter",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "process_sets",
    "rank",
    "reduce",
    "reducescatter",
    "remove_process_set",
    "scatter",
    "shutdown",
    "size",
]
