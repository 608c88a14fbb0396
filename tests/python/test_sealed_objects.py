"""Objects of other ranks are read only with the job's signature for this call."""

from __future__ import annotations

import pytest

from rdmacoll._base import sealed

KEY = sealed.key_of(b"the secret of a job")
CALL = {"sender": 1, "process_set": 2, "number": 3}


def test_a_sealed_payload_opens_for_its_own_call() -> None:
    for payload in (b"", b"x" * 1000):
        assert sealed.opened(KEY, sealed.seal(KEY, payload, **CALL), **CALL) == payload


@pytest.mark.parametrize("changed", CALL)
def test_a_payload_of_another_call_stays_closed(changed: str) -> None:
    text = sealed.seal(KEY, b"payload", **CALL)
    assert sealed.opened(KEY, text, **{**CALL, changed: 7}) is None


def test_changed_or_short_bytes_and_other_keys_stay_closed() -> None:
    text = sealed.seal(KEY, b"payload", **CALL)
    for place in range(len(text)):
        changed = bytearray(text)
        changed[place] ^= 1
        assert sealed.opened(KEY, bytes(changed), **CALL) is None
    for length in (0, 31, len(text) - 1):
        assert sealed.opened(KEY, text[:length], **CALL) is None
    assert sealed.opened(sealed.key_of(b"another secret"), text, **CALL) is None
