"""Rank 0's side of the rendezvous: one thread, one selector, every guest a small state machine."""

from __future__ import annotations

import copy
import json
import time
from typing import Any, Callable

from rdmacoll.engine import channel
from rdmacoll.engine.errors import (
    ConfigError,
    RankFailedError,
    RdmacollError,
    error_from_json,
    error_to_fields,
)
from rdmacoll.engine.launch import Launch
from rdmacoll.engine.log import Log
from rdmacoll.engine.patience import Patience
from rdmacoll.engine.rendezvous_door import Door, Guest, difference, hello_of
from rdmacoll.engine.rendezvous_lookout import Lookout

_TELL_S = 2.0  # how long those who are on their way still hear why there is no start


class RendezvousHost:
    """Gathers all other ranks, then one text of each per round."""

    def __init__(self, launch: Launch, secret: bytes, patience: Patience, log: Log) -> None:
        self._launch = launch
        self._patience = patience
        self._guests: dict[int, Guest] = {}
        self._own_name = ""
        self._end: RdmacollError | None = None  # why no further round will come
        self._door = Door(launch, secret, log)
        self._selector = self._door.selector
        self._lookout = Lookout(launch, secret, self._selector)

    def gather(self, who: str) -> None:
        """Returns when every rank is here and has proved the secret."""
        self._own_name = who
        host, _, pid = who.partition(", pid ")
        hello = hello_of(self._launch, host, int(pid))
        try:
            while len(self._guests) < self._launch.size - 1:
                self._lookout.look(hello)
                for key, _ in self._selector.select(self._patience.slice_s()):
                    if key.data is self._lookout:
                        self._lookout.hear()
                    else:
                        self._serve(key.data)
                self._door.drop_slow_strangers()
                if self._patience.report(f"waiting for {self._missing()}"):
                    self._tell_waiting()
                if self._patience.is_over():
                    raise ConfigError(
                        f"{self._missing()} did not come to the rendezvous "
                        f"{self._patience.limit()}. Are they started, and is the address reachable?"
                    )
        except RdmacollError as error:
            self._tell_all(error)
            self._lookout.close()
            if not self._patience.is_over():
                self._tell_late_ones(error)
            raise
        self._lookout.close()
        self._door.close()

    def _serve(self, guest: Guest | None) -> None:
        if guest is not None and guest.rank >= 0:  # early with its first text: kept for exchange()
            guest.overhear()
            return
        came = self._door.look(guest)
        if came is not None:
            self._admit(*came)

    def _tell_waiting(self) -> None:
        """Where each process has a terminal of its own, somebody may look at any of them."""
        for guest in self._guests.values() if self._launch.hosts else ():
            try:
                guest.say({"waiting": f"waiting for {self._missing()}"})
            except OSError:
                continue  # its end is seen by the next look at it

    def _missing(self, present: set[int] | None = None) -> str:
        here = set(self._guests) if present is None else present
        missing = [rank for rank in range(1, self._launch.size) if rank not in here]
        if self._launch.hosts:
            names = [self._launch.place(rank) for rank in missing[:16]]
            return ", ".join(names) + (", ..." if len(missing) > 16 else "")
        shown = ", ".join(map(str, missing[:16])) + (", ..." if len(missing) > 16 else "")
        plural = "s" if len(missing) != 1 else ""
        return f"rank{plural} {shown} of {self._launch.size} at {self._launch.rendezvous}"

    def _admit(self, guest: Guest, hello: dict[str, Any]) -> None:
        rank, size = hello.get("rank"), hello.get("size")
        if not isinstance(rank, int) or not isinstance(size, int):
            raise ConfigError(f"a rank at {guest.origin} ({guest.who}) gave no rank or size.")
        called = self._launch.name(rank)
        error = difference(self._launch, self._own_name, hello, f"a process ({guest.who})")
        if error is not None:
            pass
        elif size != self._launch.size:
            error = (
                f"rank 0 ({self._own_name}) was told a size of {self._launch.size}, rank {rank} "
                f"({guest.who}) {size}: start all ranks with the same size."
            )
        elif rank in self._guests or rank == 0:
            first = self._own_name if rank == 0 else self._guests[rank].who
            error = f"two processes are {called}: {first}, and {guest.who}."
        elif not 0 < rank < size:
            error = f"{guest.who} says it is rank {rank} of {size}; ranks are 0 to {size - 1}."
        if error is not None:
            self._guests.setdefault(-1 - len(self._guests), guest)  # told with the others
            raise ConfigError(error)
        guest.rank, guest.name = rank, called
        self._guests[rank] = guest

    def _tell_all(self, error: RdmacollError) -> None:
        self._end = error
        for guest in self._guests.values():
            try:
                guest.say({"error": error_to_fields(error)})
            except OSError:
                continue

    def _tell_late_ones(self, error: RdmacollError) -> None:
        """Whoever comes a moment after the error would look for this rank until its own time is over."""
        for guest in self._guests.values():
            self._selector.unregister(guest.connection)
        until = time.monotonic() + _TELL_S
        missing = self._launch.size - 1 - len(self._guests)
        while missing > 0 and (left_s := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left_s):
                try:
                    came = self._door.look(key.data)
                    if came is None:
                        continue
                    late = came[0]
                    self._selector.unregister(late.connection)
                    self._guests[-1 - len(self._guests)] = late
                    late.say({"error": error_to_fields(error)})
                except (OSError, ConfigError):
                    pass  # it is gone, or cannot be let in: it finds that out itself
                missing -= 1

    def exchange(self, text: str, watch: Callable[[], None]) -> list[str]:
        """One round: everybody's text, by rank, which everybody gets."""
        if self._end is not None:
            raise copy.copy(self._end)
        texts: dict[int, str] = {0: text}
        try:
            self._hear_all(texts, watch)
        except RdmacollError as error:
            self._tell_all(error)
            raise
        answer = [texts[rank] for rank in range(self._launch.size)]
        for guest in self._guests.values():
            try:
                guest.say({"texts": answer})
            except OSError as error:
                lost = guest.lost(error)
                self._tell_all(lost)
                raise lost from None
        return answer

    def check(self) -> None:
        """Raises what a guest has said to end the start, or that one is gone; the others are told."""
        if self._end is not None:
            return
        try:
            for key, _ in self._selector.select(0):
                key.data.overhear()
        except RdmacollError as error:
            self._tell_all(error)
            raise

    def leave(self, error: RankFailedError) -> None:
        """Says so to everybody who is here."""
        self._tell_all(error)

    def _hear_all(self, texts: dict[int, str], watch: Callable[[], None]) -> None:
        for guest in self._guests.values():
            self._collect(guest, texts)  # may have come together with an earlier frame
        while len(texts) < self._launch.size:
            for key, _ in self._selector.select(self._patience.slice_s()):
                if key.data.rank not in texts:
                    self._collect(key.data, texts)
                else:
                    key.data.overhear()
            if len(texts) == self._launch.size:
                return
            watch()
            self._patience.report(f"waiting for {self._missing(set(texts))}")
            if self._patience.is_over():
                raise ConfigError(
                    f"{self._missing(set(texts))} did not go on with the start {self._patience.limit()}."
                )

    def _collect(self, guest: Guest, texts: dict[int, str]) -> None:
        try:
            heard = guest.hear()
        except (OSError, channel.ProtocolError) as error:
            raise guest.lost(error) from None
        if heard is None:
            return
        if isinstance(heard, dict) and isinstance(heard.get("error"), dict):
            raise error_from_json(json.dumps(heard["error"]))
        if not isinstance(heard, dict) or not isinstance(heard.get("text"), str):
            raise ConfigError(f"{guest.name} ({guest.who}) spoke out of turn.")
        texts[guest.rank] = heard["text"]

    def close(self) -> None:
        """Closes every socket; idempotent."""
        self._lookout.close()
        self._door.close()
        for guest in self._guests.values():
            guest.connection.close()
        self._selector.close()
