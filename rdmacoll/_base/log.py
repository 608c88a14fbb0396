"""Lines on stderr in the form of the C++ engine's log."""

from __future__ import annotations

import sys

LEVELS = ("error", "warning", "info", "debug")


class Log:
    """Writes lines of the levels that are requested. A plain value, which callers pass around."""

    def __init__(self, level: str = "warning", rank: int = -1) -> None:
        self._level = LEVELS.index(level) if level in LEVELS else LEVELS.index("warning")
        self._rank = rank

    def _write(self, level: str, prefix: str, text: str) -> None:
        if LEVELS.index(level) <= self._level and sys.stderr is not None:  # None: stderr was closed
            rank_label = f" rank {self._rank}" if self._rank >= 0 else ""
            sys.stderr.write(f"[rdmacoll{rank_label}] {prefix}{text}\n")
            sys.stderr.flush()

    def notice(self, text: str) -> None:
        """Logs a line of general interest, at the level of warnings but without that word."""
        self._write("warning", "", text)

    def error(self, text: str) -> None:
        """Logs an error that ends this process."""
        self._write("error", "error: ", text)

    def warning(self, text: str) -> None:
        """Logs a problem that the user should look at."""
        self._write("warning", "warning: ", text)

    def info(self, text: str) -> None:
        """Logs a line that helps to understand a run."""
        self._write("info", "info: ", text)
