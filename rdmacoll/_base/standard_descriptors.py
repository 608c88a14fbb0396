"""The standard descriptors 0, 1 and 2."""

from __future__ import annotations

import os

from rdmacoll.errors import ConfigError

_LAST = 2


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def fill_standard_descriptors() -> None:
    """Opens /dev/null for stdin, stdout or stderr if the process was started without them.

    Otherwise the first sockets would take these numbers: rdmacoll's, MPI's, and those of a verbs driver. A
    line that any code prints would then go to another rank. They stay open, since code that closed them may
    still print. Raises ConfigError.
    """
    while not all(_is_open(number) for number in range(_LAST + 1)):
        try:
            opened = os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
        except OSError as error:
            raise ConfigError(
                f"stdin, stdout or stderr of this process is closed, and {os.devnull} cannot take its place: "
                f"{error.strerror}. Start the process with these three."
            ) from None
        if opened > _LAST:  # another thread was faster
            os.close(opened)
