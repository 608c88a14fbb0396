"""Liveness check for ranks of this node before the engine can check: a lost rank's listening socket is gone.

For starts over MPI, which does not report that a rank has died. The check reads the kernel's list and does
not connect, since connections would fill the queue of a rank that is late.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rdmacoll._start.bootstrap_exchange import left_during_start

_TABLE = Path("/proc/net/unix")


class LivenessCheck:
    """The ranks of this node by the names of their sockets, from all ranks' cards."""

    def __init__(self, cards: Sequence[str], rank: int) -> None:
        parsed = [json.loads(card) for card in cards]
        self._mine = parsed[rank].get("unix")
        self._others = [
            (other, card)
            for other, card in enumerate(parsed)
            if "unix" in card and card.get("node") == parsed[rank].get("node")
        ]

    def check(self) -> None:
        """Raises RankFailedError for the first rank that is gone."""
        try:
            lines = _TABLE.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return
        present = {line.rpartition("@")[2] for line in lines if "@" in line}
        if self._mine not in present:
            return  # this system's list does not have them
        for other, card in self._others:
            if card["unix"] not in present:
                raise left_during_start(
                    other, card["host"], f"{card['host']}, pid {card['pid']}", "its process has ended"
                )
