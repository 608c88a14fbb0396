"""The secret of jobs without a launcher's channel: a file that only its owner can read."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

from rdmacoll._base.external_values import shown
from rdmacoll.errors import ConfigError

SECRET_BYTES = 32
_BYTES_MIN = SECRET_BYTES // 2
_BYTES_MAX = 4096
# The minimum of different digits. One in two million random secrets of 16 hexadecimal digits has fewer.
_DISTINCT_MIN = 5


def _create(path: Path) -> None:
    """Creates the file atomically: link() lets one of several processes give a complete file the name."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(SECRET_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
    finally:
        os.unlink(draft)


def read_secret(location: str) -> bytes:
    """The secret in the file at `location`, which is created if it is missing.

    Raises ConfigError if another user owns or can read the file.
    """
    try:
        path = Path(location).expanduser()
        if not path.exists():
            _create(path)
        if path.is_dir():  # a directory can be opened, but not read
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        # O_NONBLOCK, since opening a FIFO would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError, RuntimeError) as error:  # also for a NUL, and for "~nobody/file"
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"RDMACOLL_SECRET_FILE={shown(location)}: {reason}. Name a file that this user can write, "
            "the same content on every host, or start with mpirun, which spreads a secret itself."
        ) from None
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise ConfigError(
                f"RDMACOLL_SECRET_FILE={shown(location)} is no regular file (a FIFO, a socket or a device): "
                "name a file, the same content on every host."
            )
        if facts.st_uid != os.geteuid():
            raise ConfigError(
                f"{path} belongs to user {facts.st_uid}, but user {os.geteuid()} runs this process: name a "
                "file of that user with RDMACOLL_SECRET_FILE."
            )
        if stat.S_IMODE(facts.st_mode) & 0o077:
            raise ConfigError(
                f"{path} has mode {stat.S_IMODE(facts.st_mode):04o}, so others can read the job's "
                f"secret: chmod 600 {path}"
            )
        try:
            secret = file.read(_BYTES_MAX + 1).strip()
        except OSError as error:  # a file of the kernel's, as in /proc
            raise ConfigError(f"{path} cannot be read: {error.strerror}. Name another file.") from None
    _check_strength(secret, path)
    return secret


def _check_strength(secret: bytes, path: Path) -> None:
    """Raises ConfigError for a secret that is too short or easy to guess."""
    cure = "Remove the file, and the next start makes a good one."
    if len(secret) < _BYTES_MIN:
        raise ConfigError(f"{path} holds {len(secret)} bytes; a secret has at least {_BYTES_MIN}. {cure}")
    if len(secret) > _BYTES_MAX:
        raise ConfigError(f"{path} holds more than {_BYTES_MAX} bytes, too many for a secret. {cure}")
    period = (secret + secret).index(secret, 1)  # the length of the repeated part: 4 in "abcdabcdabcdabcd"
    distinct = len(set(secret))
    if distinct < _DISTINCT_MIN or period < _BYTES_MIN or _is_run(secret):
        what = (
            f"has {distinct} different bytes"
            if distinct < _DISTINCT_MIN
            else "repeats or counts up a few bytes"
        )
        raise ConfigError(f"the secret in {path} {what}, so it can be guessed. {cure}")


def _is_run(secret: bytes) -> bool:
    """Whether most bytes follow from the byte before, as in "0123456789abcdef" or "zyxwvutsrqponmlk"."""
    steps = [after - before for before, after in zip(secret, secret[1:])]
    commonest = max(steps.count(step) for step in set(steps))
    return commonest * 4 >= len(steps) * 3
