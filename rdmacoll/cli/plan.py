"""`rdmacoll plan`: the algorithm that would run, the cost of each algorithm, and the steps of one rank."""

from __future__ import annotations

from typing import Any

import click

from rdmacoll._abi.plan_query import OPERATIONS, explain
from rdmacoll._base.text import bytes_text, counted
from rdmacoll.cli.number_option import GBIT_MAX, GBIT_MIN, MICROSECONDS_MAX, Number
from rdmacoll.cli.plan_measure import measured_beside_model, time_text
from rdmacoll.cli.report import (
    Findings,
    command,
    is_rank_0,
    parse_bytes,
    print_line,
    print_prose,
    print_table,
)
from rdmacoll.cli.transport_option import TransportName, networks
from rdmacoll.operators import REDUCIBLE, Sum, is_reducible

_BYTES_MEANING = (
    "Bytes of each rank; for allgather and gather of all ranks together; for scatter of the root."
)
_DTYPES = [name for name in REDUCIBLE if is_reducible(name, Sum)]
# The meaning of the words of a schedule. The rest of a line is the source, the target, and the steps before.
_STEP_MEANINGS = {
    "send": "its bytes go to that rank",
    "receive": "the next bytes of that rank come here",
    "reduce": "the sources are combined here",
    "copy": "the source is copied here",
    "publish": "that rank reads it where it lies",
    "await": "that rank publishes where to read",
    "pack": "the caller's memory is copied to where peers see it",
    "unpack": "back to the caller's memory",
}


@click.command()
@click.option("--op", "operation", type=click.Choice(OPERATIONS), default="allreduce", show_default=True)
@click.option(
    "--ranks", default=8, show_default=True, type=click.IntRange(min=1), help="The number of ranks."
)
@click.option(
    "--nodes",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="The number of nodes that these ranks are on.",
)
@click.option(
    "--bytes",
    "size",
    help="Bytes of each rank. For allgather and gather: of all ranks together. For scatter: of the root. "
    "Default: 1M, with --measure 64K to 64M.",
)
@click.option(
    "--dtype",
    type=click.Choice(_DTYPES),
    default="float32",
    show_default=True,
    help="The dtype of a reduction.",
)
@click.option("--algorithm", help="The algorithm whose schedule is shown; default: the chosen one.")
@click.option(
    "--rank",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="The rank whose schedule is shown.",
)
@click.option(
    "--network",
    type=TransportName(is_network=True),
    help="The transport between nodes. Default: the first one that settings do not turn off.",
)
@click.option(
    "--latency-us",
    type=Number(0.001, MICROSECONDS_MAX),
    help="The latency of the network. Default: the usual one.",
)
@click.option(
    "--gbit", type=Number(GBIT_MIN, GBIT_MAX), help="The rate of the network for each node and direction."
)
@click.option(
    "--servers",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="The number of parameter servers.",
)
@click.option(
    "--measure",
    "measures",
    is_flag=True,
    help="Run the operation on the ranks of this launcher, and print its time beside the model's.",
)
@command("plan")
def plan(
    *,
    operation: str,
    ranks: int,
    nodes: int,
    size: str | None,
    dtype: str,
    algorithm: str | None,
    rank: int,
    network: str | None,
    latency_us: float | None,
    gbit: float | None,
    servers: int,
    measures: bool,
) -> Findings:
    """Explains which algorithm an operation gets, and why.

    It prints the cost of each algorithm and the steps of a rank, and runs nothing.

    The costs come from executing the schedules of all ranks against a model of the links. Settings of the
    environment count: RDMACOLL_ALLREDUCE_ALGORITHM, RDMACOLL_ORDER, RDMACOLL_SEGMENT_BYTES,
    RDMACOLL_LINK_GBIT, and those that turn a transport off. So does the profile of this machine, if a start
    or `rdmacoll tune` has kept one.

    --measure runs the operation, and prints its time beside the model's:

    rdmacoll run -np 2 rdmacoll plan --op allreduce --measure
    """
    if measures:
        return measured_beside_model(operation, None if size is None else parse_bytes(size))
    count = parse_bytes(size or "1M")
    rows = networks()
    # The last row reaches every rank, and carries what no other row carries.
    chosen = next((row for row in rows if row["name"] == network or not (network or row["is_off"])), rows[-1])
    found = explain(
        operation,
        ranks=ranks,
        nodes=nodes,
        count=count,
        dtype=dtype,
        rank=rank,
        algorithm=algorithm,
        via_nic=chosen["via_nic"],
        latency_us=latency_us or 0.0,  # 0: the usual one
        gbit_per_s=gbit or 0.0,
        servers=servers,
    )
    if is_rank_0():
        title = f"{operation} of {bytes_text(count)} bytes"
        _print(f"{title} of {dtype}" if _adds(found) else title, count, ranks, rank, chosen["name"], found)
    request = {"operation": operation, "dtype": dtype, "ranks": ranks, "bytes": count, "rank": rank}
    return {"ok": True, **request, **found}


