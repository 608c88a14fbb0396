"""The calls to asynchronous parameter servers. Call `init(mode="ps", sync=False)` first.

Arrays are float32 or float64. Gradients and outputs may be in memory of a GPU, too: they are copied to the
host and back, after the present work of their stream. `stream=` is as in the collectives. A call ends when
the servers have done the work. All calls raise NotInitializedError if there are no such servers. They raise
RankFailedError once a server has died, or if the first worker has left before variables have values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from rdmacoll._abi import mirror
from rdmacoll._abi.arguments import Array
from rdmacoll._base.external_values import path_of
from rdmacoll._calls import device_arrays, operands
from rdmacoll._calls.device_arrays import DeviceArray
from rdmacoll._calls.submission import Operand
from rdmacoll._ps.session import Session
from rdmacoll._world import world
from rdmacoll.errors import ConfigError, NotInitializedError
from rdmacoll.ps import gpu_staging
from rdmacoll.ps.rules import Rule, rule_of


def has_servers() -> bool:
    """Whether this process is in a world with asynchronous servers. These own variables."""
    return world.is_initialized() and world.current().variable_servers is not None


def current() -> Session:
    """This worker's session. Raises NotInitializedError."""
    servers = world.current().variable_servers
    if servers is None or servers.session is None:
        problem = "there are no asynchronous parameter servers here: "
        if _has_synchronous():
            problem = (
                "the parameter servers of this run are synchronous: they sum the pushes of all workers "
                "(rdmacoll.push_pull), and own no variables. For servers that own variables, "
            )
        raise NotInitializedError(
            problem + 'call rdmacoll.init(mode="ps", sync=False), or set RDMACOLL_MODE=ps and '
            "RDMACOLL_PS_SYNC=false."
        )
    return servers.session


def _has_synchronous() -> bool:
    return not has_servers() and world.current().values.text("RDMACOLL_MODE") == "ps"


def declare(
    variables: Mapping[str, Array],
    optimizer: Any,
    *,
    by_rows: Collection[str] = (),
    not_decayed: Collection[str] = (),
    restore_from: str | os.PathLike[str] | None = None,
) -> None:
    """Gives variables to the servers, which own them from now on.

    All workers call it, with the same names, shapes and dtypes in the same order. The values are those of the
    first worker, or those of the servers if these have some already. They come into the arrays of all other
    workers.

    variables: contiguous arrays of float32 or float64, any shape. optimizer: a Keras optimizer, or a `Rule`,
    for the updates of these variables. by_rows: names of embeddings, whose rows are pushed and pulled one by
    one. not_decayed: names of variables without the optimizer's weight decay. restore_from: restores this
    checkpoint right after the declaration, as `restore` does.

    Raises ConfigError, and MismatchError when workers differ.
    """
    rule = optimizer if isinstance(optimizer, Rule) else rule_of(optimizer)
    restored = None if restore_from is None else path_of("restore_from", restore_from)
    current().declare(variables, rule.text, by_rows, not_decayed, restored)


def push(tensor: Any, name: str, *, learning_rate: float | None = None, stream: Any = None) -> None:
    """Makes the servers update variable `name` by the gradient `tensor`, of its shape and dtype.

    learning_rate: for this update only, instead of the optimizer's rate or schedule. Raises ConfigError.
    """
    pushed = gpu_staging.on_host({name: _checked_gradient(tensor, name, stream=stream)})
    current().move(mirror.PS_PUSH, pushed, rate=_rate(learning_rate))


def pull(name: str, out: Any = None, *, stream: Any = None) -> Any:
    """The current value of a variable: a new numpy array, or `out`. Raises ConfigError."""
    values = {name: _output_for(name, out, stream=stream)}
    hosts = gpu_staging.beside(values)
    current().move(mirror.PS_PULL, hosts)
    gpu_staging.to_gpus(values, hosts)
    return operands.deliver(values[name], out)


def exchange(
    gradients: Mapping[str, Any],
    out: Mapping[str, Any] | None = None,
    *,
    learning_rate: float | None = None,
    stream: Any = None,
) -> dict[str, Any]:
    """One step: pushes gradients of variables, and returns their fresh values. Each server gets one request.

    out: arrays for the values, by name. They have the variables' shapes and dtypes, are contiguous and
    writable, and share no memory with the gradients. Values without such an array are new arrays, whose
    memory the system may have to allocate each time. Those of gradients on a GPU lie there, too.
    learning_rate: as in `push`. Raises ConfigError.
    """
    pushed = {name: _checked_gradient(one, name, stream=stream) for name, one in gradients.items()}
    outputs = {} if out is None else dict(out)
    if not pushed.keys() >= outputs.keys():
        raise ConfigError(
            f"out names {', '.join(sorted(outputs.keys() - pushed.keys()))}, but the call pushes no "
            "gradients of them: name only pushed variables in out."
        )
    values = {name: _output_for(name, outputs.get(name), pushed[name], stream) for name in pushed}
    output_ids = [id(array) for array in outputs.values() if array is not None]
    if len(set(output_ids)) < len(output_ids):
        raise ConfigError("out has one array for two variables: give each its own.")
    for name in outputs:
        if any(_may_share_memory(values[name], gradient) for gradient in pushed.values()):
            raise ConfigError(
                f"out of {name!r} shares memory with a gradient, which is still read: give another array."
            )
    hosts = gpu_staging.beside(values)
    current().exchange(gpu_staging.on_host(pushed), hosts, _rate(learning_rate))
    gpu_staging.to_gpus(values, hosts)
    return {name: operands.deliver(value, outputs.get(name)) for name, value in values.items()}


