"""The cache of built and unpacked files, its locks, and the download of Debian packages."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

_PROGRESS_EVERY_S = 10.0


class GuestError(Exception):
    """The guest failed. The text is one sentence with the cause and the cure."""


def say(text: str) -> None:
    """Prints one line of progress for the user."""
    print(f"guest: {text}", file=sys.stderr, flush=True)


def folder() -> Path:
    """Returns the folder that keeps built kernels between runs, and creates it."""
    base = os.environ.get("RDMACOLL_CACHE") or str(Path.home() / ".cache" / "rdmacoll")
    path = Path(base) / "guest"
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def lock(name: str, waiting_for: str, progress: Callable[[], str] = str) -> Iterator[None]:
    """Holds the lock of `name`, so that one process at a time makes it.

    A waiting process regularly prints `waiting_for` and the progress.
    """
    with (folder() / f"{name}.lock").open("a+") as file:
        begin = reported_at = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            if time.monotonic() - reported_at >= _PROGRESS_EVERY_S:
                reported_at = time.monotonic()
                say(f"waiting for {waiting_for}, {reported_at - begin:.0f} s so far{progress()}")
            time.sleep(0.2)
        yield


@contextlib.contextmanager
def workplace(name: str) -> Iterator[Path]:
    """Provides a temporary folder in the cache for a build. The caller holds the lock of this name."""
    for left in folder().glob(f"{name}.making-*"):
        shutil.rmtree(left, ignore_errors=True)  # a killed build left it: this process has its lock now
    path = Path(tempfile.mkdtemp(prefix=f"{name}.making-", dir=folder()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def environment() -> dict[str, str]:
    """Returns the environment of started programs: English, without the variables of an outer make."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return {**ours, "LC_ALL": "C"}


def call(command: Sequence[str | Path], *, cwd: Path | None = None) -> str:
    """Runs a short command and returns its output. Raises GuestError with the last lines if it fails."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment(),
        )
    except FileNotFoundError as error:
        raise GuestError(f"{command[0]} is missing: make setup-rdma installs it") from error
    if done.returncode != 0:
        last = (done.stdout + done.stderr).strip().splitlines()[-3:]
        raise GuestError(f"{' '.join(map(str, command))} failed ({done.returncode}): {' | '.join(last)}")
    return done.stdout


def candidate(names: Sequence[str]) -> tuple[str, str]:
    """Returns the first of these packages that apt offers, and the offered version."""
    for name in names:
        for line in call(["apt-cache", "policy", name]).splitlines():
            if line.startswith("  Candidate:") and "(none)" not in line:
                return name, line.split(":", 1)[1].strip()
    raise GuestError(f"apt knows none of {', '.join(names)}: run apt-get update, or use Debian 12 or later")


def fetch(names: Callable[[], Sequence[str]], into: Path) -> tuple[str, str, Path]:
    """Downloads the first of these packages that apt offers. Returns its name, its version and its .deb.

    If that fails and the process is root, it updates apt's package lists and tries again.
    """
    try:
        return _download(*candidate(names()), into)
    except GuestError:
        if os.geteuid() != 0:
            raise
    call(["apt-get", "update", "-qq"])
    return _download(*candidate(names()), into)


def _download(name: str, version: str, into: Path) -> tuple[str, str, Path]:
    sandbox = [] if os.geteuid() else ["-o", "APT::Sandbox::User=root"]
    call(["apt-get", *sandbox, "-qq", "download", f"{name}={version}"], cwd=into)
    (deb,) = into.glob(f"{name}_*.deb")
    return name, version, deb


def unpack(deb: Path, into: Path) -> None:
    """Unpacks the files of a .deb into a folder."""
    into.mkdir(exist_ok=True)
    call(["dpkg-deb", "-x", deb, into])


def unpacked(package: str, name: str) -> Path:
    """Unpacks a Debian package into the folder NAME-VERSION of the cache. Nothing is installed."""
    with lock(name, f"{name}, which another process unpacks"), workplace(name) as place:
        _, version, deb = fetch(lambda: [package], place)
        unpack(deb, place / "files")
        final = folder() / f"{name}-{version}"
        if not final.exists():
            take_in(place / "files", final)
        return final


def take_in(made: Path, final: Path) -> None:
    """Moves a finished file or folder into the cache atomically."""
    if made.is_file():
        with made.open("rb") as file:
            os.fsync(file.fileno())
    made.rename(final)
