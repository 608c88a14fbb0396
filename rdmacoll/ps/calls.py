"""The calls to asynchronous parameter servers, for numpy arrays: `init(mode="ps", sync=False)` comes before.

Arrays are float32 or float64. A call is over when the servers have done what it asks. All raise
NotInitializedError where there are no such servers, and RankFailedError once a server has died, or the first
worker has left before variables have values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from rdmacoll._abi import mirror
from rdmacoll._abi.arguments import source
from rdmacoll._base.outside import path_of
from rdmacoll._ps.session import Array, Session
from rdmacoll._world import world
from rdmacoll.engine.errors import ConfigError, NotInitializedError
from rdmacoll.ps.rules import Rule, rule_of


def has_servers() -> bool:
    """Whether this process is in a world with asynchronous servers, which own variables."""
    return world.is_initialized() and world.current().variable_servers is not None


def current() -> Session:
    """This worker's session. Raises NotInitializedError."""
    servers = world.current().variable_servers
    if servers is None or servers.session is None:
        here = "there are no asynchronous parameter servers here: "
        if _has_synchronous():
            here = (
                "the parameter servers of this run are synchronous: they sum what all workers push with "
                "rdmacoll.push_pull, and own no variables; for servers that do "
            )
        raise NotInitializedError(
            here + 'call rdmacoll.init(mode="ps", sync=False), or set RDMACOLL_MODE=ps and '
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
    """Gives variables to the servers, which own them from now on. All workers call it, with the same names,
    shapes and dtypes in the same order; the values are those of the first worker, or of the servers where
    these have some already, and come into the arrays of all others.

    variables: contiguous arrays of float32 or float64, any shape. optimizer: of Keras, or a `Rule`, by
    which these variables go. by_rows: names of embeddings, whose rows are pushed and pulled one by one.
    not_decayed: names that the optimizer's weight decay is not for. restore_from: as a `restore` of it
    behind this declaration. Raises ConfigError, and MismatchError where workers differ."""
    rule = optimizer if isinstance(optimizer, Rule) else rule_of(optimizer)
    restored = None if restore_from is None else path_of("restore_from", restore_from)
    current().declare(variables, rule.text, by_rows, not_decayed, restored)


def push(tensor: Any, name: str, *, learning_rate: float | None = None) -> None:
    """Lets the servers update variable `name` by the gradient `tensor`, of its shape and dtype.
    learning_rate: of this update alone, in the place of the optimizer's rate or schedule."""
    current().move(mirror.PS_PUSH, {name: _fitting(tensor, name)}, rate=_rate(learning_rate))


def pull(name: str, out: Array | None = None) -> Array:
    """The value of a variable, as it is now: a new array, or `out`."""
    value = _taking(name, out)
    current().move(mirror.PS_PULL, {name: value})
    return value


def exchange(
    gradients: Mapping[str, Any],
    out: Mapping[str, Array] | None = None,
    *,
    learning_rate: float | None = None,
) -> dict[str, Array]:
    """One step: pushes gradients of variables, and gives their fresh values; one request to each server.

    out: arrays that take values, by name, of the variables' shapes and dtypes, contiguous, writable, and in
    other memory than the gradients; values without one are new arrays, whose memory the system may have to
    make each time. learning_rate: as of `push`. Raises ConfigError."""
    given = {name: _fitting(gradient, name) for name, gradient in gradients.items()}
    places = {} if out is None else dict(out)
    if not given.keys() >= places.keys():
        raise ConfigError(
            f"out names {', '.join(sorted(places.keys() - given.keys()))}, of which no gradient is pushed: "
            "give arrays for variables that are."
        )
    values = {name: _taking(name, places.get(name)) for name in given}
    given_places = [id(array) for array in places.values() if array is not None]
    if len(set(given_places)) < len(given_places):
        raise ConfigError("out has one array for two variables: give each its own.")
    for name in places:
        if any(np.may_share_memory(values[name], gradient) for gradient in given.values()):
            raise ConfigError(f"out of {name!r} is memory of a gradient, which is still read: give another.")
    current().exchange(given, values, _rate(learning_rate))
    return values


def push_rows(rows: Any, gradients: Any, name: str, *, learning_rate: float | None = None) -> None:
    """Pushes rows: `rows` are n integers, `gradients` has shape (n, ...). Gradients of a row that is named
    twice are summed. Rows without a gradient change as with one of zero: with momentum they go on.
    learning_rate: as of `push`."""
    session = current()
    shape = (np.size(rows), *session.variable(name).shape[1:])
    session.move_rows(mirror.PS_PUSH, name, rows, _fitting(gradients, name, shape), _rate(learning_rate))


def pull_rows(rows: Any, name: str) -> Array:
    """The values of some rows, n integers: an array of shape (n, ...)."""
    variable = current().variable(name)
    values = np.empty((np.size(rows), *variable.shape[1:]), variable.dtype)
    current().move_rows(mirror.PS_PULL, name, rows, values)
    return values


def save(path: str | os.PathLike[str]) -> None:
    """Lets each server save its variables with the optimizer's state, to a file of its machine that is called
    `path` with ".server-0-of-2" and so on behind it. One worker calls it; pushes of others that are under way
    may be in it by halves. A file is there when it is complete, and replaces an older one; where the run ends
    between two servers' files, those of one `path` are of two saves, which are not restored: save to two
    paths in turn. Raises ConfigError, RdmacollError."""
    current().save(path_of("path", path))


def restore(path: str | os.PathLike[str]) -> None:
    """Restores what `save` wrote to `path`: the values, the optimizer's state and its steps of all variables,
    which are the same as then, on as many servers. The first worker does it: either that one calls this, or
    all do.

    Where nothing has been declared (behind `init()`), the next declaration begins with it, by `declare` or by
    the first step of a `DistributedOptimizer`. Where variables are declared one after the other, call it
    behind the last one: it is done when the call is over, and workers pull. Raises ConfigError on the first
    worker where there is no such checkpoint, or it does not fit to what is declared, which the declaration
    says. Either changes nothing: the program may go on without, and declare (anew)."""
    current().restore(path_of("path", path))


def stats() -> list[dict[str, Any]]:
    """What each server has done and stores: updates, bytes_received, bytes_sent, stored_bytes, variables,
    workers (those that are there), waiting (of them), lost; and a text, waiting_for, of what the first of
    these waits for: "values NAME" of worker 0, "pace" (staleness; at the first server), or ""."""
    return [json.loads(text) for text in current().ask(mirror.PS_STATS)]


def sharding() -> str:
    """Which server stores what: a line for each. Of synchronous servers: which one sums what."""
    if not _has_synchronous():
        return current().sharding()
    workers = world.size()
    ranks = range(workers, workers + world.current().servers) or range(workers)  # colocated
    return "".join(
        f"server {number} (rank {rank}): part {number + 1} of {len(ranks)} of each segment of what is "
        "summed, cut between multiples of 64 bytes\n"
        for number, rank in enumerate(ranks)
    )


def _rate(learning_rate: Any) -> float | None:
    try:
        return None if learning_rate is None else float(learning_rate)
    except (TypeError, ValueError):
        raise ConfigError(f"learning_rate={learning_rate!r} of a push: give a number.") from None


def _taking(name: str, out: Array | None) -> Array:
    """Where the value of a variable comes: a new array, or `out`."""
    variable = current().variable(name)
    if out is None:
        return np.empty(variable.shape, variable.dtype)
    if out.shape != variable.shape or not out.flags.writeable or not out.flags.c_contiguous:
        raise ConfigError(
            f"out of shape {list(out.shape)}: give a contiguous, writable {list(variable.shape)}."
        )
    if out.dtype != variable.dtype:
        raise ConfigError(f"out is {out.dtype}, and variable {name!r} is {variable.dtype}: give that dtype.")
    return out


def _fitting(tensor: Any, name: str, shape: tuple[int, ...] | None = None) -> Array:
    variable = current().variable(name)
    array = source(tensor)
    wanted = variable.shape if shape is None else shape
    if array.shape != wanted or array.dtype != variable.dtype:
        raise ConfigError(
            f"a gradient of {array.dtype}{list(array.shape)} for variable {name!r}, which takes "
            f"{variable.dtype}{list(wanted)}: give it that shape and dtype."
        )
    return array
