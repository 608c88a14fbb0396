"""`rdmacoll bench p2p-latency`, `p2p-bandwidth`, `ps-throughput`, `fully-connected`: beside gRPC."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import click

from rdmacoll._base.text import bytes_text, counted
from rdmacoll._start import bootstrap
from rdmacoll.benchmarks.compare import MACHINE, cable_of
from rdmacoll.benchmarks.machine import machine_line
from rdmacoll.benchmarks.rpc import judge, payloads
from rdmacoll.benchmarks.rpc.libraries import OURS, OURS_BY_TCP, PEERS, libraries
from rdmacoll.benchmarks.rpc.measure import Measurement, PayloadRequest
from rdmacoll.benchmarks.turns import Rules
from rdmacoll.cli.bench_compare import links_of, names_of, refuse_launched
from rdmacoll.cli.bench_machine import shown_machine
from rdmacoll.cli.bench_pair import sizes_of
from rdmacoll.cli.report import Findings, command, parse_bytes, print_line, print_rows
from rdmacoll.cli.rules_options import takes_rules, takes_seconds

_OURS = (OURS, OURS_BY_TCP)


def takes_payloads(sizes: str, kinds: str) -> Callable[..., Any]:
    """Adds the options about the payloads to a command. The command gets them together as `sent`, a list
    of payloads."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.option(
            "--payload",
            default=kinds,
            show_default=True,
            help="Payloads, with commas: uniform, random, skewed, or files of rdmacoll bench record.",
        )
        @click.option(
            "--sizes", default=sizes, show_default=True, help="Sizes of payloads of one buffer: 2:8M."
        )
        @click.option(
            "--iovec",
            default=10,
            show_default=True,
            type=click.IntRange(1, 1000),
            help="The number of buffers of a payload.",
        )
        @click.option("--small", default=str(payloads.SMALL), show_default=True)
        @click.option("--medium", default=bytes_text(payloads.MEDIUM), show_default=True)
        @click.option("--large", default=bytes_text(payloads.LARGE), show_default=True)
        @click.option("--seed", default=1, show_default=True, help="The seed of random payloads.")
        @functools.wraps(function)
        def with_payloads(
            *arguments: Any,
            payload: str,
            sizes: str,
            iovec: int,
            small: str,
            medium: str,
            large: str,
            seed: int,
            **named: Any,
        ) -> Any:
            recipe = payloads.Recipe(iovec, parse_bytes(small), parse_bytes(medium), parse_bytes(large), seed)
            single = payloads.single(sizes_of(sizes) if sizes else [], bytes_text)
            sent = [*single, *payloads.payloads_of(payload, recipe)]
            if not sent:
                raise click.BadParameter("--payload and --sizes are both empty: nothing would be sent")
            return function(*arguments, sent=sent, **named)

        return with_payloads

    return wrap


