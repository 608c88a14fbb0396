"""Authenticated frames on a stream. Bytes of a peer without the secret are never parsed.

Both sides prove the secret by HMAC-SHA256 over both nonces before they read any other byte. Every later frame
has a length limit and an HMAC over direction, number and content. Frames hold JSON, never pickle. There is
no encryption.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import struct
from typing import Any

MAGIC = b"rdmacol2"
# A caller's first bytes, which it sends at once. They tell a rank from a silent connection. They also tell
# a listener that serves the engine too that this caller comes for the rendezvous.
CALL = b"rdmacol?"
NONCE_BYTES = 32
MAC_BYTES = 32
GREETING_BYTES = len(MAGIC) + NONCE_BYTES  # listener -> caller
PROOF_BYTES = NONCE_BYTES + MAC_BYTES  # caller -> listener, after CALL
REFUSED = bytes(MAC_BYTES)  # instead of the listener's proof

_LENGTH = struct.Struct(">I")
_COUNTER = struct.Struct(">Q")


class ProtocolError(Exception):
    """The other side's bytes violate the protocol."""


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def greeting() -> bytes:
    """The listener's first bytes."""
    return MAGIC + secrets.token_bytes(NONCE_BYTES)


def caller_proof(secret: bytes, greeting_bytes: bytes) -> bytes:
    """The caller's answer to a greeting."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + _mac(secret, b"caller", greeting_bytes, nonce)


def is_caller_proof(secret: bytes, greeting_bytes: bytes, proof: bytes) -> bool:
    """Whether the caller knows the secret."""
    nonce, mac = proof[:NONCE_BYTES], proof[NONCE_BYTES:]
    return hmac.compare_digest(mac, _mac(secret, b"caller", greeting_bytes, nonce))


def listener_proof(secret: bytes, greeting_bytes: bytes, proof: bytes) -> bytes:
    """The listener's answer to a caller with a valid proof."""
    return _mac(secret, b"listener", greeting_bytes, proof)


def session_key(secret: bytes, greeting_bytes: bytes, proof: bytes) -> bytes:
    """The key of this connection's frames."""
    return _mac(secret, b"session", greeting_bytes, proof)


class FrameWriter:
    """Encodes objects as frames, for one direction of one connection."""

    def __init__(self, key: bytes, direction: bytes) -> None:
        self._key = key
        self._direction = direction
        self._counter = 0

    def frame(self, value: Any) -> bytes:
        """The bytes of the next frame."""
        payload = json.dumps(value).encode()
        mac = _mac(self._key, self._direction, _COUNTER.pack(self._counter), payload)
        self._counter += 1
        return _LENGTH.pack(len(payload)) + payload + mac


class FrameReader:
    """Decodes frames from pieces of any size, for one direction of one connection."""

    def __init__(self, key: bytes, direction: bytes, payload_bytes_max: int) -> None:
        self._key = key
        self._direction = direction
        self._payload_bytes_max = payload_bytes_max
        self._counter = 0
        self._buffer = bytearray()

    def add(self, data: bytes) -> None:
        """Adds bytes from the socket."""
        self._buffer += data

    def take(self) -> Any:
        """The next object, or None if it is incomplete. Raises ProtocolError."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > self._payload_bytes_max:
            raise ProtocolError(f"a frame of {length} bytes; at most {self._payload_bytes_max}")
        end = _LENGTH.size + length
        if len(self._buffer) < end + MAC_BYTES:
            return None
        payload = bytes(self._buffer[_LENGTH.size : end])
        mac = bytes(self._buffer[end : end + MAC_BYTES])
        expected = _mac(self._key, self._direction, _COUNTER.pack(self._counter), payload)
        if not hmac.compare_digest(mac, expected):
            raise ProtocolError("a frame with a wrong signature")
        del self._buffer[: end + MAC_BYTES]
        self._counter += 1
        try:
            return json.loads(payload)
        except ValueError as error:
            raise ProtocolError("a frame that is not JSON") from error
