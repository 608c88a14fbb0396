"""One running engine of this process, and who holds something of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rdmacoll._abi.library import Library
from rdmacoll._abi.settings import Values
from rdmacoll._ps.start import VariableServers
from rdmacoll._start.carrier import Carrier, Keeper
from rdmacoll.engine.errors import NotInitializedError, RankFailedError, RdmacollError
from rdmacoll.engine.process_set import ProcessSet


def refusal_of(*, is_forked: bool) -> RdmacollError:
    """Why there is no engine here, or none that may be used."""
    if is_forked:
        return NotInitializedError(
            f"process {os.getpid()} was forked from a rank of rdmacoll, and is no rank itself: its "
            "parent owns the engine. Fork before init(), or start workers with the spawn method."
        )
    return NotInitializedError("rdmacoll is not initialised: call rdmacoll.init() first.")


class Engine:
    """One running engine, and who still holds something of it.

    The library wants every handle and every block of memory freed before the engine is. Garbage collection
    promises no order, so holders are counted: the last one to let go, after the end, frees the engine.
    """

    def __init__(self, library: Library, address: int, values: Values) -> None:
        self.library = library
        self.address = address
        self.values = values
        self.is_open = True
        self.is_forked = False  # this is a child's copy: nothing of it may be touched
        self.topology = library.engine_topology(address)
        told = library.engine_describe(address)
        self.servers, self.is_server = int(told["servers"]), bool(told["is_server"])
        self.variable_servers: VariableServers | None = None  # asynchronous ones
        self.keeper: Keeper | None = None  # of rank 0's address
        self.process_sets: dict[int, ProcessSet] = {}  # by number; beside that of all ranks
        # Arrays of operations that nobody waits for any more, until the engine is done with them; the same of
        # prepared runs that an exception ended, of which nobody can ask whether they are done.
        self.unfinished: list[tuple[int, object]] = []
        self.interrupted: list[tuple[int, object]] = []
        self._holders: set[int] = set()
        self._unfreed = [address]

    def hold(self, holder: int) -> None:
        """Keeps the engine's memory until `let_go(holder)`. Raises NotInitializedError after the end.

        Adding before looking, here, and closing before looking, in `close`, cannot miss each other.
        """
        self._holders.add(holder)
        if not self.is_open:
            self.let_go(holder)
            raise refusal_of(is_forked=self.is_forked)

    def share(self, holder: int) -> None:
        """A further holder of an engine that is held already: never refused."""
        self._holders.add(holder)

    def let_go(self, holder: int) -> None:
        """The end of a `hold`."""
        self._holders.discard(holder)
        self._free_if_unused()

    def _free_if_unused(self) -> None:
        if self.is_open or self.is_forked or self._holders:
            return
        try:
            address = self._unfreed.pop()
        except IndexError:
            return  # another thread was faster
        self.library.engine_free(address)

    def close(self, cause: str | None) -> None:
        """Says goodbye; pending operations fail with ShutdownError. Bounded, idempotent."""
        if not self.is_open:
            return
        if self.keeper is not None:
            self.keeper.close()  # the next world may need the address
        # Whoever this wakes lets go in another thread: the engine must not go before this has returned.
        self.share(id(self))
        self.is_open = False
        self.library.engine_close(self.address, cause)
        while self.unfinished:
            self.library.handle_free(self.unfinished.pop()[0])
        while self.interrupted:
            self.library.prepared_free(self.interrupted.pop()[0])
        self.let_go(id(self))

    def sweep(self) -> None:
        """Lets go of arrays whose operations have ended meanwhile."""
        for entry in list(self.unfinished):
            if self.library.handle_done(entry[0]):
                self.unfinished.remove(entry)
                self.library.handle_free(entry[0])

    @contextmanager
    def held(self) -> Iterator[int]:
        """The address, valid inside the block."""
        holder = object()
        self.hold(id(holder))
        try:
            yield self.address
        finally:
            self.let_go(id(holder))

    def keep_address(self, carrier: Carrier) -> None:
        """On rank 0 of a start without MPI: while this engine is open, ranks of another job find this one."""
        self.keeper = carrier.keeper()  # first: whatever comes between, somebody closes it
        carrier.keep(self._is_over, self._blame)

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
            pass  # it has ended meanwhile

    def forget_in_child(self) -> None:
        """In a forked child: nothing of this is touched any more, and nothing kept from others."""
        self.is_open = False
        self.is_forked = True
        if self.keeper is not None:
            self.keeper.forget_in_child()
