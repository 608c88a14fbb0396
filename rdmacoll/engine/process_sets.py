"""Process sets: some of the ranks, with collectives of their own.

Sets may overlap, and their operations run at the same time. Each set matches its own operations as the world
does, by name or by order. Operations of other sets do not affect this matching.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np

from rdmacoll._abi import mirror
from rdmacoll._abi.arguments import Array
from rdmacoll._calls.results import Results
from rdmacoll._calls.submission import SLICE_MS, Call, Operation
from rdmacoll._world.running_engine import Engine
from rdmacoll._world.world import current
from rdmacoll.errors import ConfigError, MismatchError
from rdmacoll.operators import DTYPES
from rdmacoll.process_set import ProcessSet, as_set, global_process_set

_NAME = "rdmacoll.process_sets"
_ADD, _REMOVE = 1, 2
_SERIAL = threading.Lock()  # one change at a time: a change has several steps


def process_sets() -> dict[int, ProcessSet]:
    """The sets of this world by their numbers. The set of all ranks comes first, with number 0."""
    return {0: global_process_set, **current().process_sets}


def _agree(engine: Engine, action: int, one: ProcessSet, in_flight: int = 0) -> None:
    """Checks that all ranks request the same change, and that it is possible.

    Otherwise raises the same error on every rank: MismatchError, or ConfigError if operations are in flight.
    """
    own_request = np.array([action, in_flight, len(one.ranks), *one.ranks], np.int64)
    call = Call(
        mirror.ALLGATHER, (own_request,), (own_request,), dtype=DTYPES.moved(own_request.dtype), name=_NAME
    )
    operation = Operation(engine, call)
    operation.wait()
    table = Results(engine, operation).array(0, own_request.dtype)
    requests: list[tuple[int, Array]] = []
    busy: list[str] = []
    at = 0
    for rank in range(engine.topology[1]):
        count = int(table[at + 2])
        requests.append((int(table[at]), table[at + 3 : at + 3 + count]))
        if table[at + 1]:
            busy.append(f"rank {rank} has {table[at + 1]}")
        at += 3 + count
    if any(request[0] != action or request[1].tolist() != one.ranks for request in requests):
        description = "; ".join(
            f"rank {rank} {'adds' if request == _ADD else 'removes'} {ranks.tolist()}"
            for rank, (request, ranks) in enumerate(requests)
        )
        raise MismatchError(
            f"ranks disagree about the process sets: {description}. Add and remove the same sets in the "
            "same order on all ranks, members or not."
        )
    if busy:
        raise ConfigError(
            f"{one!r} cannot be removed while operations are in flight in it: {', '.join(busy)}. Wait for "
            "them first."
        )


def _restored(engine: Engine, one: ProcessSet) -> int:
    """Returns the number of the restored set with these ranks, once, and otherwise 0."""
    for number in sorted(engine.restored_sets & engine.process_sets.keys()):
        if engine.process_sets[number].ranks == one.ranks:
            engine.restored_sets.remove(number)
            return number
    return 0


def _meet(engine: Engine) -> None:
    Operation(engine, Call(mirror.BARRIER, (), (), name=_NAME)).wait()


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Adds a set to this world, and returns it. Every rank of the world calls it with the same ranks, also
    ranks that are not members.

    Raises ConfigError for ranks that do not exist, or a set that exists already (all ranks: use
    `global_process_set`). Raises MismatchError when ranks give different sets. A set that `init()` has
    restored from the world before can be added once.
    """
    one = as_set(process_set)
    engine = current()
    with _SERIAL:
        _agree(engine, _ADD, one)
        number = _restored(engine, one)
        if not number:
            with engine.held() as address:
                number = engine.library.set_add(address, one.ranks)
        _meet(engine)
        one.bind(engine, number)
        engine.process_sets[number] = one
    return one


def remove_process_set(process_set: ProcessSet) -> None:
    """Removes an added set. Every rank of the world calls it, also ranks that are not members.

    Raises ConfigError for the set of all ranks, for a set that is not added, and while operations of the set
    are in flight on any rank.
    """
    engine = current()
    number = process_set.number_in(engine)
    if number == 0:
        raise ConfigError("global_process_set cannot be removed: it is the world.")
    with _SERIAL:
        with engine.held() as address:
            in_flight = engine.library.set_in_flight(address, number)
        _agree(engine, _REMOVE, process_set, in_flight)
        with engine.held() as address:
            while not engine.library.set_remove(address, number, SLICE_MS):
                pass
        _meet(engine)
        process_set.bind(None, 0)
        engine.process_sets.pop(number, None)


__all__ = [
    "ProcessSet",
    "add_process_set",
    "global_process_set",
    "process_sets",
    "remove_process_set",
]
