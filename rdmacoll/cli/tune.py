"""`rdmacoll tune`: measures this machine, and keeps its profile for later starts."""

from __future__ import annotations

import click

from rdmacoll._abi.library import load
from rdmacoll.cli.profile_text import table_rows
from rdmacoll.cli.report import Findings, command, is_rank_0, print_line, print_prose, print_table
from rdmacoll.errors import ConfigError


@click.command()
@command("tune")
def tune() -> Findings:
    """Measures this machine, and keeps its profile.

    It takes 20 seconds at most. Later starts use the profile.

    The profile tells what copies, sums, one-copy reads and signals between cores cost. By it rank 0 chooses
    algorithms within a node. The first start on a machine measures most of it in 20 ms. This command measures
    longer, and memory beyond the caches, too, by one core and by all at once. It also shows what copies
    between pinned memory and GPUs cost. Jobs measure that themselves, when they first use a GPU. Run the
    command while the machine is idle, with all cores that the ranks of a node have. The file is that of
    RDMACOLL_PROFILE.
    """
    if not is_rank_0():
        return {"ok": True}  # the ranks of a launcher would disturb each other
    found = load().machine_profile(measure=True)
    if found["source"] == "off":
        raise ConfigError("RDMACOLL_PROFILE=off forbids a profile: unset it, or name a file.")
    from rich.table import Table

    print_line(found["machine"])
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for row in table_rows(found):
        table.add_row(*row)
    print_table(table)
    print_prose(found["note"] or f"Measured in {found['took_s']:.1f} s, and kept in {found['path']}.")
    return {"ok": not found["note"], **found}
