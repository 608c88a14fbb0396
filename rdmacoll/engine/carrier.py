"""Carries short texts between ranks while the engine starts; never data."""

from __future__ import annotations

import struct
import time
from typing import Any, Protocol

from rdmacoll.engine.errors import ConfigError

_POLL_S, _POLL_S_MAX = 0.0005, 0.02
_LENGTH = struct.Struct("<q")


class Carrier(Protocol):
    """What the start of an engine asks of a launcher's channel."""

    def allgather(self, text: str) -> list[str]:
        """Everybody's text, by rank; every rank calls it the same number of times."""

    def job(self) -> tuple[str, bytes]:
        """The job's name and secret, the same on every rank; called once, before allgather."""

    def renew(self, timeout_s: float, source: str) -> None:
        """From now on `timeout_s` counts, which `source` sets: for what comes after a start."""

    def close(self) -> None:
        """Frees what the carrier holds; afterwards it cannot be used."""


class SoloCarrier:
    """A world of one: nobody to talk to."""

    def __init__(self, name: str, secret: bytes) -> None:
        self._job = (name, secret)

    def allgather(self, text: str) -> list[str]:
        """This rank's text alone."""
        return [text]

    def job(self) -> tuple[str, bytes]:
        """What it was made with."""
        return self._job

    def renew(self, timeout_s: float, source: str) -> None:
        """Nobody is waited for."""

    def close(self) -> None:
        """Nothing to free."""


class MpiCarrier:
    """Over an MPI communicator (mpi4py). Bytes only, so that nothing is ever unpickled.

    Operations are non-blocking and polled: Ctrl-C and the deadline work while others are late. Both begin
    with MPI: MPI_Init, before, waits for the other ranks as long as the launcher does.
    """

    def __init__(self, comm: Any, name: str, secret: bytes, timeout_s: float) -> None:
        self._comm = comm
        self._proposal = (name, secret)
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._what, self._source = "call init()", "RDMACOLL_START_TIMEOUT_S"

    def _finish(self, request: Any) -> None:
        begin = time.monotonic()
        while not request.Test():
            now = time.monotonic()
            if now > self._deadline:
                raise ConfigError(
                    f"the ranks of this MPI job did not all {self._what} within {self._timeout_s:g} s "
                    f"({self._source}): some rank has not come so far, or has ended."
                )
            # Whoever waits for long wakes seldom: others may be measuring.
            time.sleep(min(max(_POLL_S, (now - begin) / 20), _POLL_S_MAX))

    def allgather(self, text: str) -> list[str]:
        """Everybody's text, by rank."""
        mine = text.encode()
        size = self._comm.Get_size()
        lengths = bytearray(_LENGTH.size * size)
        self._finish(self._comm.Iallgather(bytearray(_LENGTH.pack(len(mine))), lengths))
        counts = [count for (count,) in _LENGTH.iter_unpack(lengths)]
        offsets = [sum(counts[:rank]) for rank in range(size)]
        everything = bytearray(sum(counts))
        self._finish(self._comm.Iallgatherv(bytearray(mine), [everything, (counts, offsets), _byte_type()]))
        return [bytes(everything[offset : offset + count]).decode() for offset, count in zip(offsets, counts)]

    def job(self) -> tuple[str, bytes]:
        """Rank 0's proposal."""
        name, secret = self._proposal
        block = bytearray(name.encode() + b"\0" + secret)
        self._finish(self._comm.Ibcast(block, root=0))
        agreed, _, agreed_secret = bytes(block).partition(b"\0")
        return agreed.decode(), agreed_secret

    def renew(self, timeout_s: float, source: str) -> None:
        """From now on `timeout_s` counts, which `source` sets."""
        self._timeout_s, self._deadline = timeout_s, time.monotonic() + timeout_s
        self._what, self._source = "go on", source

    def close(self) -> None:
        """The communicator stays the caller's."""


def _byte_type() -> Any:
    from mpi4py import MPI

    return MPI.BYTE
