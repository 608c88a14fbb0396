"""The limits that no library can beat: the rate of the memory, and the rate of plain TCP streams over the
same link.

They take turns in a comparison, like libraries.
"""

from __future__ import annotations

import select
import socket
import time
from typing import Any

import numpy as np

from .job import Job, Work
from .values import Array, fill

_CONNECT_S = 30.0
_POLL_MS = 10_000


class Memory:
    """The least memory traffic of an allreduce on one machine. Each rank adds its share of the others'
    arrays to its own, and copies the other sums. No rank waits for another."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.rank, self.ranks = options["rank"], options["ranks"]
        self.facts = {"numpy": np.__version__}

    def make(self, work: Work) -> Job:
        """Two arrays of this rank."""
        return _AddAndCopy(work["bytes"] // 4, self.ranks)


class _AddAndCopy:
    def __init__(self, count: int, ranks: int) -> None:
        self._own, self._other = np.ones(count, np.float32), np.ones(count, np.float32)
        share = max(1, count // ranks)
        self._own_parts = [self._own[:share]] * (ranks - 1)
        self._parts = [self._other[n * share : (n + 1) * share] for n in range(1, ranks)]

    def call(self) -> None:
        """Adds all shares but one to the rank's own share, and copies as many shares."""
        for own, part in zip(self._own_parts, self._parts):
            np.add(own, part, out=own)
        for own, part in zip(self._own_parts, self._parts):
            np.copyto(part, own)

    def check(self, _: int) -> int:
        """Adds ones to ones, and counts sums that are not two."""
        self._own[:] = self._other[:] = 1
        np.add(self._own, self._other, out=self._own)
        return int((self._own != 2).sum())

    def clear(self) -> None:
        """Sets all values to zero."""
        self._own[:] = self._other[:] = 0

    def after(self) -> int:
        """The number of values that are not zero."""
        return int((self._own != 0).sum())


class Stream:
    """The bytes that an allreduce sends between hosts: all of them, both ways at once. Each rank of the
    first half has a TCP connection to one rank of the second half."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.rank, self.ranks = options["rank"], options["ranks"]
        self._pairs = self.ranks // 2
        self._partner = (self.rank + self._pairs) % self.ranks
        number = self.rank % self._pairs
        address = (options["address"], options["port"] + number)
        self._line = _listen(address) if self.rank < self._pairs else _connect(address)
        self._line.setblocking(False)
        self.facts = {"sender": "plain TCP, one connection for each pair of ranks"}

    def make(self, work: Work) -> Job:
        """The sent and the received array of one exchange."""
        count = max(1, work["bytes"] // 4 // self._pairs)
        return _Exchange(self._line, self.rank, self._partner, count)


class _Exchange:
    def __init__(self, line: socket.socket, rank: int, partner: int, count: int) -> None:
        self._line, self._rank, self._partner = line, rank, partner
        self._sent: Array = np.zeros(count, np.float32)
        self._received: Array = np.zeros(count, np.float32)

    def call(self) -> None:
        """Sends and receives at the same time."""
        outgoing, incoming = self._sent.view(np.uint8).data, self._received.view(np.uint8).data
        line, poll = self._line, select.poll()
        poll.register(line, select.POLLIN | select.POLLOUT)
        while outgoing or incoming:
            events = (select.POLLOUT if outgoing else 0) | (select.POLLIN if incoming else 0)
            poll.modify(line, events)
            ready = poll.poll(_POLL_MS)
            if not ready:
                raise TimeoutError(f"plain TCP moved nothing for {_POLL_MS / 1000:g} s")
            if ready[0][1] & select.POLLOUT and outgoing:
                outgoing = outgoing[line.send(outgoing) :]
            if ready[0][1] & (select.POLLIN | select.POLLHUP | select.POLLERR):
                got = line.recv_into(incoming) if incoming else 0
                if not got:
                    raise ConnectionError("plain TCP: the partner closed the connection")
                incoming = incoming[got:]

    def check(self, turn: int) -> int:
        """Exchanges the values of this turn, and counts values that differ from the partner's."""
        fill(self._sent, self._rank, turn)
        self.call()
        expected = np.empty_like(self._received)
        fill(expected, self._partner, turn)
        return int((self._received != expected).sum())

    def clear(self) -> None:
        """Sets all sent values to zero."""
        self._sent[:] = 0

    def after(self) -> int:
        """The number of received values that are not zero."""
        return int((self._received != 0).sum())


def _listen(address: tuple[str, int]) -> socket.socket:
    with socket.create_server(address) as listener:
        listener.settimeout(_CONNECT_S)
        return listener.accept()[0]


def _connect(address: tuple[str, int]) -> socket.socket:
    end = time.monotonic() + _CONNECT_S
    while True:
        try:
            return socket.create_connection(address, timeout=_CONNECT_S)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def join(options: dict[str, Any]) -> Memory | Stream:
    """Joins as a rank of the requested limit."""
    return Stream(options) if options["limit"] == "stream" else Memory(options)
