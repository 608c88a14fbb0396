"""The secret of jobs that no launcher's channel serves: a file that only its owner reads."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

from rdmacoll.engine.errors import ConfigError

SECRET_BYTES = 32


def _create(path: Path) -> None:
    """Atomic: link() lets exactly one of several comers give the file its name, complete."""
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

    Raises ConfigError when somebody else owns or could read the file.
    """
    path = Path(location).expanduser()
    try:
        if not path.exists():
            _create(path)
        if path.is_dir():  # which can be opened, and then not be read
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(
            f"RDMACOLL_SECRET_FILE={location}: {error.strerror}. Name a file that this user can write, "
            "the same content on every host, or start with mpirun, which spreads a secret itself."
        ) from None
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        if facts.st_uid != os.geteuid():
            raise ConfigError(
                f"{path} belongs to user {facts.st_uid}, not to {os.geteuid()} who runs this: name an "
                "own file with RDMACOLL_SECRET_FILE."
            )
        if stat.S_IMODE(facts.st_mode) & 0o077:
            raise ConfigError(
                f"{path} has mode {stat.S_IMODE(facts.st_mode):04o}, so others can read the job's "
                f"secret: chmod 600 {path}"
            )
        secret = file.read(4096).strip()
    if len(secret) < SECRET_BYTES // 2:
        raise ConfigError(
            f"{path} holds {len(secret)} bytes; a secret has at least {SECRET_BYTES // 2}. Remove the "
            "file, and the next start makes a good one."
        )
    return secret
