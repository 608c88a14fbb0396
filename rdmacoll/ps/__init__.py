"""Asynchronous parameter servers: they own the variables and apply the updates of the user's optimizer."""

from __future__ import annotations

from rdmacoll.ps.calls import (
    declare,
    exchange,
    pull,
    pull_rows,
    push,
    push_rows,
    restore,
    save,
    sharding,
    stats,
)
from rdmacoll.ps.rules import Rule, rule_of

__all__ = [
    "Rule",
    "declare",
    "exchange",
    "pull",
    "pull_rows",
    "push",
    "push_rows",
    "restore",
    "rule_of",
    "save",
    "sharding",
    "stats",
]
