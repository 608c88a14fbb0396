"""The descriptors 0, 1 and 2, into which whatever prints writes."""

from __future__ import annotations

import os

from rdmacoll.engine.errors import ConfigError

_LAST = 2


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def fill_standard_descriptors() -> None:
    """Opens /dev/null where a process was started without stdin, stdout or stderr.

    The first sockets would take these numbers: ours, MPI's, and those that a verbs driver opens itself, so
    that a line printed by anybody would go to another rank. They stay open: whoever closed them may still
    print. Raises ConfigError.
    """
    while not all(_is_open(number) for number in range(_LAST + 1)):
        try:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        except OSError as error:
            raise ConfigError(
                f"stdin, stdout or stderr of this process is closed, and {os.devnull} cannot take its place: "
                f"{error.strerror}. Start the process with these three."
            ) from None
        if opened > _LAST:  # another thread was faster
            os.close(opened)
