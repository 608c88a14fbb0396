"""Carries short texts between ranks while the engine starts; never data."""

from __future__ import annotations

import struct
import time
from typing import Any, Callable, Protocol

from rdmacoll.engine.errors import ConfigError, RankFailedError

_POLL_S, _POLL_S_MAX = 0.0005, 0.02
_LENGTH = struct.Struct("<q")
# Operations of MPI that were given up cannot be taken back: MPI may still write into their buffers.
_GIVEN_UP: list[tuple[Any, ...]] = []


def gave_up() -> bool:
    """Whether an operation of MPI was given up: MPI_Finalize might wait for it, and so for other ranks."""
    return bool(_GIVEN_UP)


def no_watch() -> None:
    """Nothing else to look at while one waits."""


def left(rank: int, host: str, who: str, cause: str, name: str = "") -> RankFailedError:
    """The error of a rank that is gone before the world stands; `name`: what else it is called."""
    text = f"{name or f'rank {rank}'} ({who}) left during the start: {cause}."
    return RankFailedError(text, rank=rank, host=host, cause=cause)


class Keeper(Protocol):
    """Has rank 0's address while a world stands."""

    def close(self) -> None:
        """Frees the address; idempotent."""

    def forget_in_child(self) -> None:
        """In a forked child: frees its copies."""


class Carrier(Protocol):
    """What the start of an engine asks of a launcher's channel."""

    def allgather(self, text: str, watch: Callable[[], None] = no_watch) -> list[str]:
        """Everybody's text, by rank; every rank calls it the same number of times. `watch` is called again
        and again meanwhile; what it raises ends the wait."""

    def check(self) -> None:
        """Between two rounds: raises what others have said or shown to end the start; never waits."""

    def leave(self, cause: str) -> None:
        """Tells the others why this rank takes no part any more, where they would not hear of it
        otherwise; never waits."""

    def job(self) -> tuple[str, bytes]:
        """The job's name and secret, the same on every rank; called once, before allgather."""

    def renew(self, timeout_s: float, source: str) -> None:
        """From now on `timeout_s` counts, which `source` sets: for what comes after a start."""

    def share_address(self, callers: Callable[[], int]) -> None:
        """The engine listens now. Where it has rank 0's address, `callers` gives the socket out of which the
        descriptors of those come who look for rank 0 there."""

    def keeper(self) -> Keeper | None:
        """Who will keep rank 0's address for the world, on rank 0 of a start without MPI. From `keep` on it
        is the caller's to close."""

    def keep(self, is_over: Callable[[], bool], blame: Callable[[str], None]) -> None:
        """The world stands, and its address stays. `is_over`: whether the world has failed or ended; `blame`:
        ends it on all ranks, with a sentence."""

    def close(self) -> None:
        """Frees what the carrier holds, but for what is kept; afterwards it cannot be used."""


class SoloCarrier:
    """A world of one: nobody to talk to."""

    def __init__(self, name: str, secret: bytes) -> None:
        self._job = (name, secret)

    def allgather(self, text: str, watch: Callable[[], None] = no_watch) -> list[str]:
        """This rank's text alone."""
        return [text]

    def check(self) -> None:
        """Nobody could leave."""

    def leave(self, cause: str) -> None:
        """Nobody to tell."""

    def job(self) -> tuple[str, bytes]:
        """What it was made with."""
        return self._job

    def renew(self, timeout_s: float, source: str) -> None:
        """Nobody is waited for."""

    def share_address(self, callers: Callable[[], int]) -> None:
        """It has no address."""

    def keeper(self) -> Keeper | None:
        """It has no address."""
        return None

    def keep(self, is_over: Callable[[], bool], blame: Callable[[str], None]) -> None:
        """It has no address."""

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

    def _finish(self, begin: Callable[..., Any], *buffers: Any, watch: Callable[[], None] = no_watch) -> None:
        request = begin(*buffers)
        try:
            self._wait(request, watch)
        except BaseException:
            _GIVEN_UP.append((request, *buffers))
            raise

    def _wait(self, request: Any, watch: Callable[[], None]) -> None:
        begin = time.monotonic()
        while not request.Test():
            watch()
            now = time.monotonic()
            if now > self._deadline:
                raise ConfigError(
                    f"the ranks of this MPI job did not all {self._what} within {self._timeout_s:g} s "
                    f"({self._source}): some rank has not come so far, or has ended."
                )
            # Whoever waits for long wakes seldom: others may be measuring.
            time.sleep(min(max(_POLL_S, (now - begin) / 20), _POLL_S_MAX))

    def allgather(self, text: str, watch: Callable[[], None] = no_watch) -> list[str]:
        """Everybody's text, by rank."""
        mine = bytearray(text.encode())
        size = self._comm.Get_size()
        lengths = bytearray(_LENGTH.size * size)
        self._finish(self._comm.Iallgather, bytearray(_LENGTH.pack(len(mine))), lengths, watch=watch)
        counts = [count for (count,) in _LENGTH.iter_unpack(lengths)]
        offsets = [sum(counts[:rank]) for rank in range(size)]
        everything = bytearray(sum(counts))
        places = [everything, (counts, offsets), _byte_type()]
        self._finish(self._comm.Iallgatherv, mine, places, watch=watch)
        return [bytes(everything[offset : offset + count]).decode() for offset, count in zip(offsets, counts)]

    def job(self) -> tuple[str, bytes]:
        """Rank 0's proposal."""
        name, secret = self._proposal
        block = bytearray(name.encode() + b"\0" + secret)
        self._finish(self._comm.Ibcast, block, 0)
        agreed, _, agreed_secret = bytes(block).partition(b"\0")
        return agreed.decode(), agreed_secret

    def check(self) -> None:
        """MPI does not say who is gone."""

    def leave(self, cause: str) -> None:
        """A process that ends without MPI_Finalize is reported by the launcher, which ends the others."""

    def renew(self, timeout_s: float, source: str) -> None:
        """From now on `timeout_s` counts, which `source` sets."""
        self._timeout_s, self._deadline = timeout_s, time.monotonic() + timeout_s
        self._what, self._source = "go on", source

    def share_address(self, callers: Callable[[], int]) -> None:
        """MPI has no address."""

    def keeper(self) -> Keeper | None:
        """MPI has no address that another job could come to."""
        return None

    def keep(self, is_over: Callable[[], bool], blame: Callable[[str], None]) -> None:
        """MPI has no address."""

    def close(self) -> None:
        """The communicator stays the caller's."""


def _byte_type() -> Any:
    from mpi4py import MPI

    return MPI.BYTE
