"""The engine for numpy arrays: no TensorFlow needed."""

from __future__ import annotations

from rdmacoll.engine.collectives import (
    Handle,
    PreparedAllreduce,
    allreduce,
    allreduce_async,
    barrier,
    barrier_async,
    broadcast,
    broadcast_async,
    grouped_allreduce,
    grouped_allreduce_async,
    grouped_broadcast,
    grouped_broadcast_async,
    prepare_allreduce,
)
from rdmacoll.engine.exchanges import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    gather,
    gather_async,
    grouped_allgather,
    grouped_allgather_async,
    scatter,
    scatter_async,
)
from rdmacoll.engine.joining import join
from rdmacoll.engine.memory import empty
from rdmacoll.engine.operators import Average, Max, Min, Product, ReduceOp, Sum
from rdmacoll.engine.process_set import ProcessSet, global_process_set
from rdmacoll.engine.process_sets import add_process_set, process_sets, remove_process_set
from rdmacoll.engine.reductions import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reduce,
    reduce_async,
    reducescatter,
    reducescatter_async,
)

__all__ = [
    "Average",
    "Handle",
    "Max",
    "Min",
    "PreparedAllreduce",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "barrier_async",
    "broadcast",
    "broadcast_async",
    "empty",
    "gather",
    "gather_async",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_broadcast",
    "grouped_broadcast_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "prepare_allreduce",
    "process_sets",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "scatter",
    "scatter_async",
]
