"""Rank 0's side of the rendezvous. Its own thread serves every connection, also during long steps."""

from __future__ import annotations

import copy
import json
import selectors
import socket
import threading
import time
from typing import Any, Callable

from rdmacoll._base import channel, threads
from rdmacoll._base.log import Log
from rdmacoll._start.patience import Patience
from rdmacoll._start.rendezvous_claims import Verdict, judge, judge_late
from rdmacoll._start.rendezvous_door import Door, Guest, Self
from rdmacoll._start.rendezvous_line import Line
from rdmacoll._start.rendezvous_lookout import Lookout
from rdmacoll._start.rendezvous_place import no_way_to
from rdmacoll.engine.errors import (
    ConfigError,
    RankFailedError,
    RdmacollError,
    error_from_json,
    error_to_fields,
)

_TICK_S = 0.25
_WAKE = object()  # in the selector: `close` wakes the thread
_LINE = object()  # in the selector: the engine listens at this address, and passes on a caller


class RendezvousHost:
    """Gathers all other ranks, then a text from each per round. Raises AddressTakenError, ConfigError."""

    def __init__(
        self,
        me: Self,
        secret: bytes,
        patience: Patience,
        log: Log,
        silence_s: float,
        *,
        shares_port: bool = False,
    ) -> None:
        self._me, self._launch, self._log = me, me.launch, log
        self._patience, self._silence_s, self._shares_port = patience, silence_s, shares_port
        self._guests: dict[int, Guest] = {}
        # Ranks that gave up before they knew of their admission: the time to come again, and else the error.
        self._gone: dict[int, tuple[float, RdmacollError]] = {}
        self._changed = threading.Condition()  # guards all fields
        self._end: RdmacollError | None = None  # the error that ends the start
        self._text: str | None = None  # this rank's text of the current round
        self._answer: list[str] = []
        self._is_gathered = self._is_closed = False
        self._stands_at: float | None = None
        self._members: dict[int, tuple[str, str]] = {}
        self._is_over: Callable[[], bool] = lambda: False
        self._blame: Callable[[str], None] = lambda _: None
        self._looked_at = time.monotonic()
        self._door = Door(self._launch, secret, log)
        self._selector = self._door.selector
        self._lookout = Lookout(self._launch, secret, self._selector)
        self._line: Line | None = None
        self._bell, self._ring = socket.socketpair()
        self._selector.register(self._bell, selectors.EVENT_READ, _WAKE)
        self._thread = threading.Thread(target=self._run, name="rdmacoll-rendezvous", daemon=True)
        threads.start(self._thread)

    # Called on the thread that starts the engine.

    def gather(self) -> None:
        """Returns once every rank is here and has proved the secret."""
        there = no_way_to(self._door.place[0])

        def came() -> str:
            other = self._door.other_secret
            return f"; a process at {other} came with another secret" if other else ""

        def describe() -> str:
            return f"waiting for {self._launch.missing(set(self._guests))}{there}{came()}"

        def expire() -> str:
            return (
                f"{self._launch.missing(set(self._guests))} did not come to the rendezvous "
                f"{self._patience.limit()}{there}{came()}. Are they started, and is the address reachable?"
            )

        self._wait(lambda: self._is_gathered, describe, expire)
        with self._changed:
            self._lookout.close()
            if self._shares_port:  # the engine will listen there
                self._door.close()

    def exchange(self, text: str, watch: Callable[[], None]) -> list[str]:
        """One round: returns all ranks' texts, by rank, and sends them to all ranks."""
        with self._changed:
            self._text = text
            self._answer.clear()
            self._complete()

        def late() -> str:
            with self._changed:
                here = {rank for rank, guest in self._guests.items() if guest.text is not None}
            return self._launch.missing(here)

        self._wait(
            lambda: bool(self._answer),
            lambda: f"waiting for {late()}",
            lambda: f"{late()} did not go on with the start {self._patience.limit()}.",
            watch,
        )
        return list(self._answer)

    def _wait(
        self,
        is_done: Callable[[], bool],
        describe: Callable[[], str],
        expire: Callable[[], str],
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: is_done() or self._end is not None, _TICK_S)
                if is_done():
                    return
                self._raise_end()
            try:
                watch()
                if self._patience.is_due():
                    self._tell_waiting(self._patience.tell(describe()))
                if self._patience.is_over():
                    raise ConfigError(expire())
            except RdmacollError as error:
                with self._changed:
                    self._finish(error)
                raise

    def check(self) -> None:
        """Raises an error that ends the start, from a guest or about a lost one. All ranks have heard it."""
        with self._changed:
            self._raise_end()

    def _raise_end(self) -> None:
        if self._end is not None:
            raise copy.copy(self._end)

    def leave(self, error: RankFailedError) -> None:
        """Ends the start, and tells all connected ranks."""
        with self._changed:
            self._finish(error)

    def keep(self, is_over: Callable[[], bool], blame: Callable[[str], None]) -> None:
        """Keeps the address for this job while the world stands, so that ranks of another job find it in use.

        is_over: whether the world is over. blame: ends it on all ranks. This object's thread calls both.
        """
        with self._changed:
            self._is_over, self._blame = is_over, blame
            self._members = {rank: (guest.who, guest.process) for rank, guest in self._guests.items()}
            self._members[0] = (self._me.who, self._me.process)
            self._stands_at = time.monotonic()
            for guest in self._guests.values():
                self._drop(guest)
            self._guests = {}

    def share_address(self, callers: Callable[[], int]) -> None:
        """As `Carrier.share_address`."""
        if not self._shares_port:
            return
        descriptor = callers()
        if descriptor < 0:
            return
        with self._changed:
            self._line = Line(descriptor, self._selector, _LINE)

    def close(self) -> None:
        """Closes every socket. Idempotent."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._ring.send(b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._lookout.close()
        self._door.close()
        for guest in self._guests.values():
            guest.close()
        if self._line is not None:
            self._line.close()
        self._selector.close()
        self._bell.close()
        self._ring.close()

    def forget_in_child(self) -> None:
        """Closes a forked child's copies of the sockets. Otherwise the address would outlive the parent."""
        self._is_closed = True
        self._door.forget_in_child()
        for guest in self._guests.values():
            guest.connection.close()
        if self._line is not None:
            self._line.forget_in_child()
        self._bell.close()
        self._ring.close()

    # Called on this object's thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                idle = self._stands_at is not None and not self._door.has_strangers()
            events = self._selector.select(None if idle else _TICK_S)
            with self._changed:
                if self._is_closed:
                    return
                try:
                    for key, mask in events:
                        self._serve(key.data, mask)
                    self._care()
                except RdmacollError as error:
                    self._finish(error)
                except Exception as error:
                    self._finish(threads.fault(self._thread.name, error))
            if self._end is not None:  # a caller without a free descriptor is reported again and again
                time.sleep(_TICK_S / 5)

    def _serve(self, data: Any, mask: int) -> None:
        if data is _WAKE:
            self._bell.recv(64)
        elif data is _LINE and self._line is not None:
            for connection, origin in self._line.take():
                self._door.greet(connection, origin)
        elif data is self._lookout:
            self._lookout.hear()
        elif data is not None and data.connection.fileno() < 0:
            return  # closed since the selector reported it
        elif data is not None and data.rank >= 0:
            if mask & selectors.EVENT_WRITE:
                data.flush()
                self._watch_output(data)
            if mask & selectors.EVENT_READ:
                self._hear(data)
        else:
            came = self._door.look(data)
            if came is not None:
                self._admit(*came)

    def _hear(self, guest: Guest) -> None:
        try:
            guest.absorb()
            while (heard := guest.take()) is not None:
                if isinstance(heard, dict) and isinstance(heard.get("error"), dict):
                    raise error_from_json(json.dumps(heard["error"]))
                if isinstance(heard, dict) and heard.get("bye"):
                    self._drop(guest)
                    return
                is_text = isinstance(heard, dict) and isinstance(heard.get("text"), str)
                if not is_text or guest.text is not None:
                    raise ConfigError(f"{guest.name} ({guest.who}) spoke out of turn.")
                guest.text = heard["text"]
        except (OSError, channel.ProtocolError) as error:
            if self._is_watched(guest):
                self._selector.unregister(guest.connection)
            if fault := guest.path_fault(*self._ends(guest), has_ended=True):
                raise ConfigError(fault) from None
            if not guest.has_confirmed():
                self._await_again(guest, error)
                return
            raise guest.lost(error) from None
        self._watch_output(guest)
        self._complete()

    def _await_again(self, guest: Guest, error: Exception) -> None:
        """Waits for a guest to come again soon: it may have given up before it knew of its admission."""
        self._drop(guest)
        if self._guests.get(guest.rank) is guest:
            del self._guests[guest.rank]
            self._gone[guest.rank] = time.monotonic() + self._silence_s, guest.lost(error)

    def _complete(self) -> None:
        """Ends the round once all ranks' texts are here."""
        if not self._is_gathered:
            here = len(self._guests) == self._launch.size - 1
            self._is_gathered = here and all(guest.is_path_open() for guest in self._guests.values())
            if self._is_gathered:
                self._patience.calm()
                self._changed.notify_all()
        texts = {rank: guest.text for rank, guest in self._guests.items()}
        if self._text is None or len(texts) < self._launch.size - 1:
            return
        texts[0] = self._text
        answer = [text for _, text in sorted(texts.items()) if text is not None]
        if len(answer) < self._launch.size:
            return
        self._text = None
        self._answer.extend(answer)
        for guest in self._guests.values():
            guest.text = None
            self._say(guest, {"texts": answer})
        self._changed.notify_all()

    def _admit(self, guest: Guest, hello: dict[str, Any]) -> None:
        if self._stands_at is not None:
            members, stood_s = self._members, time.monotonic() - self._stands_at
            verdict = judge_late(
                self._me, members, hello, guest.who, stood_s=stood_s, is_over=self._is_over()
            )
            self._dismiss(guest, verdict)
            return
        if self._end is not None:
            self._door.dismiss(guest, {"error": error_to_fields(self._end)})
            return
        for one in [*self._guests.values()]:
            if (one.rank, one.process) == (hello.get("rank"), guest.process) and not one.has_confirmed():
                self._await_again(one, ConnectionResetError("it came again"))
        present = {0: self._me.who, **{rank: one.who for rank, one in self._guests.items()}}
        verdict = judge(self._me, present, hello, guest.who, guest.origin)
        if verdict.error:
            self._dismiss(guest, verdict)
            return
        guest.rank, guest.name = hello["rank"], self._launch.name(hello["rank"])
        self._guests[guest.rank] = guest
        self._gone.pop(guest.rank, None)
        self._patience.arrived()
        guest.say({"welcome": True})
        guest.try_path()
        self._hear(guest)  # frames that came with the hello

    def _dismiss(self, guest: Guest, verdict: Verdict) -> None:
        if verdict.is_early:
            self._door.dismiss(guest, {"early": True})
            return
        error = ConfigError(verdict.error)
        self._door.dismiss(guest, {"error": error_to_fields(error)})
        if not verdict.is_for_all:
            self._log.warning(f"refused {guest.who}: {error}")
        elif self._stands_at is None:
            raise error
        else:
            self._log.error(str(error))
            self._blame(str(error))

    def _care(self) -> None:
        now = time.monotonic()
        absent = max(0.0, now - self._looked_at - 4 * _TICK_S)  # this process was suspended, or did not run
        self._looked_at = now
        self._door.drop_slow_strangers()
        if self._stands_at is not None or self._end is not None:
            return
        if self._door.other_secret and not self._is_gathered:
            self._patience.hurry(f"a process at {self._door.other_secret} had come with another secret")
        if not self._is_gathered:
            self._lookout.look(self._me.hello())
        for until, error in self._gone.values():
            if now > until:
                raise error
        for guest in [one for one in self._guests.values() if self._is_watched(one)]:
            guest.excuse(absent)
            guest.beats(self._patience.arrivals)
            self._watch_output(guest)
            if fault := guest.path_fault(*self._ends(guest)):
                raise ConfigError(fault)
            if guest.is_silent(self._silence_s):
                raise guest.lost(TimeoutError(f"no sign of life for {self._silence_s:g} s"))

    def _ends(self, guest: Guest) -> tuple[str, str]:
        return f"{self._launch.name(0)} ({self._me.who})", f"{guest.name} ({guest.who})"

    def _finish(self, error: RdmacollError) -> None:
        if self._end is None:
            self._end = error
            for guest in self._guests.values():
                guest.say({"error": error_to_fields(error)})
            self._changed.notify_all()

    def _say(self, guest: Guest, value: Any) -> None:
        guest.say(value)
        self._watch_output(guest)

    def _watch_output(self, guest: Guest) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if guest.has_output() else 0)
        if self._is_watched(guest) and self._selector.get_key(guest.connection).events != events:
            self._selector.modify(guest.connection, events, guest)

    def _is_watched(self, guest: Guest) -> bool:
        descriptor = guest.connection.fileno()
        return descriptor >= 0 and descriptor in self._selector.get_map()

    def _drop(self, guest: Guest) -> None:
        if self._is_watched(guest):
            self._selector.unregister(guest.connection)
        guest.close()

    def _tell_waiting(self, text: str) -> None:
        """Sends the line to all ranks of a start by hand, since a person may watch any terminal."""
        with self._changed:
            for guest in self._guests.values() if self._patience.is_by_hand else ():
                self._say(guest, {"waiting": text})
