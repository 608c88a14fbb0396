"""The type of options that name a transport. The library's table of transports has the names."""

from __future__ import annotations

import click

from rdmacoll._abi.library import load
from rdmacoll.engine.errors import ConfigError


def transport(name: str) -> str:
    """A name in the table of transports. The library is loaded when the option is given."""
    try:
        names = [row["name"] for row in load().transports()]
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    if name not in names:
        listed = ", ".join(f"'{one}'" for one in names)
        raise click.BadParameter(f"'{name}' is not one of {listed}.")
    return name