def _print(title: str, count: int, ranks: int, rank: int, network: str, found: dict[str, Any]) -> None:
    per_node = [found["nodes"].count(node) for node in range(max(found["nodes"]) + 1)]
    location = f"on {counted(len(per_node), 'node')}"
    if len(per_node) > 1:
        location += f" ({' + '.join(str(ranks_of_node) for ranks_of_node in per_node)}) joined by {network}"
    servers = len(found["nodes"]) - ranks
    ranks_text = (
        counted(ranks, "rank")
        if servers == 0
        else f"{counted(ranks, 'worker')}, {counted(servers, 'server')}"
    )
    print_prose(f"{title}, {ranks_text} {location}")
    print_prose(f"{found['algorithm']} is chosen. {found['reason'][:1].upper()}{found['reason'][1:]}.")
    if found["why_not_cheapest"]:
        costs = {row["algorithm"]: float(row["time_us"]) for row in found["costs"]}
        less = 1 - costs[found["cheapest"]] / costs[found["algorithm"]]
        if less >= 0.01:
            print_prose(
                f"In the model {found['cheapest']} takes {less:.0%} less: {found['why_not_cheapest']}."
            )
    print_line()
    _print_costs(count, found)
    print_line()
    print_prose(
        f"The steps of rank {rank} in each segment of {found['shown']}, as the algorithm defines them:"
    )
    _print_steps(found["schedule"])
    if found["lowered"] != found["schedule"]:
        print_line()
        print_line("... and as they run, fitted to the memory that ranks see of each other:")
        _print_steps(found["lowered"])
    print_line()
    used = {line.split()[1] for line in _steps_of(found["schedule"]) + _steps_of(found["lowered"])}
    for word, meaning in _STEP_MEANINGS.items():
        if word in used:
            print_line(f"  {word:<8} {meaning}")


def _adds(found: dict[str, Any]) -> bool:
    return found["costs"][0]["canonical"] is not None


def _print_costs(count: int, found: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("algorithm", no_wrap=True)
    for title in ("formula", "model", "GB/s", "messages", "network", "cut"):
        table.add_column(title, justify="right", no_wrap=True)
    is_sum = _adds(found)
    if is_sum:
        table.add_column("order", no_wrap=True)
    for row in sorted(found["costs"], key=lambda cost: float(cost["time_us"])):
        chosen = row["algorithm"] == found["algorithm"]
        table.add_row(
            f"{row['algorithm']}{' *' if chosen else ''}",
            _formula_text(row["formula_us"]),
            time_text(row["time_us"]),
            f"{count / row['time_us'] / 1e3:.2f}",
            str(row["messages"]),
            _binary(row["network_bytes"]),
            f"{row['segments']} x {row['parts']}",
            *(["canonical" if row["canonical"] else "own"] if is_sum else []),
        )
    print_table(table)
    order = " order: canonical, or the algorithm's own." if is_sum else ""
    formula = " formula: the cost that decides (none: no candidate)."
    print_prose(
        "* is chosen. messages: of the rank that sends most. network: sent to other nodes by the node that "
        f"sends most. cut: segments x parts.{order}{formula}"
    )


def _formula_text(cost_us: float | None) -> str:
    return "none" if cost_us is None else time_text(cost_us)


def _binary(count: int) -> str:
    return f"{count / 1024:.0f} KiB" if count < 10 << 20 else f"{count / (1 << 20):.0f} MiB"


def _steps_of(schedule: str) -> list[str]:
    return schedule.splitlines()[1:]


def _print_steps(schedule: str) -> None:
    for line in _steps_of(schedule):
        number, rest = line.split(" ", 1)
        print_prose(f"{number:>3} {rest}", "  ", " " * 8)
