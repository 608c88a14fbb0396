"""Settings from arguments of `init()`. They pass through to the table in cpp/settings/settings_table.cc."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from rdmacoll._base.external_values import text_of
from rdmacoll.errors import ConfigError

PREFIX = "RDMACOLL_"


def argument_name(name: str, known: Sequence[str]) -> str:
    """The variable that an argument of `init()` stands for.

    >>> argument_name("stall_error_s", ["RDMACOLL_STALL_ERROR_S", "RDMACOLL_ORDER"])
    'RDMACOLL_STALL_ERROR_S'
    """
    upper_name = name.upper()
    for candidate in (PREFIX + upper_name, upper_name):
        if candidate in known:
            return candidate
    short = [row[len(PREFIX) :].lower() for row in known if row.startswith(PREFIX)]
    near = difflib.get_close_matches(name.lower(), short, n=1)
    hint = f" Did you mean {near[0]}?" if near else " `rdmacoll config` lists them."
    raise ConfigError(f"init() has no setting {name!r}.{hint}")


def argument_text(name: str, value: object) -> str:
    """A Python value in the form of a variable. Raises ConfigError.

    >>> [argument_text("a", v) for v in (True, 4096, 0.5, ["shm", "tcp"])]
    ['true', '4096', '0.5', 'shm,tcp']
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(text_of(name, item) for item in value)
    return text_of(name, value, "`rdmacoll config` lists its values")


def arguments_text(settings: Mapping[str, object], known: Sequence[str]) -> str:
    """The lines "NAME=value" that the library reads. None means: not given."""
    return "".join(
        f"{argument_name(name, known)}={argument_text(name, value)}\n"
        for name, value in settings.items()
        if value is not None
    )


class Values:
    """The effective settings by name, and the source of each."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = {str(row["name"]): row for row in rows}

    def text(self, name: str) -> str:
        """The effective value."""
        return str(self._rows[name]["value"])

    def number(self, name: str) -> float:
        """The effective value of a setting that is a number."""
        return float(self.text(name))

    def is_set(self, name: str) -> bool:
        """Whether the user set it, in the environment or as an argument."""
        return str(self._rows[name]["source"]) in ("environment", "argument")

    def given(self, name: str) -> str:
        """The variable or argument that set it, as NAME=value; "" if it was not set."""
        return str(self._rows[name]["given"])

    def aliases(self) -> set[str]:
        """Names of other systems that set a setting."""
        return {str(alias) for row in self._rows.values() for alias in row["aliases"]}

    def number_if_set(self, name: str) -> float | None:
        """The number that the user set, in the environment or as an argument; None without one."""
        return self.number(name) if self.is_set(name) else None

    def names(self) -> list[str]:
        """All names, in the table's order."""
        return list(self._rows)
