"""What a call is refused with: for programs that run on every rank."""

from __future__ import annotations

from typing import Any, Callable

import rdmacoll


def refusal(call: Callable[[], Any]) -> str:
    """The error's class and sentence."""
    try:
        call()
    except rdmacoll.RdmacollError as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"
