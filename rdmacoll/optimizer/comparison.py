"""Compares values between the ranks of a process set. All ranks take the same decisions, since each follows
from a table that all have.

A table is an allreduce with Sum in which each rank fills its own row. A rank that has joined gives zeros
there, which say that it takes no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from rdmacoll import engine
from rdmacoll._abi.arguments import Array
from rdmacoll.errors import MismatchError, RdmacollError
from rdmacoll.operators import Sum
from rdmacoll.ops._baselines import CHANGED, UNCHANGED, change_of
from rdmacoll.optimizer import compared_values
from rdmacoll.optimizer.compared_values import Entry
from rdmacoll.process_set import ProcessSet

_PART_BYTES = 64 << 20  # the part of a value that is sent at once; a multiple of every dtype's size
# Columns of the first table. Columns behind them are the caller's.
_IS_PRESENT, _FAILED, _COUNT, _STRUCTURE, _PRINT, _STATES = range(6)
_COLUMNS = 6


class Difference(NamedTuple):
    """The first variable that differs by more than the tolerance. If there is none, the variable that
    differs most."""

    rank: int  # in the world
    reference: int  # the rank that it is compared with
    label: str
    distance: float
    relative: float  # the distance / the reference's largest value
    differing: int  # the number of variables that differ
    compared_values: int
    is_beyond: bool  # beyond the tolerance

    def sentence(self) -> str:
        """A text with the variable that differs, and by how much."""
        others = (
            f", one of {self.differing} that differ (of {self.compared_values})" if self.differing > 1 else ""
        )
        relative = f", {self.relative:.3g} of the largest value" if np.isfinite(self.relative) else ""
        return (
            f"{self.label} of rank {self.rank} differs from rank {self.reference}'s by up to "
            f"{self.distance:.6g}{relative}{others}"
        )


class Comparison:
    """One comparison. Each step is called on all ranks of the set that have not joined."""

    def __init__(self, name: str, process_set: ProcessSet) -> None:
        self._name = name
        self._set = process_set
        self._own_rank = process_set.rank()
        self._weights: list[Entry] = []
        self._states: list[Entry] = []
        self._values: list[Array] = []
        self._prints: Array = np.zeros(0, np.uint64)
        self._row: Array = np.zeros(_COLUMNS, np.int64)
        self._row[_IS_PRESENT] = 1
        self._failure: Exception | None = None
        self.live: list[int] = []  # members of the set that take part, ascending

    def read(
        self,
        entries: Callable[[], tuple[list[Entry], list[Entry]]],
        session: Any,
        left_out: set[int],
    ) -> None:
        """Reads all values of this rank. entries: returns the weights and the states (non-trainable
        variables). States at the positions `left_out` are not compared. Raises nothing: `exchange` reports an
        error to all ranks."""
        try:
            self._weights, self._states = entries()
            self._values = compared_values.values_of([*self._weights, *self._states], session)
            self._prints = compared_values.fingerprints(self._values)
            count = len(self._weights)
            compared_states = [i for i in range(len(self._states)) if i not in left_out]
            self._row[_COUNT] = count
            self._row[_STRUCTURE] = _signed(compared_values.structure_of(self._values))
            self._row[_PRINT] = _hash(self._prints[:count])
            self._row[_STATES] = _hash(self._prints[count:][compared_states])
        except Exception as error:
            self._failure = error
            self._row[_FAILED] = 1

    def fingerprint(self) -> int:
        """A hash of all weights of this rank."""
        return int(self._row[_PRINT])

    def exchange(self, numbers: Sequence[int] = ()) -> Array:
        """Exchanges the fingerprints of all values, and further numbers of each rank (`numbers`). Returns
        these numbers, a row for each rank of `live`. If one rank's `read` has failed, all ranks raise an
        error."""
        table = self._table(np.concatenate([self._row, np.array(numbers, np.int64)]), "fingerprints")
        self.live = [member for member in range(len(table)) if table[member, _IS_PRESENT]]
        if self._failure is not None:
            raise self._failure
        self._refuse(table)
        self._hashes = table[self.live][:, [_PRINT, _STATES]]
        numbers_of_all: Array = table[self.live][:, _COLUMNS:]
        return numbers_of_all

    def _refuse(self, table: Array) -> None:
        failed = [self._rank(member) for member in self.live if table[member, _FAILED]]
        if failed:
            raise RdmacollError(
                f"rank {failed[0]} could not read its variables, so ranks cannot be compared: see the error "
                "of that rank."
            )
        first = self.live[0]
        for member in self.live:
            if table[member, _STRUCTURE] != table[first, _STRUCTURE]:
                counts = table[first, _COUNT], table[member, _COUNT]
                raise MismatchError(
                    f"rank {self._rank(member)} compares {counts[1]} weights, slots and counts where rank "
                    f"{self._rank(first)} compares {counts[0]}"
                    + (", of other shapes or dtypes" if counts[0] == counts[1] else "")
                    + ": all ranks need the same model, and an optimizer that is built on all or on none."
                )

    def is_equal(self) -> bool:
        """Whether no value differs anywhere."""
        return bool((self._hashes == self._hashes[0]).all())

    def difference(self, tolerance: float, left_out: set[int]) -> Difference | None:
        """The first difference beyond the tolerance, otherwise the largest one. Weights count, and states
        that no rank has changed since a broadcast; None if none of these differ. The positions of changed
        states are added to `left_out`."""
        count, states = len(self._weights), len(self._states)
        changes = [
            change_of(entry.source, int(now)) for entry, now in zip(self._states, self._prints[count:])
        ]
        row = np.concatenate([self._prints.view(np.int64), np.array(changes, np.int64)])
        table = self._table(row, "variables")[self.live]
        differs = (table[:, : count + states] != table[0, : count + states]).any(axis=0)
        is_fixed = (table[:, count + states :] == UNCHANGED).all(axis=0)
        is_changed = (table[:, count + states :] == CHANGED).any(axis=0)
        left_out.update(int(i) for i in np.flatnonzero(is_changed))
        differs[count:] &= is_fixed
        positions = np.flatnonzero(differs)
        worst: Difference | None = None
        for position in positions:
            found = self._difference_of(int(position), len(positions), tolerance)
            if found.is_beyond:
                return found
            if worst is None or found.relative > worst.relative:
                worst = found
        return worst

    def _difference_of(self, position: int, count: int, tolerance: float) -> Difference:
        value = np.ascontiguousarray(self._values[position]).reshape(-1)
        own = value.view(np.uint8)
        distance = largest = 0.0
        for begin in range(0, own.nbytes, _PART_BYTES):
            part = own[begin : begin + _PART_BYTES]
            sent = part if self._own_rank == self.live[0] else np.zeros_like(part)
            got = engine.allreduce(sent, op=Sum, name=f"{self._name}/value", process_set=self._set)
            part_distance, size = _distance(part.view(value.dtype), got.view(value.dtype))
            distance, largest = max(distance, part_distance), max(largest, size)
        is_exact = value.dtype.kind in "biu"
        relative = 0.0 if distance == 0 else np.inf if is_exact or largest == 0 else distance / largest
        table = self._table(np.array([distance, relative]), "distances")
        member = max(self.live, key=lambda one: (table[one, 1], table[one, 0]))
        label = [*self._weights, *self._states][position].label
        return Difference(
            self._rank(member),
            self._rank(self.live[0]),
            label,
            float(table[member, 0]),
            float(table[member, 1]),
            count,
            len(self._values),
            bool(table[member, 1] > tolerance),
        )

    def _table(self, row: Array, title: str) -> Array:
        table = np.zeros((self._set.size(), len(row)), row.dtype)
        table[self._own_rank] = row
        name = f"{self._name}/{title}"
        return engine.allreduce(table, op=Sum, name=name, process_set=self._set)

    def _rank(self, member: int) -> int:
        return self._set.ranks[member]


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _hash(prints: Array) -> int:
    return _signed(int(compared_values.fingerprints([prints])[0]))


def _distance(own: Array, reference: Array) -> tuple[float, float]:
    """The largest distance between two arrays, and the reference's largest value. NaN equals NaN; NaN and
    infinities are infinitely far from other numbers."""
    kind = np.complex128 if own.dtype.kind == "c" else np.float64
    a, b = own.astype(kind), reference.astype(kind)
    with np.errstate(all="ignore"):
        same = (own == reference) | (np.isnan(a) & np.isnan(b))
        distances = np.where(same, 0.0, np.abs(a - b))
    distances = np.where(np.isfinite(distances), distances, np.inf)
    finite = np.abs(b[np.isfinite(b)])
    return float(distances.max(initial=0.0)), float(finite.max(initial=0.0))
