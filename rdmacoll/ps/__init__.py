"""Asynchronous parameter servers: they own the variables and apply the updates of the user's optimizer."""

from __future__ import annotations

from rdmacoll.ps.rules import Rule, rule_of
from rdmacoll.ps.session import (
    declare,
    exchange,
    init,
    pull,
    pull_rows,
    push,
    push_rows,
    rank,
    save,
    sharding,
    shutdown,
    size,
    stats,
)

__all__ = [
    "Rule",
    "declare",
    "exchange",
    "init",
    "pull",
    "pull_rows",
    "push",
    "push_rows",
    "rank",
    "rule_of",
    "save",
    "sharding",
    "shutdown",
    "size",
    "stats",
]
