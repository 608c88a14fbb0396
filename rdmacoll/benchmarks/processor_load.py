"""The share of the processor that other processes had during a measurement."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Fields of the first line of /proc/stat: user, nice, system, steal. Interrupts are left out: on shaped links
# they move the packets of the measured processes.
_BUSY_FIELDS = (1, 2, 3, 8)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_INTERVAL_S = 0.25


@dataclass(frozen=True)
class Reading:
    """The processor time of the machine up to one moment, in seconds."""

    at: float
    busy: float
    packets: float  # the kernel's threads that move packets, which work for the measured processes

    def share_since(self, before: Reading, own_s: float, cores: int) -> float:
        """The share of all cores that other processes had: neither the measured ones (own_s seconds of
        processor time) nor their packets.

        >>> Reading(12.0, 8.0, 0.5).share_since(Reading(10.0, 5.0, 0.0), own_s=1.5, cores=2)
        0.25
        """
        others = (self.busy - before.busy) - (self.packets - before.packets) - own_s
        return max(0.0, others) / ((self.at - before.at) * cores)


def busy_seconds(stat: str, ticks_per_s: int = 100) -> float:
    """The busy seconds of all processors, from the text of /proc/stat.

    >>> busy_seconds("cpu  100 20 30 4000 50 6 7 80 0 0")
    2.3
    """
    fields = stat.split("\n", 1)[0].split()
    return sum(int(fields[number]) for number in _BUSY_FIELDS) / ticks_per_s


def _packet_threads() -> list[Path]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if (folder / "comm").read_text().startswith("ksoftirqd/"):
                    found.append(folder / "stat")
            except OSError:
                continue  # the process has ended
    return found


class LoadWatch:
    """Reads the load of the machine."""

    def __init__(self) -> None:
        self.cores = os.cpu_count() or 1
        self._packet_threads: Sequence[Path] = _packet_threads()

    def read(self) -> Reading:
        """The load at this moment."""
        packets = 0
        for path in self._packet_threads:
            fields = path.read_text().rpartition(")")[2].split()
            packets += int(fields[11]) + int(fields[12])
        busy = busy_seconds(Path("/proc/stat").read_text(), _TICKS_PER_S)
        return Reading(time.monotonic(), busy, packets / _TICKS_PER_S)

    def wait(self, share_max: float, until: float) -> bool:
        """Waits until other processes have at most `share_max` of the processors for a moment. Returns
        False if the monotonic time `until` comes first."""
        while time.monotonic() < until:
            before = self.read()
            time.sleep(_INTERVAL_S)
            if self.read().share_since(before, 0.0, self.cores) <= share_max:
                return True
        return False
