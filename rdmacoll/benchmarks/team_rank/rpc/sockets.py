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
from .routes import NoWork, RankContext, buffers_of, payload_of, rank_context

_CONNECT_S = 60.0
_HEADER = struct.Struct("<BQ")  # kind of request, number of bytes
_PUSH, _PULL, _ECHO = range(3)
_REQUEST_KINDS = {"push": _PUSH, "pull": _PULL, "round-trip": _ECHO}
_DONE = b"."


class Sockets:
    """A rank. Ranks that are called listen; the thread of a connection keeps the last payload pushed
    through it."""

    def __init__(self, context: RankContext) -> None:
        self.context, self.rank, self.ranks = context, context.rank, context.ranks
        self.facts = {"version": "of the kernel"}
        if context.is_server or not context.servers:
            self._listener = socket.create_server(
                _host_and_port(context.addresses[context.rank]), backlog=context.ranks
            )
            threading.Thread(target=self._welcome, daemon=True).start()
        if not context.is_server:
            self.connections = {rank: _connect(context.addresses[rank]) for rank in context.called}

    def _welcome(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=_serve, args=(connection,), daemon=True).start()

    def make(self, work: Work) -> Job:
        """The calls of one payload, or of several in flight at once."""
        return NoWork() if self.context.is_server else _Calls(self, work)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _connect(address: str) -> socket.socket:
    deadline = time.monotonic() + _CONNECT_S
    while True:
        try:
            connection = socket.create_connection(_host_and_port(address), timeout=_CONNECT_S)
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _send(connection: socket.socket, header: bytes, payload: Any) -> None:
    """Sends both in one system call, as far as the kernel takes them."""
    sent = connection.sendmsg([header, payload]) - len(header)
    assert sent >= 0  # a new message finds room for its first bytes
    connection.sendall(memoryview(payload)[sent:])


def _receive(connection: socket.socket, into: Array) -> bool:
    """Fills `into`. Returns False if the other end has closed."""
    remaining = into.data
    while remaining:
        got = connection.recv_into(remaining)
        if got == 0:
            return False
        remaining = remaining[got:]
    return True


def _serve(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    header, stored = np.empty(_HEADER.size, np.uint8), np.empty(0, np.uint8)
    while _receive(connection, header):
        kind, size = _HEADER.unpack(header.tobytes())
        if kind != _PULL:
            stored = stored if stored.size == size else np.empty(size, np.uint8)
            if not _receive(connection, stored):
                return
        connection.sendall(_DONE if kind == _PUSH else stored.data)


class _Calls:
    def __init__(self, library: Sockets, work: Work) -> None:
        self._context, self._sizes, self._exchange_kind = library.context, payload_of(work), work["what"]
        self.each = 1 if self._exchange_kind == "round-trip" else work["under_way"]
        self._routes = self._context.routes(self._sizes)
        self._connections = [library.connections[rank] for rank, _ in self._routes]
        self._payloads: list[Array]  # set by `check`, which comes before any timed call
        self._answers = [np.empty(sum(self._sizes[n] for n in part), np.uint8) for _, part in self._routes]

    def call(self) -> None:
        """Sends the requests and waits for all answers."""
        self._take(self._exchange_kind, self.each)

    def _take(self, kind: str, each: int) -> None:
        for _ in range(each):
            for connection, payload in zip(self._connections, self._payloads):
                header = _HEADER.pack(_REQUEST_KINDS[kind], payload.nbytes)
                _send(connection, header, b"" if kind == "pull" else payload.data)
        done = np.empty(len(_DONE), np.uint8)
        for _ in range(each):
            for connection, answer in zip(self._connections, self._answers):
                if not _receive(connection, done if kind == "push" else answer):
                    raise ConnectionError("a server has closed its connection")

    def check(self, turn: int) -> int:
        """Calls with the values of this turn, and counts wrong payloads."""
        buffers = buffers_of(self._context.rank, turn, self._sizes)
        self._payloads = [
            np.concatenate([buffers[number].view(np.uint8) for number in part]) for _, part in self._routes
        ]
        if self._exchange_kind == "pull":
            self._take("push", 1)
        self.call()
        return self.after()

    def clear(self) -> None:
        """Overwrites the answers with zeros."""
        for answer in self._answers:
            answer[...] = 0

    def after(self) -> int:
        """The number of wrong payloads in the last answers; after pushes, in the servers' memory."""
        if self._exchange_kind == "push":
            self._take("pull", 1)
        return sum(not np.array_equal(*pair) for pair in zip(self._answers, self._payloads))


def join(options: dict[str, Any]) -> Sockets:
    """Joins as a worker or a server."""
    return Sockets(rank_context(options))
