"""Asynchronous parameter servers: they own the variables and apply the updates of the user's optimizer."""

from __future__ import annotations

from rdmacoll.ps.rules import Rule, rule_of

__all__ = ["Rule", "rule_of"]
