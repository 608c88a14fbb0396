"""Values from outside: variables, arguments, flags and files.

Functions here return the value, or refuse it in one sentence with the name, the value and the cure. They
raise ConfigError and nothing else, whatever the value is.
"""

from __future__ import annotations

import json
import operator
import os
import stat
from pathlib import Path
from typing import Any, Union

from rdmacoll.errors import ConfigError

_SHOWN_MAX = 120  # characters of a value in a message
_DIGITS_MAX = 18  # digits of a number that fits 63 bits
_FILE_BYTES_MAX = 256 << 20
PathLike = Union[str, "os.PathLike[str]"]


def shown(value: object) -> str:
    """A value in the form for messages: short and printable, whatever it is.

    >>> shown("node1"), shown("x" * 500)[-20:], shown(chr(0xD800))
    ("'node1'", '... (500 characters)', "'\\\\ud800'")
    """
    try:
        text = repr(value)
    except Exception:  # also for an integer with more digits than Python converts
        return f"a {type(value).__name__} that cannot be printed"
    text = text.encode("ascii" if not text.isprintable() else "utf-8", "backslashreplace").decode()
    if len(text) <= _SHOWN_MAX:
        return text
    return f"{text[:_SHOWN_MAX]}... ({len(value) if isinstance(value, str) else len(text)} characters)"


def refusal(name: str, value: object, what: str, cure: str) -> ConfigError:
    """The error for a value that cannot be used."""
    return ConfigError(f"{name}={shown(value)} {what}: {cure}.")


def text_of(name: str, value: object, cure: str = "give a text of one line") -> str:
    """The value as one line of text that every program can read. Raises ConfigError.

    >>> text_of("port", 4000), text_of("device", "mlx5_0")
    ('4000', 'mlx5_0')
    """
    try:
        text = str(value)
    except Exception:
        raise refusal(name, value, "cannot be written as a text", cure) from None
    if "\n" in text or "\0" in text:
        raise refusal(name, value, f"holds a {'line break' if chr(10) in text else 'NUL'}", cure)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise refusal(name, value, "is no text in UTF-8", cure) from None
    return text


def whole_of(name: str, value: object, cure: str = "give a whole number") -> int:
    """A whole number, given as a number or as digits. Raises ConfigError.

    >>> whole_of("RANK", "3"), whole_of("RANK", " 12 "), whole_of("rank", -1)
    (3, 12, -1)
    """
    number: int | None = None
    if isinstance(value, str):
        digits = value.strip().lstrip("+-") if value.isascii() else ""
        is_number = digits.isdigit() and len(value.strip()) - len(digits) <= 1
        number = int(value) if is_number and len(digits) <= _DIGITS_MAX else None
        is_large = is_number and number is None
    else:
        try:
            number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
        except Exception:
            number = None
        is_large = number is not None and abs(number) >= 10**_DIGITS_MAX
    if is_large:
        raise refusal(name, value, "is too large", cure)
    if number is None:
        raise refusal(name, value, "is not a whole number", cure)
    return number


def json_of(name: str, text: str, cure: str) -> Any:
    """The content of a JSON text. Raises ConfigError, also for a text that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise refusal(name, text, "is nested too deeply", cure) from None
    except ValueError as error:
        raise refusal(name, text, f"is not JSON ({error})", cure) from None


def path_of(name: str, value: PathLike, cure: str = "give a path") -> str:
    """The path as the operating system takes it. Raises ConfigError."""
    try:
        path = os.fspath(value)
        if isinstance(path, str):
            os.fsencode(path)
    except (TypeError, UnicodeEncodeError):
        raise refusal(name, value, "is no path", cure) from None
    if not isinstance(path, str) or not path or "\0" in path:
        raise refusal(name, value, "is no path", cure)
    return path


def file_text(path: Path, cure: str) -> str:
    """The content of a file, as UTF-8. Raises ConfigError.

    Refuses all but regular files: a FIFO would block, and a device has no end.
    """
    name = "the file"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise ConfigError(f"{name} {shown(str(path))} is no regular file: {cure}.")
            if facts.st_size > _FILE_BYTES_MAX:
                raise ConfigError(f"{name} {shown(str(path))} has {facts.st_size} bytes: {cure}.")
            return file.read().decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{name} {shown(str(path))} is no text in UTF-8: {cure}.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{name} {shown(str(path))} cannot be read: {reason}; {cure}.") from None
