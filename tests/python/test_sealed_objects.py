"""Objects of other ranks are read only with the job's signature for this call."""

from __future__ import annotations

from typing import Any

import pytest

from rdmacoll._base import sealed

KEY = sealed.key_of(b"the secret of a job")
CALL: dict[str, Any] = {"sender": 1, "process_set": 2, "name": "three"}


def test_a_sealed_payload_opens_for_its_own_call() -> None:
    for number, payload in enumerate((b"", b"x" * 1000)):
        assert sealed.opened(KEY, sealed.seal(KEY, payload, number=number, **CALL), **CALL) == (
            number,
            payload,
        )


@pytest.mark.parametrize("changed", CALL)
def test_a_payload_of_another_call_stays_closed(changed: str) -> None:
    text = sealed.seal(KEY, b"payload", number=3, **CALL)
    for other in ("7", None) if changed == "name" else (7,):
        assert sealed.opened(KEY, text, **{**CALL, changed: other}) is None


def test_changed_or_short_bytes_and_other_keys_stay_closed() -> None:
    text = sealed.seal(KEY, b"payload", number=3, **CALL)
    for place in range(len(text)):
        changed = bytearray(text)
        changed[place] ^= 1
        assert sealed.opened(KEY, bytes(changed), **CALL) is None
    for length in (0, 31, 32, 39, len(text) - 1):
        assert sealed.opened(KEY, text[:length], **CALL) is None
    assert sealed.opened(sealed.key_of(b"another secret"), text, **CALL) is None


def test_each_number_is_accepted_once_in_any_order() -> None:
    seen = sealed.Seen()
    assert all(seen.is_new(number) for number in (5, 3, 4, 6, 0))
    assert not any(seen.is_new(number) for number in (5, 3, 4, 6, 0))
    assert seen.is_new(5000)
    assert seen.is_new(4500)
    assert not seen.is_new(1)  # too old to tell
