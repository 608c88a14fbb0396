"""How long a start waits, and what it says meanwhile."""

from __future__ import annotations

import time

from rdmacoll.engine.log import Log

REPORT_EVERY_S = 10.0
_SLICE_S = 0.25
_GRACE_S = 5.0


class Patience:
    """A deadline (or none), and a line every ten seconds that says who is missing."""

    def __init__(self, timeout_s: float | None, log: Log) -> None:
        self.timeout_s = timeout_s
        self._log = log
        self._begin = time.monotonic()
        self._report_at = self._begin + REPORT_EVERY_S
        self._source = "RDMACOLL_START_TIMEOUT_S"

    def renew(self, timeout_s: float, source: str) -> None:
        """From now on `timeout_s` counts, which `source` sets."""
        self.timeout_s, self._source = timeout_s, source
        self._begin = time.monotonic()
        self._report_at = self._begin + REPORT_EVERY_S

    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.timeout_s is not None and time.monotonic() - self._begin > self.timeout_s

    def grace_is_over(self) -> bool:
        """Whether a guest has also waited for what rank 0, whose deadline is the same, has to say."""
        assert self.timeout_s is not None
        return time.monotonic() - self._begin > self.timeout_s + _GRACE_S

    def slice_s(self) -> float:
        """How long one blocking call may last, so that reports and the deadline stay punctual."""
        return _SLICE_S

    def report(self, text: str) -> bool:
        """Writes `text` when ten seconds have passed since the last line, and says whether it has."""
        now = time.monotonic()
        is_due = now >= self._report_at
        if is_due:
            self._report_at = now + REPORT_EVERY_S
            self.tell(text)
        return is_due

    def tell(self, text: str) -> None:
        """Writes `text` now."""
        self._log.warning(f"{text} (for {time.monotonic() - self._begin:.0f} s)")

    def limit(self) -> str:
        """The deadline in words, for messages."""
        return f"within {self.timeout_s:g} s ({self._source})"
