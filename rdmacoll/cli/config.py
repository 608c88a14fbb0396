"""`rdmacoll config`: the settings, their effective values, and their sources."""

from __future__ import annotations

from typing import Any

import click

from rdmacoll._abi.library import load
from rdmacoll._base.text import bytes_text
from rdmacoll._world.init_options import read_options
from rdmacoll.cli.report import Findings, command, print_line, print_prose, print_table


@click.command()
@click.option(
    "--all", "everything", is_flag=True, help="Show also the meaning and the allowed values of each setting."
)
@command("config")
def config(*, everything: bool) -> Findings:
    """Prints every setting, its value and its source.

    Defaults are printed, too.
    """
    rows = _rows()
    if everything:
        for row in rows:
            _print_block(row)
    else:
        _print_table(rows)
    for row in rows:
        if row.get("note"):
            print_prose(f"note: {row['note']}")
    return {"ok": True, "settings": rows}


def _rows() -> list[dict[str, Any]]:
    """The rows of the table, including settings that TF_CONFIG makes. Raises ConfigError."""
    library = load()
    rows = library.settings()
    options = read_options(library, None, {}, by_hand={}, argv=False, lists={})
    if options.listed is None:
        return rows
    for row in (rows := library.settings(options.arguments)):
        if row["source"] == "argument":
            row["source"] = "environment"
            row["note"] = f"{row['name']}={row['value']} is from {options.listed.describe()}"
    return rows


def _shown(row: dict[str, Any], key: str) -> str:
    """A value with its unit, for people. An empty value is "automatic": it is chosen at the start.

    >>> [_shown({"value": value, "unit": "bytes"}, "value") for value in ("26214400", "1000", "")]
    ['25 MiB', '1000 B', 'automatic']
    >>> [_shown({"value": value, "unit": "microseconds"}, "value") for value in ("50", "automatic")]
    ['50 us', 'automatic']
    """
    text = str(row[key])
    if not text[:1].isdigit():
        return text or "automatic"
    if row["unit"] == "bytes":
        short = bytes_text(int(text))
        return f"{text} B" if short == text else f"{short[:-1]} {short[-1]}iB"
    short_unit = {"seconds": " s", "microseconds": " us"}.get(row["unit"], "")
    return text + short_unit


def _print_block(row: dict[str, Any]) -> None:
    aliases = row["aliases"]
    alias = f" ({'alias' if len(aliases) == 1 else 'aliases'} {', '.join(aliases)})" if aliases else ""
    values = f"value {_shown(row, 'value')} ({row['source']}), default {_shown(row, 'default')}"
    rules = f"Allowed: {row['allowed']}. Scope: {row['scope']}."
    print_prose(f"{row['name']}{alias}", hanging=" " * 8)
    for text in (values, row["help"], rules):
        print_prose(text, " " * 4)
    print_line()


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("setting", no_wrap=True)  # a user copies names, so they stay in one piece
    for title in ("default", "value", "source"):
        table.add_column(title, overflow="fold")
    for row in rows:
        name = "\n  ".join([row["name"], *row["aliases"]])
        table.add_row(name, _shown(row, "default"), _shown(row, "value"), row["source"])
    print_table(table)
