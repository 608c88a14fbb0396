"""The options and results of a run, for every kind of guest."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Environment variables that the command inherits from this process. --env adds to them.
_PASSED = ("LANG", "HOME", "PATH", "TERM", "USER", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD")
_PASSED_PREFIXES = (
    "ASAN_",
    "GTEST_",
    "KERAS_",
    "LC_",
    "LSAN_",
    "OMPI_",
    "OMP_",
    "PYTEST_",
    "PYTHON",
    "RDMACOLL_",
    "RDMAV_",
    "TF_",
    "TSAN_",
    "UBSAN_",
    "UCX_",
)
_MORE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOSTS_MAX = 99
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MEMORY_MIN = "128M"  # the kernels themselves need nearly all of this


@dataclass(frozen=True)
class Options:
    """The options of a guest.

    writable: folders of the host that keep the files that the command writes there.
    console: the file for the kernel's messages.
    """

    kernel: str = "auto"
    hosts: int = 2
    memory: str = "2G"
    timeout_s: float = 300.0
    cwd: Path = field(default_factory=Path.cwd)
    environment: Mapping[str, str] = field(default_factory=dict)
    writable: Sequence[Path] = ()
    console: Path | None = None

    @property
    def memory_bytes(self) -> int:
        """The memory in bytes."""
        return _bytes(self.memory)

    def refusal(self) -> str:
        """Returns why the options are invalid and which values are valid, or an empty text."""
        if not 1 <= self.hosts <= HOSTS_MAX:
            return f"{self.hosts} hosts are not possible: 1 to {HOSTS_MAX} are"
        if not re.fullmatch(r"[0-9]+[KMGkmg]", self.memory):
            return f'"{self.memory}" is no amount of memory: give a whole number and K, M or G (--memory 2G)'
        if self.memory_bytes < _bytes(_MEMORY_MIN):
            return (
                f"no guest starts with {self.memory} of memory: give it {_MEMORY_MIN} at least (--memory 2G)"
            )
        return ""


def _bytes(memory: str) -> int:
    return int(memory[:-1]) * _UNITS[memory[-1].upper()]


@dataclass(frozen=True)
class Result:
    """The result of a command in the guest: its exit code, its output and the kernel's messages."""

    code: int
    stdout: bytes
    stderr: bytes
    console: str
    kernel: str
    seconds: float


@dataclass(frozen=True)
class Launch:
    """How the process of a guest is started. `out` and `err` are its devices for the command's output.

    The guest's processes stay on as many cores as it has processors. The processes of user-mode Linux hand
    over to each other. A measurement has shown that this is much slower when each has its own core.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    out: str
    err: str
    processors: int


@dataclass(frozen=True)
class RunFolders:
    """The folders and pipes of one run. The guest sees `exchange`; `files` is for the kernel's own files."""

    exchange: Path
    files: Path
    out: int
    err: int


def passed_environment(hosts: int, extra: Mapping[str, str]) -> dict[str, str]:
    """Returns the command's environment: the passed variables, the names of the devices, and `extra`."""
    chosen = {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED or name.startswith(_PASSED_PREFIXES)
    }
    chosen["PATH"] = ":".join(part for part in (chosen.get("PATH"), _MORE_PATH) if part)
    chosen["RDMACOLL_TEST_DEVICE"] = ",".join(f"rxe{number}" for number in range(1, hosts + 1))
    return {**chosen, **extra}
