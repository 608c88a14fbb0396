"""The time limit of a start, and the log lines during it."""

from __future__ import annotations

import time
from collections.abc import Callable

from rdmacoll._base.log import Log
from rdmacoll.errors import RankFailedError

REPORT_EVERY_S = 10.0
BY_HAND_S = 1800.0  # the default limit of starts by hand, since people start ranks minutes apart
_SLICE_S = 0.25
_GRACE_S = 5.0
_SHORTENED_S = 30.0


class StartDeadline:
    """A deadline (or none), and a log line every ten seconds that names the missing ranks.

    In starts by hand the deadline counts from the last arrival.
    """

    def __init__(
        self,
        timeout_s: float | None,
        log: Log,
        *,
        is_by_hand: bool = False,
        called_off: Callable[[], str] = lambda: "",
    ) -> None:
        """called_off: the sentence that ends the start at once; empty as long as it may go on."""
        self._called_off = called_off
        self.timeout_s, self.is_by_hand = timeout_s, is_by_hand
        self.arrivals = 0
        self._log = log
        self._begin = self._counts_from = time.monotonic()
        self._report_at = self._begin + REPORT_EVERY_S
        self._source = "RDMACOLL_START_TIMEOUT_S"
        self._shortened_until, self._shortened_cause = float("inf"), ""

    def renew(self, timeout_s: float, source: str) -> None:
        """Starts a new limit of `timeout_s`, from the setting `source`."""
        self.timeout_s, self._source = timeout_s, source
        self._begin = self._counts_from = time.monotonic()
        self._report_at = self._begin + REPORT_EVERY_S
        self._shortened_until = float("inf")

    def arrived(self, count: int | None = None) -> None:
        """Counts one more rank. With `count`, sets the number that rank 0 has told."""
        before, self.arrivals = self.arrivals, self.arrivals + 1 if count is None else count
        if self.is_by_hand and self.arrivals != before:
            self._counts_from = time.monotonic()
            if self._shortened_cause:  # ranks still come, so the cause was a foreign process
                self._shortened_until = time.monotonic() + _SHORTENED_S

    def shorten(self, cause: str) -> None:
        """Cuts the time for missing ranks to half a minute, since for this `cause` they may never come."""
        if not self._shortened_cause:
            self._shortened_until, self._shortened_cause = time.monotonic() + _SHORTENED_S, cause

    def restore(self) -> None:
        """Restores the limit: all ranks have come."""
        self._shortened_until = float("inf")

    def is_over(self) -> bool:
        """Whether the deadline has passed. Raises RankFailedError, of no certain rank, if the start is called
        off."""
        if reason := self._called_off():
            raise RankFailedError(reason, cause="another world is to begin")
        now = time.monotonic()
        return now > self._shortened_until or (
            self.timeout_s is not None and now - self._counts_from > self.timeout_s
        )

    def grace_is_over(self) -> bool:
        """Whether a rank other than 0 has also waited for rank 0's message. Rank 0 has the same deadline."""
        return self.timeout_s is not None and time.monotonic() - self._counts_from > self.timeout_s + _GRACE_S

    def slice_s(self) -> float:
        """The limit of one blocking call in seconds, so that log lines and the deadline are punctual."""
        return _SLICE_S

    def is_report_due(self) -> bool:
        """Whether ten seconds have passed since the last line."""
        return time.monotonic() >= self._report_at

    def report(self, text: str) -> None:
        """Logs `text` if ten seconds have passed since the last line."""
        if self.is_report_due():
            self.log_now(text)

    def log_now(self, text: str) -> str:
        """Logs `text` now, and returns it."""
        now = time.monotonic()
        self._report_at = now + REPORT_EVERY_S
        self._log.warning(f"{text} (for {now - self._begin:.0f} s)")
        return text

    def limit_text(self) -> str:
        """The deadline as a phrase for messages."""
        if time.monotonic() > self._shortened_until:
            return (
                f"within {_SHORTENED_S:g} s after {self._shortened_cause}: the file of RDMACOLL_SECRET_FILE "
                "must have the same content on every host"
            )
        since = " of the last arrival" if self.is_by_hand and self.arrivals else ""
        return f"within {self.timeout_s:g} s{since} ({self._source})"
