"""`rdmacoll config`: the settings, their effective values, and where each came from."""

from __future__ import annotations

import click

from rdmacoll.cli.report import Findings, command, is_speaker
from rdmacoll.engine.library import load


@click.command()
@click.option("--all", "everything", is_flag=True, help="With what each one means and allows.")
@command("config")
def config(*, everything: bool) -> Findings:
    """Prints every setting: documented default, effective value, and its source."""
    rows = load().settings()
    if is_speaker():
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for title in ("setting", "default", "value", "source", *(("help",) if everything else ())):
            table.add_column(title, overflow="fold")
        for row in rows:
            name = f"{row['name']}\n  {row['alias']}" if row["alias"] else row["name"]
            texts = [name, row["default"] or "-", row["value"] or "-", row["source"]]
            if everything:
                texts.append(f"{row['help']} ({row['allowed']}; {row['scope']})")
            table.add_row(*texts)
        console = Console()
        console.print(table)
        for row in rows:
            if row.get("note"):
                console.print(f"note: {row['note']}", highlight=False)
    return {"ok": True, "settings": rows}
