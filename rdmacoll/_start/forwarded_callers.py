"""Callers for the rendezvous that the engine passes on, since the engine listens at rank 0's address."""

from __future__ import annotations

import os
import selectors
import socket
import struct
from collections.abc import Iterator

_NUMBER = struct.Struct("=i")


class ForwardedCallers:
    """The library's socket, whose packets are numbers of descriptors.

    It is in `selector` with data `key`.
    """

    def __init__(self, descriptor: int, selector: selectors.BaseSelector, key: object) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._selector = selector
        selector.register(self._socket, selectors.EVENT_READ, key)

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
        """The new callers, each with its address."""
        for number in self._numbers():
            connection = socket.socket(fileno=number)
            try:
                yield connection, str(connection.getpeername()[0])
            except OSError:
                connection.close()  # the caller has closed it

    def close(self) -> None:
        """Closes callers that were not taken. Idempotent. Call it before the selector is closed."""
        if self._socket.fileno() < 0:
            return
        for number in self._numbers():
            os.close(number)
        self._socket.close()

    def release_in_child(self) -> None:
        """Closes a forked child's copy, and reads nothing from it: waiting callers belong to the parent."""
        self._socket.close()
