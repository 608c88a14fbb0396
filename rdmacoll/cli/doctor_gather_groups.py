"""Gathers the limits of this process's control group: processor time and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, TypeVar

from rdmacoll.cli.doctor_facts import Cores

_Limit = TypeVar("_Limit")
# Version 1 of control groups expresses "no limit" as a number close to 2^63.
_NO_LIMIT = 1 << 60


def read(path: Path) -> str:
    """The text of a file of /proc or /sys, stripped. Empty if the file is missing or unreadable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def cores(sys: Path, proc: Path, allowed: tuple[int, ...]) -> Cores:
    """The cores, with the quota of this process's control group, version 1 or 2. sys and proc are the
    roots to read."""
    quotas = [
        *_quotas(sys / "fs/cgroup", _cgroup(proc, ""), _quota_v2),
        *_quotas(sys / "fs/cgroup/unified", _cgroup(proc, ""), _quota_v2),
        *_quotas(sys / "fs/cgroup/cpu", _cgroup(proc, "cpu"), _quota_v1),
    ]
    online = _count(read(sys / "devices/system/cpu/online")) or len(allowed)
    if not quotas:
        return Cores(online, allowed)
    quota, source = min(quotas)
    return Cores(online, allowed, quota, source)


def _count(ranges: str) -> int:
    """The number of values in "0-3,8"."""
    total = 0
    for part in ranges.split(",") if ranges else ():
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def _cgroup(proc: Path, controller: str) -> str:
    """This process's group: the controller's group in version 1; with "", the group of version 2.

    >>> _cgroup(Path("/nowhere"), "cpu")
    '/'
    """
    for line in read(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"


def _quotas(mount: Path, group: str, quota: Callable[[Path], _Limit | None]) -> list[tuple[_Limit, str]]:
    """The limits of the group and of all groups above it, of which the lowest counts. Inside a container
    the mount may begin at the group itself. Then the group's path does not exist below the mount."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    folders = [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    return [(value, str(path)) for path in folders if (value := quota(path)) is not None]


def _quota_v2(folder: Path) -> float | None:
    limit, _, period = read(folder / "cpu.max").partition(" ")  # "max 100000"
    return int(limit) / int(period) if limit.isdigit() and period.isdigit() else None


def _quota_v1(folder: Path) -> float | None:
    limit, period = read(folder / "cpu.cfs_quota_us"), read(folder / "cpu.cfs_period_us")
    return int(limit) / int(period) if limit.isdigit() and period.isdigit() else None  # "-1": none


def group_memory(sys: Path, proc: Path) -> tuple[int | None, str]:
    """The bytes that all processes of the group may use, and the file that holds the limit; (None, "")
    without a limit."""

    def limit_in(name: str) -> Callable[[Path], tuple[int, str] | None]:
        def read_limit(folder: Path) -> tuple[int, str] | None:
            text = read(folder / name)
            is_limit = text.isascii() and text.isdigit() and len(text) < 20 and int(text) < _NO_LIMIT
            return (int(text), str(folder / name)) if is_limit else None

        return read_limit

    limits = [
        *_quotas(sys / "fs/cgroup", _cgroup(proc, ""), limit_in("memory.max")),
        *_quotas(sys / "fs/cgroup/memory", _cgroup(proc, "memory"), limit_in("memory.limit_in_bytes")),
    ]
    return min(limit for limit, _ in limits) if limits else (None, "")
