"""join: for ranks that have different amounts of data."""

from __future__ import annotations

import sys
from typing import Callable

import numpy as np

from rdmacoll._abi import mirror
from rdmacoll._calls.results import Results
from rdmacoll._calls.submission import Call, run_operation
from rdmacoll._world.world import current
from rdmacoll.errors import ConfigError
from rdmacoll.process_set import ProcessSet, global_process_set, number_of

_listeners: list[Callable[[int], None]] = []


def after_join(listener: Callable[[int], None]) -> None:
    """Registers `listener`, which gets the set's number each time a join() of this process has ended.

    After a join all ranks of the set start over, whatever each of them did before.
    """
    _listeners.append(listener)


def join(process_set: ProcessSet = global_process_set) -> int:
    """Announces that this rank has no data left, and waits until all ranks have done so.

    Returns the last rank that joined.

    Meanwhile the allreduces of the other ranks go on with zeros from this rank. These are Sum and Average,
    also grouped, and so DistributedOptimizer and DistributedGradientTape with dense gradients. An average is
    still divided by the number of all ranks. Barriers go on, too. This rank's own variables stay as they are.
    The last rank has the newest ones, so broadcast them from it.

    Everything else needs data of every rank, also Min, Max and Product, since zeros would change their
    result. Such a call raises ConfigError with the ranks that have joined. So does an operation that a rank
    submits before its join() has returned. When ranks wait here and one neither joins nor submits anything,
    they get a StalledError after RDMACOLL_STALL_ERROR_S. When that rank ends without joining, they get a
    RankFailedError.

    With a process_set, all this is about its ranks. The result is a rank of the world.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and tensorflow.inside_function():
        raise ConfigError(
            "join() inside a tf.function would be called once, while it is traced: call it from Python, "
            "after the last step."
        )
    engine = current()
    number = number_of(engine, process_set)
    operation = run_operation(engine, Call(mirror.JOIN, (), (), process_set=number))
    for listener in _listeners:
        listener(number)
    return int(Results(engine, operation).array(0, np.dtype(np.int64)))


__all__ = ["join"]
