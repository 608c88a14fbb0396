"""Catches the error of a refused call, for programs that run on every rank."""

from __future__ import annotations

from typing import Any, Callable

import rdmacoll


def refusal(call: Callable[[], Any]) -> str:
    """Returns the class and text of the error that `call` raises, or "not refused"."""
    try:
        call()
    except rdmacoll.RdmacollError as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"
