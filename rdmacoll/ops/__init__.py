"""The collectives as TensorFlow ops: eager, in `tf.function`, in loops, with gradients."""

from rdmacoll.ops.allgather import allgather
from rdmacoll.ops.allreduce import allreduce, grouped_allreduce
from rdmacoll.ops.barrier import barrier
from rdmacoll.ops.broadcast import broadcast, broadcast_global_variables, broadcast_variables
from rdmacoll.ops.compression import Compression

__all__ = [
    "Compression",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "grouped_allreduce",
]
