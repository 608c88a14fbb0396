"""The engine for numpy arrays: no TensorFlow needed."""

from __future__ import annotations

from rdmacoll.engine.collectives import (
    Handle,
    PreparedAllreduce,
    allgather,
    allgather_async,
    allreduce,
    allreduce_async,
    barrier,
    barrier_async,
    broadcast,
    broadcast_async,
    grouped_allreduce,
    grouped_allreduce_async,
    prepare_allreduce,
)
from rdmacoll.engine.memory import empty
from rdmacoll.engine.operators import Average, Max, Min, Product, ReduceOp, Sum

__all__ = [
    "Average",
    "Handle",
    "Max",
    "Min",
    "PreparedAllreduce",
    "Product",
    "ReduceOp",
    "Sum",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_async",
    "barrier",
    "barrier_async",
    "broadcast",
    "broadcast_async",
    "empty",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "prepare_allreduce",
]
