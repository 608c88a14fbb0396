"""Bytes with a proof that a rank of this job has made them, for the calls of a name in a process set."""

from __future__ import annotations

import hashlib
import hmac
import struct

MAC_BYTES = 32
_NUMBER = struct.Struct("<q")
_CALL = struct.Struct("<qq")
_LABEL = b"rdmacoll objects"
# Threads may finish their calls in another order than the sender's. A number that is so far behind is old.
_WINDOW = 1024


def key_of(secret: bytes) -> bytes:
    """The key for sealed bytes, from the job's secret."""
    return hmac.new(secret, _LABEL, hashlib.sha256).digest()


def seal(
    key: bytes, payload: bytes, *, sender: int, process_set: int, name: str | None, number: int
) -> bytes:
    """`payload` behind its MAC and its number. number: counts the sender's objects of the process set."""
    numbered = _NUMBER.pack(number) + payload
    return _mac(key, numbered, sender, process_set, name) + numbered


def opened(
    key: bytes, sealed: bytes, *, sender: int, process_set: int, name: str | None
) -> tuple[int, bytes] | None:
    """Number and payload, or None if a rank without the key has made or changed them, or another call."""
    mac, numbered = sealed[:MAC_BYTES], sealed[MAC_BYTES:]
    if len(numbered) < _NUMBER.size:
        return None
    if not hmac.compare_digest(mac, _mac(key, numbered, sender, process_set, name)):
        return None
    return _NUMBER.unpack_from(numbered)[0], numbered[_NUMBER.size :]


class Seen:
    """The numbers that a sender's objects had. Each number is accepted once.

    >>> seen = Seen()
    >>> [seen.is_new(number) for number in (0, 2, 1, 2, 5000, 3)]
    [True, True, True, False, True, False]
    """

    def __init__(self) -> None:
        self._highest = -1
        self._recent: set[int] = set()

    def is_new(self, number: int) -> bool:
        """Whether this number comes for the first time. Old numbers count as known."""
        if number <= self._highest - _WINDOW or number in self._recent:
            return False
        self._recent.add(number)
        if number > self._highest:
            self._highest = number
            self._recent = {one for one in self._recent if one > number - _WINDOW}
        return True


def _mac(key: bytes, numbered: bytes, sender: int, process_set: int, name: str | None) -> bytes:
    label = b"" if name is None else b"name " + name.encode()
    head = _CALL.pack(sender, process_set) + hashlib.sha256(label).digest()
    return hmac.new(key, head + numbered, hashlib.sha256).digest()
