"""Address check: while worker 0 waits for the other ranks, it connects to their addresses.

Otherwise two processes with different lists would each wait at its own address for the other.
"""

from __future__ import annotations

import errno
import hmac
import json
import selectors
import socket
import struct
import threading
import time
from typing import Any

from rdmacoll._base import channel, threads
from rdmacoll._start.launch import Launch, split_address
from rdmacoll.errors import error_from_json

_EVERY_S = 1.0
_CALL_S = 1.0  # the limit of one call
_ANSWER_BYTES_MAX = 1 << 20
# A rank's answer to the worker 0 that it is looking for.
PRESENT = {"here": True}


class AddressCheck:
    """Calls one address after the other, in a `selector` that the owner polls, with this object as data.

    It skips addresses without a listener, and listeners that are no ranks of this job.
    """

    def __init__(self, launch: Launch, secret: bytes, selector: selectors.BaseSelector) -> None:
        self._launch = launch
        self._secret = secret
        self._hello: dict[str, Any] = {}
        self._selector = selector
        # The ranks that have not answered yet.
        self._ranks = list(range(1, launch.size)) if launch.hosts else []
        self._addresses: dict[int, Any] = {}  # results of getaddrinfo, which the resolving thread adds
        self._closed = threading.Event()
        self._resolving: threading.Thread | None = None
        self._fault: Exception | None = None  # an unexpected error of that thread
        self._position = 0  # the current position in `_ranks`
        self._connection: socket.socket | None = None
        self._deadline = self._next_at = 0.0
        self._restart()

    def _restart(self) -> None:
        self._is_connected = False
        self._raw = bytearray()
        self._proof = b""
        self._greeting = b""
        self._reader: channel.FrameReader | None = None

    def advance(self, hello: dict[str, Any]) -> None:
        """Begins a call when it is time. Raises an unexpected error of the resolving thread.

        hello: this rank's hello.
        """
        if self._fault is not None:
            raise self._fault
        self._hello = hello
        if self._resolving is None and self._ranks:
            names = [(rank, self._launch.hosts[rank]) for rank in self._ranks]
            self._resolving = threading.Thread(
                target=self._resolve, args=(names,), name="rdmacoll-names", daemon=True
            )
            threads.start(self._resolving)
        now = time.monotonic()
        if self._connection is not None and now > self._deadline:
            self._end_call()
        if self._connection is None and self._ranks and now >= self._next_at:
            self._position = (self._position + 1) % len(self._ranks)
            self._next_at = now + (_EVERY_S if self._position == 0 else 0)
            self._call(self._ranks[self._position])

    def _resolve(self, names: list[tuple[int, str]]) -> None:
        """Resolves names. Runs on its own thread, so that rank 0 admits callers while a resolver waits."""
        try:
            while names and not self._closed.is_set():
                names = self._unresolved(names)
                self._closed.wait(_EVERY_S)
        except Exception as error:
            self._fault = error

    def _unresolved(self, names: list[tuple[int, str]]) -> list[tuple[int, str]]:
        """The names that still have no address."""
        unknown = []
        for rank, address in names:
            try:
                found = socket.getaddrinfo(*split_address(address), type=socket.SOCK_STREAM)
                self._addresses[rank] = found[0]
            except (OSError, UnicodeError):  # an invalid name is reported by the rank that has it
                unknown.append((rank, address))
        return unknown

    def _call(self, rank: int) -> None:
        if rank not in self._addresses:
            return
        family, kind, protocol, _, sockaddr = self._addresses[rank]
        try:
            connection = socket.socket(family, kind, protocol)
        except OSError:
            return
        connection.setblocking(False)
        if connection.connect_ex(sockaddr) not in (0, errno.EINPROGRESS):
            connection.close()
            return
        self._connection, self._deadline = connection, time.monotonic() + _CALL_S
        self._restart()
        self._selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, self)

    def _end_call(self) -> None:
        if self._connection is not None:
            self._selector.unregister(self._connection)
            self._connection.close()
            self._connection = None

    def handle_event(self) -> None:
        """Handles an event of the call. Raises the error by which the called rank ends the start."""
        connection = self._connection
        if connection is None:
            return
        try:
            if not self._is_connected:
                self._connect(connection)
            data = connection.recv(1 << 16)
            if not data:
                raise ConnectionResetError
            self._handle_bytes(connection, data)
        except BlockingIOError:
            return
        except (OSError, channel.ProtocolError):
            self._end_call()

    def _connect(self, connection: socket.socket) -> None:
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0:
            raise ConnectionRefusedError
        if connection.getsockname() == connection.getpeername():
            # It is connected to itself, and would keep the port from its owner. Close it without TIME_WAIT.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise ConnectionRefusedError
        self._is_connected = True
        connection.sendall(channel.CALL)
        self._selector.modify(connection, selectors.EVENT_READ, self)

    def _handle_bytes(self, connection: socket.socket, data: bytes) -> None:
        self._raw += data
        if not self._greeting and len(self._raw) >= channel.GREETING_BYTES:
            self._greeting = self._take(channel.GREETING_BYTES)
            if not self._greeting.startswith(channel.MAGIC):
                raise channel.ProtocolError
            self._proof = channel.caller_proof(self._secret, self._greeting)
            connection.sendall(self._proof)
        if self._greeting and self._reader is None and len(self._raw) >= channel.MAC_BYTES:
            expected = channel.listener_proof(self._secret, self._greeting, self._proof)
            if not hmac.compare_digest(self._take(channel.MAC_BYTES), expected):
                raise channel.ProtocolError
            key = channel.session_key(self._secret, self._greeting, self._proof)
            self._reader = channel.FrameReader(key, b"down", _ANSWER_BYTES_MAX)
            connection.sendall(channel.FrameWriter(key, b"up").frame(self._hello))
        if self._reader is not None:
            self._reader.add(self._take(len(self._raw)))
            self._handle_answer(self._reader.take())

    def _take(self, count: int) -> bytes:
        data = bytes(self._raw[:count])
        del self._raw[:count]
        return data

    def _handle_answer(self, answer: Any) -> None:
        if answer == PRESENT:
            del self._ranks[self._position]
            self._position = max(0, self._position - 1)
            self._end_call()
        elif isinstance(answer, dict) and isinstance(answer.get("error"), dict):
            self._end_call()
            raise error_from_json(json.dumps(answer["error"]))

    def close(self) -> None:
        """Ends all calls. Idempotent."""
        self._closed.set()
        self._end_call()
        self._ranks = []
