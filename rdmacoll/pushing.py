"""What parameter servers are for, push, pull and push_pull: for numpy arrays and TensorFlow's tensors."""

from __future__ import annotations

import sys
from typing import Any

from rdmacoll import engine, ps
from rdmacoll.engine.errors import ConfigError
from rdmacoll.engine.operators import Average
from rdmacoll.ps.calls import has_servers


def push(tensor: Any, name: str) -> Any:
    """Lets asynchronous servers update variable `name`, which has been declared, by the gradient `tensor`: an
    array or a tensor of its shape and dtype, or a `tf.IndexedSlices` of some of its rows.

    It returns when the servers have done it; in a graph of TensorFlow 1 it gives the operation.
    Raises ConfigError, NotInitializedError, and RankFailedError once a server has died."""
    if _is_tensor(tensor):
        from rdmacoll.ops import servers

        return servers.push(tensor, name)
    return ps.push(tensor, name)


def pull(name: str) -> Any:
    """The value of variable `name`, as it is now: an array, or a tensor where a TensorFlow function is being
    traced. Raises as `push`."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and not tensorflow.executing_eagerly():
        from rdmacoll.ops import servers

        return servers.pull(name)
    return ps.pull(name)


def push_pull(tensor: Any, op: int = Average, name: str | None = None) -> Any:
    """Pushes `tensor` to the parameter servers and pulls what they make of it.

    Synchronous servers, and allreduce mode: it is `allreduce`, with its dtypes, gradients and errors, so that
    a program runs either way. tensor: a TensorFlow tensor, variable or IndexedSlices, of which the result is
    a tensor, or what numpy makes an array of, of which it is an array; the same shape and dtype, and the same
    bits on every worker. op: Average (floats only), Sum, Min, Max or Product. name: equal on all workers, one
    in flight at a time.

    Asynchronous servers (`sync=False`): `tensor` is a gradient of the declared variable `name`, and the
    result is its fresh value (of an IndexedSlices: of these rows). Nothing is summed, so `op` stays as it is;
    `allreduce` sums, among all workers, there too. Raises ConfigError for anything else.
    """
    is_tensor = _is_tensor(tensor)
    if has_servers():
        if name is None or op != Average:
            raise ConfigError(
                f"push_pull(op={op!r}, name={name!r}) with asynchronous servers, which update a variable by "
                "its gradient: give the name of a declared variable and no op. allreduce sums."
            )
        if not is_tensor:
            return ps.exchange({name: tensor})[name]
        from rdmacoll.ops import servers

        return servers.exchange([tensor], [name])[0]
    if is_tensor:
        from rdmacoll import ops

        return ops.allreduce(tensor, op=op, name=name)
    return engine.allreduce(tensor, op=op, name=name)


def _is_tensor(tensor: Any) -> bool:
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and (
        tensorflow.is_tensor(tensor) or isinstance(tensor, tensorflow.IndexedSlices)
    )
