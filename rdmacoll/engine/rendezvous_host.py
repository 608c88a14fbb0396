"""Rank 0's side of the rendezvous: one thread, one selector, every guest a small state machine."""

from __future__ import annotations

import copy
import errno
import ipaddress
import json
import selectors
import socket
import time
from typing import Any, Callable

from rdmacoll.engine import channel
from rdmacoll.engine.carrier import left
from rdmacoll.engine.errors import (
    ConfigError,
    RankFailedError,
    RdmacollError,
    error_from_json,
    error_to_fields,
)
from rdmacoll.engine.launch import Launch, split_address
from rdmacoll.engine.log import Log
from rdmacoll.engine.patience import Patience

_FRAME_BYTES_MAX = 1 << 20
_PROOF_WITHIN_S = 10.0
_STRANGERS_MAX = 128  # connections that have not proved the secret yet


class Guest:
    """One accepted connection, from greeting to goodbye."""

    def __init__(self, connection: socket.socket, origin: str, secret: bytes) -> None:
        self.connection = connection
        self.origin = origin
        self.since = time.monotonic()
        self.rank = -1
        self.who = ""
        self._secret = secret
        self._greeting = channel.greeting()
        self._raw = bytearray()
        self._reader: channel.FrameReader | None = None
        self._writer: channel.FrameWriter | None = None
        connection.setblocking(False)
        self._push(self._greeting)

    def _push(self, data: bytes) -> None:
        # Everything that rank 0 says is small but the gathered cards; those may block for a moment.
        self.connection.settimeout(_PROOF_WITHIN_S)
        try:
            self.connection.sendall(data)
        finally:
            self.connection.setblocking(False)

    def say(self, value: Any) -> None:
        """Sends one frame. Raises OSError when the guest is gone."""
        if self._writer is not None:
            self._push(self._writer.frame(value))

    def absorb(self) -> None:
        """Reads what is there. Raises ConnectionError, ProtocolError."""
        try:
            data = self.connection.recv(65536)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError("it closed the connection")
        if self._reader is None:
            self._raw += data
            if len(self._raw) < channel.PROOF_BYTES:
                return
            proof = bytes(self._raw[: channel.PROOF_BYTES])
            data = bytes(self._raw[channel.PROOF_BYTES :])
            if not channel.is_caller_proof(self._secret, self._greeting, proof):
                self._push(channel.REFUSED)
                raise channel.ProtocolError("it does not know the job's secret")
            key = channel.session_key(self._secret, self._greeting, proof)
            self._reader = channel.FrameReader(key, b"up", _FRAME_BYTES_MAX)
            self._writer = channel.FrameWriter(key, b"down")
            self._push(channel.listener_proof(self._secret, self._greeting, proof))
        self._reader.add(data)

    def hear(self) -> Any:
        """The next frame, or None while there is none. Raises ConnectionError, ProtocolError."""
        self.absorb()
        return self._reader.take() if self._reader is not None else None

    def overhear(self) -> None:
        """Keeps what it says out of turn. Raises why it is gone."""
        try:
            self.absorb()
        except (OSError, channel.ProtocolError) as error:
            raise self.lost(error) from None

    def lost(self, error: Exception) -> RdmacollError:
        """Why this guest is gone: what it said last, or else how its connection ended."""
        try:
            while self._reader is not None and (last := self._reader.take()) is not None:
                if isinstance(last, dict) and isinstance(last.get("error"), dict):
                    return error_from_json(json.dumps(last["error"]))
        except channel.ProtocolError:
            pass  # it ended in the middle of a frame
        return left(self.rank, self.who.partition(",")[0], self.who, str(error))


def listen(address: str) -> socket.socket:
    """A listening socket at rank 0's address. Raises ConfigError."""
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"rank 0 cannot resolve {host} of the rendezvous {address}: {error}.") from None
    family, _, _, _, where = found[0]
    # Some hosts resolve their own name to a loopback address: nobody else could come.
    named_loopback = host == "localhost" or host.startswith("127.") or host == "::1"
    if ipaddress.ip_address(str(where[0]).partition("%")[0]).is_loopback and not named_loopback:
        where = ("::" if family == socket.AF_INET6 else "0.0.0.0", port)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(512)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"rank 0 cannot listen at {address}: another program has port {port}. Choose another "
                "one in RDMACOLL_RENDEZVOUS."
            ) from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(
                f"rank 0 cannot listen at {address}: this machine does not have that address. The "
                "rendezvous names the host of rank 0."
            ) from None
        raise ConfigError(f"rank 0 cannot listen at {address}: {error.strerror}.") from None
    return listener


