"""Process sets as Horovod's: they answer None before they are added, and may be given by communicators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rdmacoll import engine, process_set as sets
from rdmacoll._horovod.errors import UnsupportedError
from rdmacoll._world import world
from rdmacoll.engine.process_sets import add_process_set as add, process_sets, remove_process_set as remove
from rdmacoll.errors import ConfigError

_NAME = "rdmacoll.horovod.process_sets"


class ProcessSet(sets.ProcessSet):
    """A set of some of the ranks, or of the ranks of an mpi4py communicator.

    The set of a communicator knows its ranks after `init(comm, process_sets=[...])`. Raises ValueError for
    anything else than whole numbers or a communicator.
    """

    def __init__(self, ranks_or_comm: Any) -> None:
        self.mpi_comm = ranks_or_comm if _is_communicator(ranks_or_comm) else None
        super().__init__([0] if self.mpi_comm is not None else ranks_or_comm)
        self._is_known = self.mpi_comm is None

    @property
    def ranks(self) -> Any:
        """The ranks in the set, ascending; None for a communicator before `init`."""
        return super().ranks if self._is_known else None

    @property
    def process_set_id(self) -> Any:
        """The set's number in this world, the same on every rank; None if it is not added."""
        return self._number if self._is_added() else None

    @process_set_id.setter
    def process_set_id(self, number: int | None) -> None:
        """Makes this object the added set with this number. Raises ConfigError for another number."""
        if number is None:
            self.bind(None, 0)
        elif number in process_sets():
            self.bind(world.current(), number)
        else:
            raise ConfigError(f"process_set_id={number}: this world has no such set.")

    def included(self) -> Any:
        """Whether this process is in the set; None if its ranks are unknown."""
        return world.rank() in self.ranks if self._is_known else None

    def rank(self) -> Any:
        """This process's number in the set; None if the set is not added. Raises ValueError for others."""
        return super().rank() if self._is_added() else None

    def size(self) -> Any:
        """The number of processes in the set; None if it is not added."""
        return super().size() if self._is_added() else None

    def learn_ranks(self, comm: Any) -> None:
        """Finds the ranks of the set's communicator in `comm`, that of the world."""
        if self.mpi_comm is not None:
            group = self.mpi_comm.Get_group()
            numbers = list(range(group.Get_size()))
            self._ranks = tuple(sorted(type(group).Translate_ranks(group, numbers, comm.Get_group())))
            self._is_known = True

    def _is_added(self) -> bool:
        return world.is_initialized() and self._engine is world.current()

    def __reduce__(self) -> Any:
        return ProcessSet, (self.ranks,)


def _is_communicator(value: Any) -> bool:
    return hasattr(value, "Get_group") and hasattr(value, "Get_rank")


def requested(process_sets: Any) -> list[sets.ProcessSet]:
    """The sets of `init(process_sets=...)`. Raises ConfigError."""
    if process_sets is None or (isinstance(process_sets, str) and process_sets.lower() == "dynamic"):
        return []  # sets can always be added later
    if isinstance(process_sets, (str, sets.ProcessSet)) or not isinstance(process_sets, Iterable):
        raise ConfigError(f'process_sets={process_sets!r}: give a list of ProcessSet, "dynamic" or None.')
    return [one if isinstance(one, sets.ProcessSet) else ProcessSet(one) for one in process_sets]


def create(process_sets: Sequence[sets.ProcessSet]) -> None:
    """Adds the sets of all ranks to a new world, without repetitions. Every rank calls it. Ranks may give
    other sets at a place of the list, as with a communicator that was split."""
    everyone = tuple(range(world.size()))
    known = {everyone}
    for ranks in _of_all_ranks([one.ranks for one in process_sets]):
        if ranks not in known:
            known.add(ranks)
            world.current().initial_sets.add(add(ranks).process_set_id)


def _of_all_ranks(own: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The sets of all ranks, by their place in the lists and then by rank."""
    numbers = [len(own), *(number for ranks in own for number in (len(ranks), *ranks))]
    table = iter(engine.allgather(np.array(numbers, np.int64), name=_NAME).tolist())
    lists = [
        [tuple(next(table) for _ in range(next(table))) for _ in range(next(table))]
        for _ in range(world.size())
    ]
    longest = max(len(one) for one in lists)
    return [one[place] for place in range(longest) for one in lists if place < len(one)]


def bind(process_sets: Sequence[sets.ProcessSet]) -> None:
    """Binds the objects to the sets of this world. Raises ConfigError for sets that occur twice and for sets
    that the world does not have. The others are bound then."""
    current, seen = world.current(), set()
    numbers = {tuple(range(world.size())): 0}
    numbers.update((tuple(one.ranks), number) for number, one in current.process_sets.items())
    wrong = []
    for one in process_sets:
        number = numbers.get(tuple(one.ranks))
        if number is None:
            why = "is none of the sets that the first init() has made: add_process_set() adds it"
        elif number == 0:
            why = "has all ranks of this world: leave it out, and use global_process_set"
        elif number in seen:
            why = "is given twice: give each set once"
        else:
            seen.add(number)
            one.bind(current, number)
            current.process_sets[number] = one
            continue
        one.bind(None, 0)
        wrong.append(f"{one} {why}.")
    if wrong:
        raise ConfigError(f"init(process_sets=...): {' '.join(wrong)}")


def add_process_set(process_set: Any) -> Any:
    """Adds a set to this world, and returns it. Every rank of the world calls it with the same ranks.

    process_set: a ProcessSet, or ranks. Raises ValueError for a set that exists already, and
    NotImplementedError for the set of a communicator.
    """
    one = process_set if isinstance(process_set, sets.ProcessSet) else ProcessSet(process_set)
    if one.ranks is None:
        raise UnsupportedError(f"{one} cannot be added: name the ranks of the communicator.")
    return add(one)


def remove_process_set(process_set: sets.ProcessSet) -> bool:
    """Removes an added set, and returns whether there was something to remove. Every rank of the world calls
    it. Raises ValueError while operations of the set are in flight."""
    if process_set is sets.global_process_set or process_set.process_set_id is None:
        return False
    remove(process_set)
    return True
