"""Callers at rank 0's address whom the engine, which listens there now, passes on to the rendezvous."""

from __future__ import annotations

import os
import selectors
import socket
import struct
from collections.abc import Iterator

_NUMBER = struct.Struct("=i")


class Line:
    """A socket of the library's whose packets are numbers of descriptors, in a `selector` as `mark`."""

    def __init__(self, descriptor: int, selector: selectors.BaseSelector, mark: object) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._selector = selector
        selector.register(self._socket, selectors.EVENT_READ, mark)

    def _numbers(self) -> Iterator[int]:
        try:
            while packet := self._socket.recv(_NUMBER.size):
                yield _NUMBER.unpack(packet)[0]
        except BlockingIOError:
            return
        # The engine has ended. The socket stays readable.
        if self._socket in self._selector.get_map():
            self._selector.unregister(self._socket)

    def take(self) -> Iterator[tuple[socket.socket, str]]:
        """The callers that have come, each with where it came from."""
        for number in self._numbers():
            connection = socket.socket(fileno=number)
            try:
                yield connection, str(connection.getpeername()[0])
            except OSError:
                connection.close()  # it has hung up

    def close(self) -> None:
        """Hangs up on those that nobody has taken; idempotent. Call before the selector is closed."""
        if self._socket.fileno() < 0:
            return
        for number in self._numbers():
            os.close(number)
        self._socket.close()

    def forget_in_child(self) -> None:
        """Closes a forked child's copy, and takes nothing from it: what waits there is the parent's."""
        self._socket.close()
