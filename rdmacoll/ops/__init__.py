"""The collectives as TensorFlow ops: eager, in `tf.function`, in loops, with gradients."""

from rdmacoll.ops.allgather import allgather, grouped_allgather
from rdmacoll.ops.allreduce import allreduce, grouped_allreduce
from rdmacoll.ops.alltoall import alltoall
from rdmacoll.ops.barrier import barrier
from rdmacoll.ops.broadcast import (
    broadcast,
    broadcast_,
    broadcast_global_variables,
    broadcast_variables,
    grouped_broadcast,
)
from rdmacoll.ops.compression import Compression
from rdmacoll.ops.gather import gather
from rdmacoll.ops.reduce import reduce
from rdmacoll.ops.reducescatter import grouped_reducescatter, reducescatter
from rdmacoll.ops.scatter import scatter

__all__ = [
    "Compression",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_variables",
    "gather",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_broadcast",
    "grouped_reducescatter",
    "reduce",
    "reducescatter",
    "scatter",
]
