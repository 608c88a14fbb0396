"""The engine for arrays of numpy, cupy, PyTorch, JAX and numba: no TensorFlow needed."""

from __future__ import annotations

from rdmacoll._calls.gpu_array import GpuArray
from rdmacoll.engine.collectives import (
    Handle,
    PreparedCall,
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
    prepare_barrier,
    prepare_broadcast,
)
from rdmacoll.engine.exchanges import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    grouped_allgather,
    grouped_allgather_async,
    prepare_allgather,
    prepare_alltoall,
)
from rdmacoll.engine.joining import join
from rdmacoll.engine.memory import empty
from rdmacoll.engine.process_sets import add_process_set, process_sets, remove_process_set
from rdmacoll.engine.reductions import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    prepare_reduce,
    prepare_reducescatter,
    reduce,
    reduce_async,
    reducescatter,
    reducescatter_async,
)
from rdmacoll.engine.rooted_exchanges import (
    gather,
    gather_async,
    prepare_gather,
    prepare_scatter,
    scatter,
    scatter_async,
)
from rdmacoll.operators import Average, Max, Min, Product, ReduceOp, Sum
from rdmacoll.process_set import ProcessSet, global_process_set

__all__ = [
    "Average",
    "GpuArray",
    "Handle",
    "Max",
    "Min",
    "PreparedCall",
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
    "prepare_allgather",
    "prepare_allreduce",
    "prepare_alltoall",
    "prepare_barrier",
    "prepare_broadcast",
    "prepare_gather",
    "prepare_reduce",
    "prepare_reducescatter",
    "prepare_scatter",
    "process_sets",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "scatter",
    "scatter_async",
]
