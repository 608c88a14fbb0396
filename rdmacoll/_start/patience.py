"""The time limit of a start, and the log lines during it."""

from __future__ import annotations

import time

from rdmacoll._base.log import Log

REPORT_EVERY_S = 10.0
BY_HAND_S = 1800.0  # the default limit of starts by hand, since people start ranks minutes apart
_SLICE_S = 0.25
_GRACE_S = 5.0
_HURRY_S = 30.0


class Patience:
    """A deadline (or none), and a log line every ten seconds that names the missing ranks.

    In starts by hand the deadline counts from the last arrival.
    """

    def __init__(self, timeout_s: float | None, log: Log, *, is_by_hand: bool = False) -> None:
        self.timeout_s, self.is_by_hand = timeout_s, is_by_hand
        self.arrivals = 0
        self._log = log
        self._begin = self._counts_from = time.monotonic()
        self._report_at = self._begin + REPORT_EVERY_S
        self._source = "RDMACOLL_START_TIMEOUT_S"
        self._hurry_until, self._hurry_cause = float("inf"), ""

    def renew(self, timeout_s: float, source: str) -> None:
        """Starts a new limit of `timeout_s`, from the setting `source`."""
        self.timeout_s, self._source = timeout_s, source
        self._begin = self._counts_from = time.monotonic()
        self._report_at = self._begin + REPORT_EVERY_S
        self._hurry_until = float("inf")

    def arrived(self, count: int | None = None) -> None:
        """Counts one more rank. With `count`, sets the number that rank 0 has told."""
        before, self.arrivals = self.arrivals, self.arrivals + 1 if count is None else count
        if self.is_by_hand and self.arrivals != before:
            self._counts_from = time.monotonic()
            if self._hurry_cause:  # ranks still come, so the cause was a stranger
                self._hurry_until = time.monotonic() + _HURRY_S

    def hurry(self, cause: str) -> None:
        """Cuts the time for missing ranks to half a minute, since for this `cause` they may never come."""
        if not self._hurry_cause:
            self._hurry_until, self._hurry_cause = time.monotonic() + _HURRY_S, cause

    def calm(self) -> None:
        """Ends the hurry: all ranks have come."""
        self._hurry_until = float("inf")

    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        now = time.monotonic()
        return now > self._hurry_until or (
            self.timeout_s is not None and now - self._counts_from > self.timeout_s
        )

    def grace_is_over(self) -> bool:
        """Whether a guest has also waited for rank 0's message. Rank 0 has the same deadline."""
        return self.timeout_s is not None and time.monotonic() - self._counts_from > self.timeout_s + _GRACE_S

    def slice_s(self) -> float:
        """The limit of one blocking call in seconds, so that log lines and the deadline are punctual."""
        return _SLICE_S

    def is_due(self) -> bool:
        """Whether ten seconds have passed since the last line."""
        return time.monotonic() >= self._report_at

    def report(self, text: str) -> None:
        """Logs `text` if ten seconds have passed since the last line."""
        if self.is_due():
            self.tell(text)

    def tell(self, text: str) -> str:
        """Logs `text` now, and returns it."""
        now = time.monotonic()
        self._report_at = now + REPORT_EVERY_S
        self._log.warning(f"{text} (for {now - self._begin:.0f} s)")
        return text

    def limit(self) -> str:
        """The deadline as a phrase for messages."""
        if time.monotonic() > self._hurry_until:
            return (
                f"within {_HURRY_S:g} s after {self._hurry_cause}: the file of RDMACOLL_SECRET_FILE must "
                "have the same content on every host"
            )
        since = " of the last arrival" if self.is_by_hand and self.arrivals else ""
        return f"within {self.timeout_s:g} s{since} ({self._source})"
