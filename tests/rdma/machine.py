"""What every kind of guest needs to know of a run, and what it gives back."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# What the command finds again of our environment. --env adds to it.
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
_MEMORY_MIN = "128M"  # what the kernels need before the command has any


@dataclass(frozen=True)
class Options:
    """How a guest is to be.

    `writable` folders of the host keep what the command writes into them; `console` is the file that gets
    what the kernel said.
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
        """The memory as a number."""
        return _bytes(self.memory)

    def refusal(self) -> str:
        """Why there is no such guest, and what there is; empty if there is."""
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
    """What a command in the guest left: its exit code and output, and what the kernel said."""

    code: int
    stdout: bytes
    stderr: bytes
    console: str
    kernel: str
    seconds: float


@dataclass(frozen=True)
class Launch:
    """How the process of a guest is started. `out` and `err` are its devices for the command's output.

    Its processes stay on as many cores as it has processors: those of user-mode Linux hand over to each
    other, which takes five times as long when each is on a core of its own that has to wake first.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    out: str
    err: str
    processors: int


@dataclass(frozen=True)
class Place:
    """The folder of one run: `exchange` is seen by the guest, `files` is for the kernel's own files."""

    exchange: Path
    files: Path
    out: int
    err: int


def passed_environment(hosts: int, extra: Mapping[str, str]) -> dict[str, str]:
    """The command's environment: a choice of ours, and the names of the devices."""
    chosen = {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED or name.startswith(_PASSED_PREFIXES)
    }
    chosen["PATH"] = ":".join(part for part in (chosen.get("PATH"), _MORE_PATH) if part)
    chosen["RDMACOLL_TEST_DEVICE"] = ",".join(f"rxe{number}" for number in range(1, hosts + 1))
    return {**chosen, **extra}