def push_rows(
    rows: Any, gradients: Any, name: str, *, learning_rate: float | None = None, stream: Any = None
) -> None:
    """Pushes rows: `rows` are n integers, `gradients` has shape (n, ...).

    Gradients of a row that is named twice are summed. Rows without a gradient change as with a gradient of
    zero: with momentum they go on. learning_rate: as in `push`. Raises ConfigError.
    """
    session = current()
    shape = (np.size(rows), *session.variable(name).shape[1:])
    pushed = gpu_staging.on_host({name: _checked_gradient(gradients, name, shape, stream)})
    session.move_rows(mirror.PS_PUSH, name, rows, pushed[name], _rate(learning_rate))


def pull_rows(rows: Any, name: str) -> Array:
    """The values of some rows, n integers, as an array of shape (n, ...). Raises ConfigError."""
    variable = current().variable(name)
    values = np.empty((np.size(rows), *variable.shape[1:]), variable.dtype)
    current().move_rows(mirror.PS_PULL, name, rows, values)
    return values


def save(path: str | os.PathLike[str]) -> None:
    """Makes each server save its variables with the optimizer's state to a file on its machine.

    The file's name is `path`, followed by ".server-0-of-2" and so on. One worker calls it. Concurrent pushes
    of other workers may be in the save partly. A file appears when it is complete, and replaces an older one.

    If the run ends between two servers' files, the files of one `path` are from two saves, which `restore`
    refuses. So save to two paths in turn. Raises ConfigError, RdmacollError.
    """
    current().save(path_of("path", path))


def restore(path: str | os.PathLike[str]) -> None:
    """Restores a save from `path`: the values, the optimizer's state and its steps of all variables.

    Variables and the number of servers are the same as in the save. The first worker does the work: either it
    alone calls this, or all workers do.

    If nothing has been declared since `init()`, the next declaration begins with the restore. The
    declaration is a `declare`, or the first step of a `DistributedOptimizer`. If variables are declared one
    after the other, call it after the last declaration. The restore is then done when the call ends, and
    workers pull.

    Raises ConfigError on the first worker if there is no such checkpoint, or if it does not fit the declared
    variables. A later declaration raises the latter. Either error changes nothing: the program may
    go on without a checkpoint, and declare (again).
    """
    current().restore(path_of("path", path))


def stats() -> list[dict[str, Any]]:
    """Each server's counters and contents.

    Counts: updates, bytes_received, bytes_sent, stored_bytes, variables, workers (connected ones), waiting
    (workers), lost (workers). The text waiting_for names the thing that the first waiting worker waits for:
    "values NAME" from worker 0, "checkpoint NAME", "pace" (staleness; at the first server), or "".
    """
    return [json.loads(text) for text in current().query(mirror.PS_STATS)]


def sharding() -> str:
    """The contents of each server, a line each. Synchronous servers: the part that each server sums."""
    if not _has_synchronous():
        return current().sharding()
    workers = world.size()
    ranks = range(workers, workers + world.current().servers) or range(workers)  # colocated
    return "".join(
        f"server {number} (rank {rank}): part {number + 1} of {len(ranks)} of each segment of the sums, cut "
        "at multiples of 64 bytes\n"
        for number, rank in enumerate(ranks)
    )


def _rate(learning_rate: Any) -> float | None:
    try:
        return None if learning_rate is None else float(learning_rate)
    except (TypeError, ValueError):
        raise ConfigError(f"learning_rate={learning_rate!r} of a push: give a number.") from None


def _output_for(name: str, out: Any, gradient: Operand | None = None, stream: Any = None) -> Operand:
    """The array for a variable's value: a new one where the gradient is, or `out`. Raises ConfigError."""
    variable = current().variable(name)
    if out is None:
        if isinstance(gradient, DeviceArray):
            return operands.new_like(gradient)
        return np.empty(variable.shape, variable.dtype)
    output: Operand
    if isinstance(out, np.ndarray) or not device_arrays.is_on_device(out):
        output, is_usable = out, out.flags.writeable and out.flags.c_contiguous
    else:
        output = operands.read(out, stream)
        is_usable = output.is_contiguous and not output.is_read_only
        if output.library.refusal_to_write is not None:
            raise ConfigError(output.library.refusal_to_write)
    if output.shape != variable.shape or not is_usable:
        raise ConfigError(
            f"out has shape {list(output.shape)}: give a contiguous, writable array of shape "
            f"{list(variable.shape)}."
        )
    if output.dtype != variable.dtype:
        raise ConfigError(
            f"out is {output.dtype}, and variable {name!r} is {variable.dtype}: give that dtype."
        )
    return output


def _may_share_memory(value: Operand, gradient: Operand) -> bool:
    """Whether a value may overwrite a gradient that is still read. Those on a GPU are copied first."""
    if isinstance(value, DeviceArray) or isinstance(gradient, DeviceArray):
        return False
    return np.may_share_memory(value, gradient)


def _checked_gradient(
    tensor: Any, name: str, shape: tuple[int, ...] | None = None, stream: Any = None
) -> Operand:
    variable = current().variable(name)
    array = operands.source(tensor, stream)
    expected = variable.shape if shape is None else shape
    if array.shape != expected or array.dtype != variable.dtype:
        raise ConfigError(
            f"variable {name!r} takes gradients of {variable.dtype}{list(expected)}, and this one is "
            f"{array.dtype}{list(array.shape)}: give it that shape and dtype."
        )
    return array