def takes_run(links: str) -> Callable[..., Any]:
    """Adds the options that all of these commands have. The command gets `run`, a function of (name,
    exchanges, workers, servers, payloads in flight), which sends the payloads of `sent`."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.option(
            "--peer",
            "peers",
            multiple=True,
            help=f"all, or one of {', '.join(PEERS)}; may be given several times.",
        )
        @click.option("--ours", default="all", show_default=True, help=f"all, or some of {', '.join(_OURS)}.")
        @click.option(
            "--links",
            default=links,
            show_default=True,
            help="The links: machine, or Gbit/s between two hosts (1,10).",
        )
        @takes_rules
        @takes_seconds(1800.0)
        @click.option(
            "--plot", type=click.Path(dir_okay=False), help="Draw the result here (needs matplotlib)."
        )
        @functools.wraps(function)
        def with_run(
            *arguments: Any,
            peers: tuple[str, ...],
            ours: str,
            links: str,
            rules: Rules,
            seconds: float,
            plot: str | None,
            sent: list[payloads.Payload],
            **named: Any,
        ) -> Any:
            names = [
                *names_of(ours, list(_OURS), "--ours"),
                *names_of(",".join(peers), list(PEERS), "--peer"),
            ]
            names = list(PEERS) + names if "all" in peers else names

            def run(
                title: str,
                exchanges: list[str],
                workers: int,
                servers: int,
                in_flight: int = 1,
                ours_in_flight: int = 1,
            ) -> Findings:
                rows = libraries(everybody=not servers)
                request = PayloadRequest(
                    [rows[name] for name in rows if name in names],
                    exchanges,
                    sent,
                    workers,
                    servers,
                    (in_flight, ours_in_flight),
                    links_of(links, [2]),
                    bootstrap.cache_folder(),
                    rules,
                    seconds,
                )
                return measured(title, request, plot)

            return function(*arguments, run=run, **named)

        return with_run

    return wrap


def measured(title: str, request: PayloadRequest, plot: str | None) -> Findings:
    """Runs the measurement, prints it, and returns it as findings."""
    refuse_launched()
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError(
            "--plot needs matplotlib, which is not installed: pip install 'rdmacoll[plot]'."
        )
    print_line(machine_line())
    measurement = Measurement(request, lambda text: click.echo(text, err=True))

    def missed(part: dict[str, Any]) -> list[str]:
        return judge.missed(title, part["rows"], None if part["link"] == MACHINE else float(part["link"]))

    def show(part: dict[str, Any]) -> None:
        print_line(f"\n{part['title']}{cable_of(part)}")
        for name, facts in part["libraries"].items():
            print_line(f"{name}: {facts['version']}")
        for lines in (judge.table(title, part["rows"]), judge.costs(part["rows"])):
            print_line()
            print_rows(lines)
        print_line()
        for sentence in missed(part):
            print_line(f"- {sentence}")

    measurement.run(show)
    machine = shown_machine()
    rows = [row for part in measurement.parts for row in part["rows"]]
    wrong = sum(cell["wrong"] for row in rows for cell in row["time_us"].values())
    for text in measurement.left_out:
        print_line(text)
    print_line(counted(wrong, "wrong payload"))
    found: Findings = {
        "ok": wrong == 0 and bool(rows),
        "what": title,
        **machine,
        "settings": {
            "workers": request.workers,
            "servers": request.servers,
            "in_flight": request.under_way[0],
            "ours_in_flight": request.under_way[1],
            "turns": request.rules.turns,
            "burst_s": request.rules.burst_s,
            "foreign_share_max": request.rules.foreign_of_sleepers,
        },
        "payloads": {payload.name: payload.sizes for payload in request.payloads},
        "parts": measurement.parts,
        "missed": {part["link"]: missed(part) for part in measurement.parts},
        "left_out": measurement.left_out,
        "wrong": wrong,
    }
    if plot is not None:
        importlib.import_module("rdmacoll.benchmarks.rpc.plot").draw(found).savefig(plot)
    return found


_workers = click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 64))
_servers = click.option("--servers", default=1, show_default=True, type=click.IntRange(1, 64))
_in_flight = click.option(
    "--in-flight",
    default=4,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Payloads that a worker of a peer has in flight.",
)
_our_in_flight = click.option(
    "--ours-in-flight",
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Payloads that a worker of rdmacoll has in flight, one for each thread.",
)


@click.command("p2p-latency")
@takes_payloads("2,64,1K,4K,16K,64K,256K,1M,8M", ",".join(payloads.KINDS))
@takes_run(MACHINE)
@command("bench p2p-latency")
def latency(*, run: Callable[..., Findings]) -> Findings:
    """The round trip of a payload between worker and server.

    As much travels there as back.

    Ours is rdmacoll.ps.exchange, with the update that comes with it (a subtraction), from numpy arrays to new
    ones. grpcio sends bytes that are there already, and gets them back. TensorFlow makes 8 round trips in one
    session.run, one after the other. Times are microseconds.
    """
    return run("p2p-latency", ["round-trip"], 1, 1)


@click.command("p2p-bandwidth")
@_in_flight
@_our_in_flight
@takes_payloads("64K,1M,8M", ",".join(payloads.KINDS))
@takes_run(MACHINE)
@command("bench p2p-bandwidth")
def bandwidth(*, in_flight: int, ours_in_flight: int, run: Callable[..., Findings]) -> Findings:
    """Payloads from a worker to a server, each acknowledged. MB are 10^6 bytes.

    Ours are pushes with the update (a subtraction), one after the other: each has chunks under way. Peers
    only keep what arrives, and have several payloads under way.
    """
    return run("p2p-bandwidth", ["push"], 1, 1, in_flight, ours_in_flight)


@click.command("ps-throughput")
@_workers
@_servers
@_in_flight
@_our_in_flight
@takes_payloads("", ",".join(payloads.KINDS))
@takes_run(MACHINE)
@command("bench ps-throughput")
def throughput(
    *, workers: int, servers: int, in_flight: int, ours_in_flight: int, run: Callable[..., Findings]
) -> Findings:
    """Workers push payloads to servers and pull them.

    Results are payloads and MB per second of all workers.

    Servers share a payload's buffers. Ours and grpcio make one call of a payload to a server, TensorFlow one
    for each buffer. Ours pushes with the update (a subtraction).
    """
    return run("ps-throughput", ["pull", "push"], workers, servers, in_flight, ours_in_flight)


@click.command("fully-connected")
@click.option("--ranks", default=3, show_default=True, type=click.IntRange(2, 64))
@_in_flight
@takes_payloads("2M,4M,8M", "")
@takes_run(MACHINE)
@command("bench fully-connected")
def everybody(*, ranks: int, in_flight: int, run: Callable[..., Findings]) -> Findings:
    """Every process sends its payload to every other one.

    Ours is a grouped allgather of the payload's buffers. Peers push, and have several payloads under way to
    each other process. Payloads and MB per second are of all pairs.
    """
    return run("fully-connected", ["push"], ranks, 0, in_flight)


COMMANDS = (latency, bandwidth, throughput, everybody)
