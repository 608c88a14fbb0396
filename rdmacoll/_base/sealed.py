"""Bytes with a proof that a rank of this job has made them, for this call and no other."""

from __future__ import annotations

import hashlib
import hmac
import struct

MAC_BYTES = 32
_CALL = struct.Struct("<qqq")
_LABEL = b"rdmacoll objects"


def key_of(secret: bytes) -> bytes:
    """The key for sealed bytes, from the job's secret."""
    return hmac.new(secret, _LABEL, hashlib.sha256).digest()


def seal(key: bytes, payload: bytes, *, sender: int, process_set: int, number: int) -> bytes:
    """`payload` behind its MAC. number: counts the calls of the process set."""
    return _mac(key, payload, sender, process_set, number) + payload


def opened(key: bytes, sealed: bytes, *, sender: int, process_set: int, number: int) -> bytes | None:
    """The payload, or None if a rank without the key has made or changed it, or another call."""
    mac, payload = sealed[:MAC_BYTES], sealed[MAC_BYTES:]
    is_right = hmac.compare_digest(mac, _mac(key, payload, sender, process_set, number))
    return payload if is_right else None


def _mac(key: bytes, payload: bytes, sender: int, process_set: int, number: int) -> bytes:
    return hmac.new(key, _CALL.pack(sender, process_set, number) + payload, hashlib.sha256).digest()
