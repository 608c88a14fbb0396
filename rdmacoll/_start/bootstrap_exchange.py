"""The out-of-band channel: carries short texts between ranks while the engine starts, and never data."""

from __future__ import annotations

import struct
import time
from typing import Any, Callable, Protocol

from rdmacoll.errors import ConfigError, RankFailedError

_POLL_S, _POLL_S_MAX = 0.0005, 0.02
_LENGTH = struct.Struct("<q")
# Abandoned operations of MPI. They cannot be cancelled: MPI may still write into their buffers.
_ABANDONED: list[tuple[Any, ...]] = []


def has_abandoned_operations() -> bool:
    """Whether an operation of MPI was abandoned. MPI_Finalize might wait for it, and so for other ranks."""
    return bool(_ABANDONED)


def no_watch() -> None:
    """Does nothing during a wait."""


def left_during_start(rank: int, host: str, host_pid: str, cause: str, name: str = "") -> RankFailedError:
    """The error for a rank that is gone before the world stands. name: instead of "rank N"."""
    text = f"{name or f'rank {rank}'} ({host_pid}) left during the start: {cause}."
    return RankFailedError(text, rank=rank, host=host, cause=cause)


class AddressHolder(Protocol):
    """Keeps rank 0's address while a world stands."""

    def close(self) -> None:
        """Frees the address. Idempotent."""

    def release_in_child(self) -> None:
        """In a forked child: closes the child's copies of the sockets."""


class BootstrapExchange(Protocol):
    """The out-of-band channel between ranks, as the start of an engine uses it."""

    def allgather(self, text: str, watch: Callable[[], None] = no_watch) -> list[str]:
        """All ranks' texts, by rank. Every rank calls it the same number of times.

        `watch` is called repeatedly meanwhile. An error that it raises ends the wait.
        """

    def check(self) -> None:
        """Raises an error by which another rank ends the start. Called between two rounds. Never waits."""

    def leave(self, cause: str) -> None:
        """Tells the other ranks why this rank leaves, if they would not hear of it otherwise.

        Never waits.
        """

    def job(self) -> tuple[str, bytes]:
        """The job's name and secret, the same on every rank. Called once, before allgather."""

    def renew(self, timeout_s: float, source: str) -> None:
        """Starts a new time limit of `timeout_s`, for steps after a start.

        source: the setting that it is from.
        """

    def share_address(self, callers: Callable[[], int]) -> None:
        """Called when the engine listens. It may now have rank 0's address.

        callers: returns the socket that then passes on descriptors of callers that look for rank 0.
        """

    def address_holder(self) -> AddressHolder | None:
        """The object that will keep rank 0's address for the world. Only on rank 0 of a start without MPI.

        From `hold_address` on the caller has to close it.
        """

    def hold_address(self, is_over: Callable[[], bool], blame: Callable[[str], None]) -> None:
        """Called when the world stands. Keeps the address for the world.

        is_over: whether the world has failed or ended. blame: ends the world on all ranks with this message.
        """

    def close(self) -> None:
        """Frees the channel's resources, but not a kept address. It cannot be used afterwards."""


class SingleRankExchange:
    """The channel of a world of one."""

    def __init__(self, name: str, secret: bytes) -> None:
        self._job = (name, secret)

    def allgather(self, text: str, watch: Callable[[], None] = no_watch) -> list[str]:
        """Returns this rank's text as the only one."""
        return [text]

    def check(self) -> None:
        """Does nothing: there is no other rank."""

    def leave(self, cause: str) -> None:
        """Does nothing: there is no other rank."""

    def job(self) -> tuple[str, bytes]:
        """The name and the secret that it was made with."""
        return self._job

    def renew(self, timeout_s: float, source: str) -> None:
        """Does nothing: this rank waits for no other."""

    def share_address(self, callers: Callable[[], int]) -> None:
        """Does nothing: it has no address."""

    def address_holder(self) -> AddressHolder | None:
        """None: it has no address."""
        return None

    def hold_address(self, is_over: Callable[[], bool], blame: Callable[[str], None]) -> None:
        """Does nothing: it has no address."""

    def close(self) -> None:
        """Does nothing."""


class MpiExchange:
    """The channel over an MPI communicator (mpi4py). It carries bytes only, so that nothing is unpickled.

    Operations are non-blocking and polled, so Ctrl-C and the deadline work while other ranks are late.
    MPI_Init comes before, and has its own limit (bootstrap.py).
    """

    def __init__(self, comm: Any, name: str, secret: bytes, timeout_s: float) -> None:
        self._comm = comm
        self._proposal = (name, secret)
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._step, self._source = "called init()", "RDMACOLL_START_TIMEOUT_S"

    def _finish(self, begin: Callable[..., Any], *buffers: Any, watch: Callable[[], None] = no_watch) -> None:
        request = begin(*buffers)
        try:
            self._wait(request, watch)
        except BaseException:
            _ABANDONED.append((request, *buffers))
            raise

    def _wait(self, request: Any, watch: Callable[[], None]) -> None:
        begin = time.monotonic()
        while not request.Test():
            watch()
            now = time.monotonic()
            if now > self._deadline:
                raise ConfigError(
                    f"not all ranks of this MPI job {self._step} within {self._timeout_s:g} s "
                    f"({self._source}): some rank is late or has ended."
                )
            # A long wait polls seldom, since other processes may be measuring.
            time.sleep(min(max(_POLL_S, (now - begin) / 20), _POLL_S_MAX))

    def allgather(self, text: str, watch: Callable[[], None] = no_watch) -> list[str]:
        """All ranks' texts, by rank."""
        own_text = bytearray(text.encode())
        size = self._comm.Get_size()
        lengths = bytearray(_LENGTH.size * size)
        self._finish(self._comm.Iallgather, bytearray(_LENGTH.pack(len(own_text))), lengths, watch=watch)
        counts = [count for (count,) in _LENGTH.iter_unpack(lengths)]
        offsets = [sum(counts[:rank]) for rank in range(size)]
        everything = bytearray(sum(counts))
        receive_buffer = [everything, (counts, offsets), _byte_type()]
        self._finish(self._comm.Iallgatherv, own_text, receive_buffer, watch=watch)
        return [bytes(everything[offset : offset + count]).decode() for offset, count in zip(offsets, counts)]

    def job(self) -> tuple[str, bytes]:
        """Rank 0's proposal of name and secret."""
        name, secret = self._proposal
        block = bytearray(name.encode() + b"\0" + secret)
        self._finish(self._comm.Ibcast, block, 0)
        agreed, _, agreed_secret = bytes(block).partition(b"\0")
        return agreed.decode(), agreed_secret

    def check(self) -> None:
        """Does nothing: MPI does not report lost ranks."""

    def leave(self, cause: str) -> None:
        """Does nothing: the launcher notices an end without MPI_Finalize, and ends the others."""

    def renew(self, timeout_s: float, source: str) -> None:
        """Starts a new time limit of `timeout_s`, from the setting `source`."""
        self._timeout_s, self._deadline = timeout_s, time.monotonic() + timeout_s
        self._step, self._source = "went on", source

    def share_address(self, callers: Callable[[], int]) -> None:
        """Does nothing: MPI has no address."""

    def address_holder(self) -> AddressHolder | None:
        """None: MPI has no address that another job could connect to."""
        return None

    def hold_address(self, is_over: Callable[[], bool], blame: Callable[[str], None]) -> None:
        """Does nothing: MPI has no address."""

    def close(self) -> None:
        """Does nothing: the communicator belongs to the caller."""


def _byte_type() -> Any:
    from mpi4py import MPI

    return MPI.BYTE
