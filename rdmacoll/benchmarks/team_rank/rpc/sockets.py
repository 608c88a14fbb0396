"""Plain TCP sockets with a thread for each connection: the rate of loopback or of a link without a
library."""

from __future__ import annotations

import socket
import struct
import threading
import time
from typing import Any

import numpy as np

from ..job import Job, Work
from ..values import Array
from .routes import Here, Nothing, buffers_of, here_of, payload_of

_CONNECT_S = 60.0
_ASK = struct.Struct("<BQ")  # kind of request, number of bytes
_PUSH, _PULL, _ECHO = range(3)
_ASKS = {"push": _PUSH, "pull": _PULL, "round-trip": _ECHO}
_DONE = b"."


class Sockets:
    """A rank. Ranks that are called listen; the thread of a connection keeps the last payload pushed
    through it."""

    def __init__(self, here: Here) -> None:
        self.here, self.rank, self.ranks = here, here.rank, here.ranks
        self.facts = {"version": "of the kernel"}
        if here.is_server or not here.servers:
            self._door = socket.create_server(_place(here.addresses[here.rank]), backlog=here.ranks)
            threading.Thread(target=self._welcome, daemon=True).start()
        if not here.is_server:
            self.ways = {rank: _connect(here.addresses[rank]) for rank in here.called}

    def _welcome(self) -> None:
        while True:
            way, _ = self._door.accept()
            threading.Thread(target=_serve, args=(way,), daemon=True).start()

    def make(self, work: Work) -> Job:
        """The calls of one payload, or of several in flight at once."""
        return Nothing() if self.here.is_server else _Calls(self, work)


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _connect(address: str) -> socket.socket:
    deadline = time.monotonic() + _CONNECT_S
    while True:
        try:
            way = socket.create_connection(_place(address), timeout=_CONNECT_S)
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    way.settimeout(None)
    way.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return way


def _send(way: socket.socket, ask: bytes, payload: Any) -> None:
    """Sends both in one system call, as far as the kernel takes them."""
    sent = way.sendmsg([ask, payload]) - len(ask)
    assert sent >= 0  # a new message finds room for its first bytes
    way.sendall(memoryview(payload)[sent:])


def _receive(way: socket.socket, into: Array) -> bool:
    """Fills `into`. Returns False if the other end has closed."""
    rest = into.data
    while rest:
        got = way.recv_into(rest)
        if got == 0:
            return False
        rest = rest[got:]
    return True


def _serve(way: socket.socket) -> None:
    way.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ask, kept = np.empty(_ASK.size, np.uint8), np.empty(0, np.uint8)
    while _receive(way, ask):
        what, size = _ASK.unpack(ask.tobytes())
        if what != _PULL:
            kept = kept if kept.size == size else np.empty(size, np.uint8)
            if not _receive(way, kept):
                return
        way.sendall(_DONE if what == _PUSH else kept.data)


class _Calls:
    def __init__(self, library: Sockets, work: Work) -> None:
        self._here, self._sizes, self._what = library.here, payload_of(work), work["what"]
        self.each = 1 if self._what == "round-trip" else work["under_way"]
        self._routes = self._here.routes(self._sizes)
        self._ways = [library.ways[rank] for rank, _ in self._routes]
        self._payloads: list[Array]  # set by `check`, which comes before any timed call
        self._answers = [np.empty(sum(self._sizes[n] for n in part), np.uint8) for _, part in self._routes]

    def call(self) -> None:
        """Sends the requests and waits for all answers."""
        self._take(self._what, self.each)

    def _take(self, what: str, each: int) -> None:
        for _ in range(each):
            for way, payload in zip(self._ways, self._payloads):
                ask = _ASK.pack(_ASKS[what], payload.nbytes)
                _send(way, ask, b"" if what == "pull" else payload.data)
        done = np.empty(len(_DONE), np.uint8)
        for _ in range(each):
            for way, answer in zip(self._ways, self._answers):
                if not _receive(way, done if what == "push" else answer):
                    raise ConnectionError("a server has closed its connection")

    def check(self, turn: int) -> int:
        """Calls with the values of this turn, and counts wrong payloads."""
        buffers = buffers_of(self._here.rank, turn, self._sizes)
        self._payloads = [
            np.concatenate([buffers[number].view(np.uint8) for number in part]) for _, part in self._routes
        ]
        if self._what == "pull":
            self._take("push", 1)
        self.call()
        return self.after()

    def clear(self) -> None:
        """Overwrites the answers with zeros."""
        for answer in self._answers:
            answer[...] = 0

    def after(self) -> int:
        """The number of wrong payloads in the last answers; after pushes, in the servers' memory."""
        if self._what == "push":
            self._take("pull", 1)
        return sum(not np.array_equal(*pair) for pair in zip(self._answers, self._payloads))


def join(told: dict[str, Any]) -> Sockets:
    """Joins as a worker or a server."""
    return Sockets(here_of(told))
