"""One running engine of this process, and the holders of its memory."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from rdmacoll._abi import fast_calls
from rdmacoll._abi.library import Library
from rdmacoll._abi.settings import Values
from rdmacoll._base.sealed import Seen
from rdmacoll._ps.variable_servers import VariableServers
from rdmacoll._start.bootstrap_exchange import AddressHolder, BootstrapExchange
from rdmacoll._world.array_keeper import ArrayKeeper
from rdmacoll.errors import NotInitializedError, RankFailedError, RdmacollError
from rdmacoll.process_set import ProcessSet


def refusal_of(*, is_forked: bool) -> RdmacollError:
    """The error for a process without an engine, or with one that it may not use."""
    if is_forked:
        return NotInitializedError(
            f"process {os.getpid()} was forked from a rank of rdmacoll, and is no rank itself: its "
            "parent owns the engine. Fork before init(), or start workers with the spawn method."
        )
    return NotInitializedError("rdmacoll is not initialised: call rdmacoll.init() first.")


# From so many abandoned handles on, a new one makes the engine free those whose operations have ended.
_SWEEP_FROM = 64


class Engine:
    """One running engine, and the objects that still hold its handles or memory.

    The library requires that every handle and every block of memory is freed before the engine. Garbage
    collection promises no order, so this class counts holders. After the end, the last holder to let go frees
    the engine.
    """

    def __init__(self, library: Library, address: int, values: Values) -> None:
        self.library = library
        self.address = address
        self.values = values
        self.is_open = True
        self.is_started_by_mpi = False
        self.object_key = b""  # signs the objects that ranks exchange
        self.object_numbers = itertools.count()  # numbers for the objects that this rank sends
        self.objects_seen: defaultdict[tuple[int, int], Seen] = defaultdict(Seen)  # by process set and sender
        self.is_forked = False  # True in a forked child, which must not touch the engine
        self.topology = library.engine_topology(address)
        description = library.engine_describe(address)
        self.servers, self.is_server = int(description["servers"]), bool(description["is_server"])
        self.variable_servers: VariableServers | None = None  # asynchronous ones
        self.address_holder: AddressHolder | None = None  # holds rank 0's address
        self.process_sets: dict[int, ProcessSet] = {}  # by number, without the set of all ranks
        self.initial_sets: set[int] = set()  # numbers of those that `init` was given
        self.restored_sets: set[int] = set()  # those of the world before, until add_process_set names them
        # Abandoned operations, with the arrays that the engine may still touch. `interrupted` has prepared
        # runs that an exception ended. The library cannot tell whether these are done.
        self.unfinished: list[tuple[int, object]] = []
        self.interrupted: list[tuple[int, object]] = []
        # Ended operations whose work a GPU still does, and abandoned ones on GPUs, with their arrays.
        self.keeper = ArrayKeeper(library.handle_done, library.handle_free)
        # None without the extension
        self.plain_calls = fast_calls.calls_of(address, self.topology[1], self.topology[0])
        self._holders: set[int] = set()
        self._unfreed = [address]

    def hold(self, holder: int) -> None:
        """Keeps the engine's memory until `release(holder)`. Raises NotInitializedError after the end.

        `hold` adds the holder before it reads `is_open`. `close` clears `is_open` before it reads the
        holders. So neither can miss the other.
        """
        self._holders.add(holder)
        if not self.is_open:
            self.release(holder)
            raise refusal_of(is_forked=self.is_forked)

    def share(self, holder: int) -> None:
        """Adds a holder to an engine that is already held. The engine never refuses it."""
        self._holders.add(holder)

    def release(self, holder: int) -> None:
        """Ends a `hold` or a `share`. The last one after the end frees the engine."""
        self._holders.discard(holder)
        self.free_if_unused()

    def free_if_unused(self) -> None:
        """Frees the engine after its end, unless it has a holder or a plain call in flight."""
        if self.is_open or self.is_forked or self._holders:
            return
        if self.plain_calls is not None and self.plain_calls.in_flight:
            return
        try:
            address = self._unfreed.pop()
        except IndexError:
            return  # another thread was faster
        self.library.engine_free(address)

    def close(self, cause: str | None) -> None:
        """Leaves the world; pending operations fail with ShutdownError. Bounded in time, idempotent."""
        if not self.is_open:
            return
        if self.address_holder is not None:
            self.address_holder.close()  # the next world may need the address
        # This wakes waiting threads, which let go. The engine must not be freed before this call returns.
        self.share(id(self))
        self.is_open = False
        if self.plain_calls is not None:
            self.plain_calls.is_open = False
        self.library.engine_close(self.address, cause)
        while self.unfinished:
            self.library.handle_free(self.unfinished.pop()[0])
        while self.interrupted:
            self.library.prepared_free(self.interrupted.pop()[0])
        self.keeper.end()
        self.release(id(self))

    def abandon(self, handle: int, arrays: object) -> None:
        """Takes the handle of an operation that nobody waits for, and the arrays that it may still use."""
        if not self.is_open or self.library.handle_done(handle):
            self.library.handle_free(handle)
            return
        self.unfinished.append((handle, arrays))
        if len(self.unfinished) >= _SWEEP_FROM:
            self.sweep()

    def sweep(self) -> None:
        """Frees the handles and arrays of abandoned operations that have ended."""
        for entry in list(self.unfinished):
            if self.library.handle_done(entry[0]):
                self.unfinished.remove(entry)
                self.library.handle_free(entry[0])

    @contextmanager
    def held(self) -> Iterator[int]:
        """The engine's address, valid inside the block. Raises NotInitializedError after the end."""
        holder = object()
        self.hold(id(holder))
        try:
            yield self.address
        finally:
            self.release(id(holder))

    def hold_address(self, exchange: BootstrapExchange) -> None:
        """Keeps rank 0's address while this engine is open, so that ranks of another job find it in use.

        Does so only on rank 0 of a start without MPI.
        """
        self.address_holder = (
            exchange.address_holder()
        )  # first, so that `close` closes it if anything fails from here on
        exchange.hold_address(self._is_over, self._blame)

    def _is_over(self) -> bool:
        try:
            with self.held() as address:
                self.library.engine_start(address, [0] * self.library.engine_topology(address)[1], 0)
        except RdmacollError:
            return True
        return False

    def _blame(self, sentence: str) -> None:
        error = RankFailedError(sentence, cause="two jobs have met at one address", rank=0)
        try:
            with self.held() as address:
                self.library.engine_blame(address, error)
        except NotInitializedError:
            pass  # the engine has ended meanwhile

    def release_in_child(self) -> None:
        """In a forked child: gives up the engine without touching it, and frees copies of the address."""
        self.is_open = False
        self.is_forked = True
        if self.address_holder is not None:
            self.address_holder.release_in_child()
