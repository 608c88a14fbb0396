"""The routes and the contents of buffers: which rank sends which buffers to which rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..job import Work
from ..values import Array

# The period of the values. It is a prime, so that no buffer begins like another.
_PERIOD = 65_521
_LEVELS = 5  # whole numbers from -2 to 2, so that sums of millions are exact


@dataclass(frozen=True)
class RankContext:
    """This rank among all. The last ranks are servers. Without servers, every rank calls every other rank."""

    rank: int
    addresses: Sequence[str]  # "host:port" of each rank
    servers: int

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.addresses)

    @property
    def workers(self) -> int:
        """The number of ranks that call."""
        return self.ranks - self.servers

    @property
    def is_server(self) -> bool:
        """Whether this rank only answers."""
        return self.rank >= self.workers

    @property
    def called(self) -> list[int]:
        """The ranks that this rank calls."""
        if self.servers:
            return list(range(self.workers, self.ranks))
        return [rank for rank in range(self.ranks) if rank != self.rank]

    @property
    def cluster(self) -> dict[str, list[str]]:
        """The addresses of each job, in TensorFlow's words."""
        jobs = {"worker": list(self.addresses[: self.workers]), "ps": list(self.addresses[self.workers :])}
        return {job: addresses for job, addresses in jobs.items() if addresses}

    def task_of(self, rank: int) -> str:
        """TensorFlow's name of the device of a rank.

        >>> RankContext(0, ["a:1", "b:1", "c:1"], 1).task_of(2)
        '/job:ps/task:0'
        """
        number = rank - self.workers
        return f"/job:worker/task:{rank}" if number < 0 else f"/job:ps/task:{number}"

    def routes(self, sizes: Sequence[int]) -> list[tuple[int, list[int]]]:
        """(rank, numbers of the buffers that go to it) for each called rank. Servers share the buffers."""
        if not self.servers:
            return [(rank, list(range(len(sizes)))) for rank in self.called]
        return [(rank, part) for rank, part in zip(self.called, shared(sizes, self.servers)) if part]


def rank_context(options: dict[str, Any]) -> RankContext:
    """This rank, from its options."""
    return RankContext(options["rank"], options["addresses"], options["servers"])


def shared(sizes: Sequence[int], servers: int) -> list[list[int]]:
    """The buffers of each server. In falling order of size, each buffer goes to the server with the fewest
    bytes.

    >>> shared([1, 4, 2, 2], 2)
    [[0, 1], [2, 3]]
    """
    parts: list[list[int]] = [[] for _ in range(servers)]
    held = [0] * servers
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        least = held.index(min(held))
        parts[least].append(number)
        held[least] += sizes[number]
    return [sorted(part) for part in parts]


def buffers_of(rank: int, turn: int, sizes: Sequence[int]) -> list[Array]:
    """The payload of a rank in this turn: float32 arrays of these sizes in bytes. Every rank and turn has
    other values."""
    buffers = []
    for number, size in enumerate(sizes):
        step = 1 + rank + 3 * number
        start = 7919 * rank + 104_729 * turn + 31 * number
        pattern = (np.arange(_PERIOD, dtype=np.int64) * step + start) // 3 % _LEVELS - _LEVELS // 2
        buffers.append(np.resize(pattern.astype(np.float32), size // 4))
    return buffers


def wrong_buffers(got: Sequence[Array], expected: Sequence[Array]) -> int:
    """The number of buffers that differ from the expected ones."""
    return abs(len(got) - len(expected)) + sum(
        not np.array_equal(buffer, right) for buffer, right in zip(got, expected)
    )


class NoWork:
    """The job of a server: none. Threads of its library answer."""

    def call(self) -> None:
        """Returns at once."""

    def check(self, _: int) -> int:
        """Finds nothing wrong: the workers check."""
        return 0

    def clear(self) -> None:
        """Has nothing to prepare."""

    def after(self) -> int:
        """Finds nothing wrong: the workers check."""
        return 0


def payload_of(work: Work) -> list[int]:
    """The sizes of the payload's buffers, in bytes."""
    sizes: list[int] = work["sizes"]
    return sizes
