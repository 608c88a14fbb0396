"""Keys, and digests of messages by them."""

from __future__ import annotations

import hashlib
import hmac
import secrets

HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"


def make_secret_key() -> bytes:
    """A fresh key of 32 bytes."""
    return secrets.token_bytes(32)


def compute_digest(key: bytes, msg: bytes) -> bytes:
    """The message's digest by this key."""
    return hmac.new(key, msg, hashlib.sha256).digest()


def check_digest(key: bytes, msg: bytes, digest: bytes) -> bool:
    """Whether this is the message's digest."""
    return hmac.compare_digest(compute_digest(key, msg), digest)