class RendezvousHost:
    """Gathers all other ranks, then one text of each per round."""

    def __init__(self, launch: Launch, secret: bytes, patience: Patience, log: Log) -> None:
        self._launch = launch
        self._secret = secret
        self._patience = patience
        self._log = log
        self._selector = selectors.DefaultSelector()
        self._guests: dict[int, Guest] = {}
        self._strangers: set[Guest] = set()
        self._own_name = ""
        self._end: RdmacollError | None = None  # why no further round will come
        self._listener = listen(launch.rendezvous)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, None)

    def gather(self, who: str) -> None:
        """Returns when every rank is here and has proved the secret."""
        self._own_name = who
        try:
            while len(self._guests) < self._launch.size - 1:
                for key, _ in self._selector.select(self._patience.slice_s()):
                    if key.data is None:
                        self._accept()
                    else:
                        self._serve_early(key.data)
                self._drop_slow_strangers()
                self._patience.report(f"waiting for {self._missing()}")
                if self._patience.is_over():
                    raise ConfigError(
                        f"{self._missing()} did not come to the rendezvous "
                        f"{self._patience.limit()}. Are they started, and is the address reachable?"
                    )
        except RdmacollError as error:
            self._tell_all(error)
            raise
        self._selector.unregister(self._listener)
        self._listener.close()
        for stranger in list(self._strangers):
            self._forget(stranger)

    def _missing(self, present: set[int] | None = None) -> str:
        here = set(self._guests) if present is None else present
        missing = [rank for rank in range(1, self._launch.size) if rank not in here]
        shown = ", ".join(map(str, missing[:16])) + (", ..." if len(missing) > 16 else "")
        plural = "s" if len(missing) != 1 else ""
        return f"rank{plural} {shown} of {self._launch.size} at {self._launch.rendezvous}"

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            raise ConfigError(
                f"rank 0 cannot let the other ranks in at {self._launch.rendezvous}: {error.strerror}. Where "
                "these are too many open files, raise the limit (ulimit -n)."
            ) from None
        if len(self._strangers) >= _STRANGERS_MAX:
            connection.close()
            return
        try:
            guest = Guest(connection, str(address[0]), self._secret)
        except OSError:
            connection.close()
            return
        self._strangers.add(guest)
        self._selector.register(connection, selectors.EVENT_READ, guest)

    def _forget(self, guest: Guest) -> None:
        self._strangers.discard(guest)
        self._selector.unregister(guest.connection)
        guest.connection.close()

    def _drop_slow_strangers(self) -> None:
        late = time.monotonic() - _PROOF_WITHIN_S
        for stranger in [guest for guest in self._strangers if guest.since < late]:
            self._forget(stranger)

    def _serve_early(self, guest: Guest) -> None:
        if guest.rank >= 0:  # early with its first text: kept for exchange()
            guest.overhear()
            return
        try:
            hello = guest.hear()
        except (OSError, channel.ProtocolError) as error:
            if isinstance(error, channel.ProtocolError):
                self._log.warning(f"refused a connection from {guest.origin}: {error}.")
            self._forget(guest)
            return
        if hello is not None:
            self._admit(guest, hello)

    def _admit(self, guest: Guest, hello: Any) -> None:
        hello = hello if isinstance(hello, dict) else {}
        rank, size = hello.get("rank"), hello.get("size")
        guest.who = f"{hello.get('host')}, pid {hello.get('pid')}"
        self._strangers.discard(guest)
        if not isinstance(rank, int) or not isinstance(size, int):
            raise ConfigError(f"a rank at {guest.origin} ({guest.who}) gave no rank or size.")
        error = None
        if size != self._launch.size:
            error = (
                f"rank 0 ({self._own_name}) was told a size of {self._launch.size}, rank {rank} "
                f"({guest.who}) {size}: start all ranks with the same size."
            )
        elif rank in self._guests or rank == 0:
            first = self._own_name if rank == 0 else self._guests[rank].who
            error = f"two processes are rank {rank}: {first}, and {guest.who}."
        elif not 0 < rank < size:
            error = f"{guest.who} says it is rank {rank} of {size}; ranks are 0 to {size - 1}."
        if error is not None:
            self._guests.setdefault(-1 - len(self._guests), guest)  # told with the others
            raise ConfigError(error)
        guest.rank = rank
        self._guests[rank] = guest

    def _tell_all(self, error: RdmacollError) -> None:
        self._end = error
        for guest in self._guests.values():
            try:
                guest.say({"error": error_to_fields(error)})
            except OSError:
                continue

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
            raise ConfigError(f"rank {guest.rank} ({guest.who}) spoke out of turn.")
        texts[guest.rank] = heard["text"]

    def close(self) -> None:
        """Closes every socket; idempotent."""
        self._listener.close()
        for guest in [*self._guests.values(), *self._strangers]:
            guest.connection.close()
        self._selector.close()
