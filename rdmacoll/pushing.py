"""push_pull: what parameter servers are for, for numpy arrays and TensorFlow's tensors alike."""

from __future__ import annotations

import sys
from typing import Any

from rdmacoll import engine
from rdmacoll.engine.operators import Average


def push_pull(tensor: Any, op: int = Average, name: str | None = None) -> Any:
    """Pushes `tensor` to the parameter servers and pulls what they make of all workers' tensors.

    tensor: a TensorFlow tensor, variable or IndexedSlices, of which the result is a tensor, or what numpy
    makes an array of, of which it is an array; the same shape and dtype, and the same bits on every worker.
    op: Average (floats only), Sum, Min, Max or Product. name: equal on all workers, one in flight at a time.

    It is `allreduce`, with its dtypes, gradients and errors: with RDMACOLL_MODE=ps the servers sum, otherwise
    the workers among themselves, so that a program runs either way.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and (
        tensorflow.is_tensor(tensor) or isinstance(tensor, tensorflow.IndexedSlices)
    ):
        from rdmacoll import ops

        return ops.allreduce(tensor, op=op, name=name)
    return engine.allreduce(tensor, op=op, name=name)
