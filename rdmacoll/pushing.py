"""push, pull and push_pull with parameter servers, for numpy arrays and TensorFlow tensors."""

from __future__ import annotations

import sys
from typing import Any

from rdmacoll import engine, ps
from rdmacoll._world.world import current, on_change
from rdmacoll.errors import ConfigError
from rdmacoll.operators import Average
from rdmacoll.ps.calls import has_servers

# Sums that `push` has begun and no `pull` has taken, by name, and whether they are tensors. They end with the
# world.
_pushed: dict[str, tuple[engine.Handle, bool]] = {}
on_change(lambda _: _pushed.clear())


def push(tensor: Any, name: str) -> Any:
    """Pushes a gradient or a value as `name`.

    Asynchronous servers: makes them update the declared variable `name` by the gradient `tensor`. This is an
    array or a tensor of the variable's shape and dtype, or a `tf.IndexedSlices` of some of its rows. The call
    returns when the servers have made the update. In a graph of TensorFlow 1 it returns the operation.

    Synchronous servers, and allreduce mode: the first half of `push_pull(tensor, name=name)`, for an array or
    an eager tensor. The call returns at once. `tensor` must not change until `pull(name)` has returned the
    average of all workers' pushes.

    Raises ConfigError, NotInitializedError, and RankFailedError once a server has died.
    """
    if not has_servers():
        return _push_sum(tensor, name)
    if _is_tensor(tensor):
        from rdmacoll.ops import servers

        return servers.push(tensor, name)
    return ps.push(tensor, name)


def pull(name: str) -> Any:
    """Pulls the value of `name`.

    Asynchronous servers: the current value of variable `name`, as an array, or as a tensor while a TensorFlow
    function is traced. Synchronous servers, and allreduce mode: the average of all workers' pushes as `name`,
    with their shape and dtype. This is a tensor if a tensor was pushed, else an array. Raises as `push`.
    """
    if not has_servers():
        return _pull_sum(name)
    if _is_graph():
        from rdmacoll.ops import servers

        return servers.pull(name)
    return ps.pull(name)


def push_pull(tensor: Any, op: int = Average, name: str | None = None) -> Any:
    """Pushes `tensor` to the parameter servers, and pulls their result.

    Synchronous servers, and allreduce mode: it is `allreduce`, with its dtypes, gradients and errors, so that
    a program runs in both modes. tensor: a TensorFlow tensor, variable or IndexedSlices, or any value that
    numpy converts to an array, of the same shape and dtype on every worker. The result is a tensor or an
    array accordingly, with the same bits on every worker. op: Average (floats only), Sum, Min, Max or
    Product. name: equal on all workers, one in flight at a time.

    Asynchronous servers (`sync=False`): `tensor` is a gradient of the declared variable `name`. The result is
    the variable's fresh value, or that of the rows of an IndexedSlices. Nothing is summed, so `op` must stay
    Average. `allreduce` sums among all workers there, too. Raises ConfigError for anything else.
    """
    is_tensor = _is_tensor(tensor)
    if has_servers():
        if name is None or op != Average:
            raise ConfigError(
                f"push_pull(op={op!r}, name={name!r}) with asynchronous servers: they update a variable by "
                "its gradient. Give the name of a declared variable and no op, or use allreduce for sums."
            )
        if not is_tensor:
            return ps.exchange({name: tensor})[name]
        from rdmacoll.ops import servers

        return servers.exchange([tensor], [name])[0]
    if is_tensor:
        from rdmacoll import ops

        return ops.allreduce(tensor, op=op, name=name)
    return engine.allreduce(tensor, op=op, name=name)


def _push_sum(tensor: Any, name: str) -> None:
    current()
    is_tensor = _is_tensor(tensor)
    _refuse_graph("push", name)
    if is_tensor and not hasattr(tensor, "numpy"):
        raise ConfigError(f"push of IndexedSlices as {name!r}, where all are summed: call push_pull.")
    if name in _pushed:
        raise ConfigError(f"{name!r} is pushed again before it was pulled: pull it first.")
    _pushed[name] = engine.allreduce_async(tensor.numpy() if is_tensor else tensor, name=name), is_tensor


def _pull_sum(name: str) -> Any:
    current()
    _refuse_graph("pull", name)
    if name not in _pushed:
        raise ConfigError(
            f"nothing was pushed as {name!r} since the last pull of it: push it first. (Without a push you "
            'can pull only the variables of asynchronous servers, rdmacoll.init(mode="ps", sync=False).)'
        )
    handle, is_tensor = _pushed.pop(name)
    value = handle.wait()
    return sys.modules["tensorflow"].convert_to_tensor(value) if is_tensor else value


def _refuse_graph(function: str, name: str) -> None:
    if _is_graph():
        raise ConfigError(
            f"{function} of {name!r} in a graph of TensorFlow, where all workers' pushes are summed: call "
            "push_pull, which does both."
        )


def _is_graph() -> bool:
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and not tensorflow.executing_eagerly()


def _is_tensor(tensor: Any) -> bool:
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and (
        tensorflow.is_tensor(tensor) or isinstance(tensor, tensorflow.IndexedSlices)
    )
