"""The type of options that name a transport. The library's table of transports has the names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rdmacoll._abi.library import load
from rdmacoll.errors import ConfigError


def networks() -> list[dict[str, Any]]:
    """The rows of transports that connect nodes, in order of preference. Raises ConfigError."""
    return [row for row in load().transports() if not row["shares_memory"]]


if TYPE_CHECKING:
    _Type = click.ParamType[str]
else:
    _Type = click.ParamType  # older versions of click have no generic class


class TransportName(_Type):
    """A name in the table of transports. The library is loaded when the option is given, or its help."""

    name = "transport"

    def __init__(self, *, is_network: bool = False) -> None:
        self._is_network = is_network

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Checks the name. Wrong names are wrong usage."""
        try:
            names = self._names()
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        if value not in names:
            self.fail(f"{value!r} is not one of {', '.join(map(repr, names))}.", param, ctx)
        return value

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str | None:
        """The names, as help shows them. Without the library help is shown, too, and has none."""
        try:
            return f"[{'|'.join(self._names())}]"
        except ConfigError:
            return None

    def _names(self) -> list[str]:
        return [row["name"] for row in (networks() if self._is_network else load().transports())]
