"""join: for data that does not come out even."""

from __future__ import annotations

import sys
from typing import Callable

import numpy as np

from rdmacoll._abi import mirror
from rdmacoll._calls.results import results_of
from rdmacoll._calls.submission import Call, performed
from rdmacoll._world.world import current
from rdmacoll.engine.errors import ConfigError
from rdmacoll.engine.process_set import ProcessSet, global_process_set, number_of

_listeners: list[Callable[[int], None]] = []


def after_join(listener: Callable[[int], None]) -> None:
    """Calls `listener` with the set's number whenever a join() of this process has ended: all its ranks begin
    anew there, whatever they have done before."""
    _listeners.append(listener)


def join(process_set: ProcessSet = global_process_set) -> int:
    """Says that this rank has no data left, waits until all ranks have said so, and returns the last of them.

    Meanwhile the allreduces of the others (Sum and Average, also grouped, and so DistributedOptimizer and
    DistributedGradientTape with dense gradients) go on with zeros from this rank; an average is divided by
    the number of all ranks all the same. Barriers go on, too. This rank's own variables stay as they are: the
    last rank has the newest, so broadcast them from it.

    Everything else (Min, Max and Product too, which zeros would change) needs data of every rank. It raises
    ConfigError, with the ranks that have joined, where it is called. So does what a rank submits before its
    join() has returned. When ranks wait here and one neither joins nor submits anything, they get a
    StalledError after RDMACOLL_STALL_ERROR_S; when it ends without joining, a RankFailedError.

    With a process_set, all this is about its ranks; the result is a rank of the world.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and tensorflow.inside_function():
        raise ConfigError(
            "join() inside a tf.function would be called once, while it is traced: call it from Python, "
            "after the last step."
        )
    engine = current()
    number = number_of(engine, process_set)
    operation = performed(engine, Call(mirror.JOIN, (), (), process_set=number))
    for listener in _listeners:
        listener(number)
    return int(results_of(engine, operation).array(0, np.dtype(np.int64)))


__all__ = ["join"]
