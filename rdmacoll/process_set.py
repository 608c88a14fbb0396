"""ProcessSet: a set of some of the ranks. process_sets.py adds and removes sets."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from rdmacoll._base.external_values import shown
from rdmacoll.errors import ConfigError, NotInitializedError

_SETTING = "RDMACOLL_PROCESS_SETS"


class ProcessSet:
    """A set of some of the ranks. It can communicate once it is given to `init(process_sets=[...])`, or to
    `add_process_set`.

    >>> ProcessSet([2, 0])
    ProcessSet([0, 2])
    """

    mpi_comm: Any = None  # Horovod's name: the communicator from which the set was made

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks = _checked(ranks)
        self._engine: Any = None
        self._number = 0

    @property
    def ranks(self) -> list[int]:
        """The ranks in the set, ascending."""
        return list(self._ranks)

    @property
    def process_set_id(self) -> int:
        """The set's number in this world, the same on every rank. Raises ConfigError if it is not added."""
        return self.number_in(self._engine)

    def included(self) -> bool:
        """Whether this process is in the set."""
        return self._topology()[0] in self._ranks

    def rank(self) -> int:
        """This process's number in the set, from 0. Raises ConfigError if the process is not in the set."""
        own_rank = self._topology()[0]
        if own_rank not in self._ranks:
            raise ConfigError(f"rank {own_rank} is not in {self!r}: check included() first.")
        return self._ranks.index(own_rank)

    def size(self) -> int:
        """The number of processes in the set."""
        return len(self._ranks)

    def number_in(self, engine: Any) -> int:
        """The set's number in `engine`. Raises ConfigError for a set that is not added, or was removed."""
        if self._engine is not engine or engine is None:
            self._find_in(engine)
        return self._number

    def _find_in(self, engine: Any) -> None:
        """Binds this set to an added one with the same ranks.

        A copy of a set, as from a pickle, is that set.
        """
        for number, other in engine.process_sets.items() if engine is not None else ():
            if other.ranks == self.ranks:
                return self.bind(engine, number)
        raise self._not_added_error()

    def __reduce__(self) -> Any:
        return ProcessSet, (self.ranks,)

    def _topology(self) -> tuple[int, ...]:
        if self._engine is None:
            raise self._not_added_error()
        topology: tuple[int, ...] = self._engine.topology
        return topology

    def _not_added_error(self) -> Exception:
        return ConfigError(
            f"{self!r} is no process set of this world: give it to init(process_sets=[...]) or to "
            "add_process_set() first. Sets end with their world, as when ranks of an elastic job change."
        )

    def bind(self, engine: Any, number: int) -> None:
        """Makes this a set of `engine`, or of none (None)."""
        self._engine = engine
        self._number = number

    def __repr__(self) -> str:
        return f"ProcessSet({self.ranks})"

    def __str__(self) -> str:
        number = None if self._engine is None else self._number
        return f"ProcessSet(process_set_id={number}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


class _GlobalProcessSet(ProcessSet):
    """All ranks of the world."""

    def __init__(self) -> None:
        super().__init__([0])

    @property
    def ranks(self) -> list[int]:
        """All ranks."""
        return list(range(self.size()))

    def included(self) -> bool:
        """Always True."""
        return True

    def rank(self) -> int:
        """Like `rdmacoll.rank()`."""
        return self._topology()[0]

    def size(self) -> int:
        """Like `rdmacoll.size()`."""
        return self._topology()[1]

    def number_in(self, engine: Any) -> int:
        """Always 0."""
        return 0

    def _not_added_error(self) -> Exception:
        return NotInitializedError("rdmacoll is not initialised: call rdmacoll.init() first.")

    def __reduce__(self) -> str:
        return "global_process_set"  # pickles by name: the object of this module

    def __repr__(self) -> str:
        return "global_process_set"

    def __str__(self) -> str:
        return repr(self) if self._engine is None else super().__str__()


def _checked(ranks: Iterable[int]) -> tuple[int, ...]:
    try:
        numbers = sorted(operator.index(rank) for rank in ranks)
    except TypeError:
        numbers = []
    if not numbers or numbers[0] < 0 or len(set(numbers)) < len(numbers):
        raise ConfigError(f"ProcessSet({shown(ranks)}): name each rank once, and at least one.")
    return tuple(numbers)


global_process_set = _GlobalProcessSet()


def setting_of(process_sets: Sequence[ProcessSet | Iterable[int]] | str | None) -> str | None:
    """The value of RDMACOLL_PROCESS_SETS for the argument of `init(process_sets=...)`.

    >>> setting_of([ProcessSet([2, 0]), [1, 3]])
    '0,2;1,3'
    """
    if process_sets is None or (isinstance(process_sets, str) and process_sets == "dynamic"):
        return None  # sets can always be added later
    if isinstance(process_sets, str) or not isinstance(process_sets, Sequence):
        raise ConfigError(
            f"process_sets={shown(process_sets)}: give a list of ProcessSet, or nothing and add them later."
        )
    requested: Sequence[Any] = process_sets
    sets = [as_set(one) for one in requested]
    return ";".join(",".join(map(str, one.ranks)) for one in sets) or None


def as_set(ranks: ProcessSet | Iterable[int]) -> ProcessSet:
    """A ProcessSet from a ProcessSet or from ranks."""
    return ranks if isinstance(ranks, ProcessSet) else ProcessSet(ranks)


def bind_static(engine: Any, process_sets: Sequence[ProcessSet | Iterable[int]] | str | None) -> None:
    """Binds the sets that exist from the start. Their numbers begin at 1."""
    global_process_set.bind(engine, 0)
    text = engine.values.text(_SETTING)
    sets = [ProcessSet(map(int, ranks.split(","))) for ranks in text.split(";")] if text != "none" else []
    requested = [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)
    for number, made in enumerate(sets, 1):
        one = requested[number - 1] if number <= len(requested) else made
        one = one if isinstance(one, ProcessSet) else made
        one.bind(engine, number)
        engine.process_sets[number] = one
    engine.initial_sets.update(engine.process_sets)


def initial_sets(engine: Any) -> list[ProcessSet]:
    """The sets that `init` was given, without those that were removed."""
    return [one for number, one in engine.process_sets.items() if number in engine.initial_sets]


def unbind(engine: Any) -> None:
    """Unbinds all sets of a world that has ended."""
    for one in [global_process_set, *engine.process_sets.values()]:
        one.bind(None, 0)


def number_of(engine: Any, process_set: ProcessSet) -> int:
    """The number by which operations name the set. Raises ConfigError."""
    if process_set is global_process_set:
        return 0
    if not isinstance(process_set, ProcessSet):
        raise ConfigError(
            f"process_set={process_set!r} is a {type(process_set).__name__}: give a ProcessSet that was "
            "added."
        )
    return process_set.number_in(engine)
