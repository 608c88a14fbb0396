"""The type of options that name an allreduce algorithm. The library's table of algorithms has the names."""

from __future__ import annotations

import click

from rdmacoll._abi.library import load
from rdmacoll.errors import ConfigError

AUTO = "auto"


def names() -> list[str]:
    """ "auto", and the algorithms that RDMACOLL_ALLREDUCE_ALGORITHM can force. Raises ConfigError."""
    return [AUTO, *(row["name"] for row in load().algorithms() if row["can_be_forced"])]


def names_between_nodes() -> list[str]:
    """ "auto", and those of these algorithms that it may choose between nodes. Raises ConfigError."""
    rows = [row for row in load().algorithms() if row["can_be_forced"] and row["between_nodes"]]
    return [AUTO, *(row["name"] for row in rows)]


def algorithm(name: str) -> str:
    """One of these names. The library is loaded when the option is given."""
    try:
        allowed = names()
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    if name not in allowed:
        listed = ", ".join(f"'{one}'" for one in allowed)
        raise click.BadParameter(f"'{name}' is not one of {listed}.")
    return name


def algorithms(listed: str) -> list[str]:
    """Several names with commas between."""
    return [algorithm(name) for name in listed.split(",")]
