"""The peers' own environments in the project's cache: which ones exist, and how they are installed."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rdmacoll._base.programs import OutOfTimeError, last_lines, run_program
from rdmacoll.errors import ConfigError

_INSTALL_S = 3600
_NICE = ("nice", "-n", "19")


@dataclass(frozen=True)
class Environment:
    """An environment of a library. pip installs the packages in this order."""

    packages: tuple[tuple[str, ...], ...]
    newest_python: tuple[int, int] = (3, 99)
    settings: tuple[str, ...] = ()
    cost: str = "less than a minute"


ENVIRONMENTS = {
    "grpcio": Environment((("grpcio", "numpy"),)),
    # The gRPC of this TensorFlow is faster than that of newer ones.
    "tf-grpc": Environment((("tensorflow-cpu==2.15.1", "numpy<2"),), newest_python=(3, 11)),
    "mpich": Environment((("mpich", "mpi4py>=4", "numpy"),)),
    "intelmpi": Environment((("impi-rt", "mpi4py>=4", "numpy"),)),
    "horovod": Environment(
        (
            ("pip<25", "setuptools<70", "wheel"),
            (
                *("tensorflow-cpu==2.15.1", "numpy<2", "cloudpickle", "psutil", "pyyaml", "packaging"),
                *("cffi", "mpi4py>=4"),
            ),
            ("--no-build-isolation", "horovod==0.28.1"),
        ),
        newest_python=(3, 11),  # the limit of TensorFlow 2.15
        settings=(
            *("MAKEFLAGS=-j2", "HOROVOD_WITH_TENSORFLOW=1", "HOROVOD_WITH_MPI=1", "HOROVOD_WITH_GLOO=1"),
            *("HOROVOD_WITHOUT_PYTORCH=1", "HOROVOD_WITHOUT_MXNET=1"),
        ),
        cost="some minutes of compiling",
    ),
}


def folder_of(name: str, cache: Path) -> Path:
    """The folder of an environment."""
    return cache / "peers" / name


def python_of(name: str, cache: Path) -> Path | None:
    """The environment's Python, or None if it is not installed."""
    if name == "own":
        return Path(sys.executable)
    folder = folder_of(name, cache)
    return folder / "bin" / "python" if (folder / "installed").exists() else None


def base_python(newest: tuple[int, int]) -> str:
    """A Python that is not newer than `newest`. Raises ConfigError."""
    if sys.version_info[:2] <= newest:
        return sys.executable
    for minor in range(newest[1], 8, -1):
        found = shutil.which(f"python3.{minor}")
        if found:
            return found
    raise ConfigError(
        f"there is no Python from 3.9 to {newest[0]}.{newest[1]} beside {sys.executable}, which is "
        f"{sys.version_info[0]}.{sys.version_info[1]}: install one, with its venv module."
    )


def _open_lock(path: Path) -> TextIO:
    """The file of a lock. Raises ConfigError if the cache cannot have it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}. Set RDMACOLL_CACHE to a folder that can be written."
        ) from None


@contextmanager
def _alone(name: str, cache: Path, report: Callable[[str], None]) -> Iterator[bool]:
    """Holds the lock of an environment. Yields whether another process had it before. The kernel releases the
    lock when its process ends. The file names the process that holds it."""
    with _open_lock(cache / "peers" / f"{name}.lock") as lock:
        has_waited = False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            report(f"{name}: waiting for {lock.read() or 'another process'}, which is installing it")
            fcntl.flock(lock, fcntl.LOCK_EX)
            has_waited = True
        except OSError as error:
            report(f"{name}: {lock.name} cannot be locked: {error.strerror}. Start no other install of it.")
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {os.uname().nodename}")
        lock.flush()
        try:
            yield has_waited
        finally:
            lock.truncate(0)


def install(name: str, cache: Path, report: Callable[[str], None]) -> None:
    """Removes an environment and installs it again. If another process is installing it, waits for that
    one's instead. Raises ConfigError with the last lines of a failed command."""
    with _alone(name, cache, report) as has_waited:
        if has_waited and python_of(name, cache) is not None:
            report(f"{name}: installed")
        else:
            _install(name, cache, report)


def _install(name: str, cache: Path, report: Callable[[str], None]) -> None:
    environment, folder = ENVIRONMENTS[name], folder_of(name, cache)
    base = base_python(environment.newest_python)
    report(f"{name}: installing into {folder}, {environment.cost}")
    shutil.rmtree(folder, ignore_errors=True)
    _run(name, [base, "-m", "venv", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    # Horovod's build searches PATH for programs of its environment.
    path = ["sh", "-c", 'PATH="$0/bin:$PATH" exec "$@"', str(folder)]
    for packages in environment.packages:
        _run(name, [*path, "env", *environment.settings, *pip, *packages])
    (folder / "installed").touch()


def _run(name: str, command: list[str]) -> None:
    said = f"{name}: {' '.join(command)}"
    try:
        done = run_program([*_NICE, *command], _INSTALL_S)
    except OutOfTimeError as error:
        last = last_lines(error.output) or "nothing"
        raise ConfigError(
            f"{said} did not end within {_INSTALL_S} s. It printed last: {last}. Look whether its package "
            "index can be reached, and start it again."
        ) from None
    if done.returncode:
        raise ConfigError(f"{said} failed ({done.returncode}): {last_lines(done.stdout)}")
