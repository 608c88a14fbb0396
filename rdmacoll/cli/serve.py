"""`rdmacoll serve`: a parameter server without a script."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click

from rdmacoll._abi.library import load
from rdmacoll._abi.settings import Values
from rdmacoll._base.text import counted, moved_text
from rdmacoll._start import bootstrap
from rdmacoll._world import world
from rdmacoll.cli.number_option import Number
from rdmacoll.cli.report import Findings, command, print_here
from rdmacoll.errors import RdmacollError

_LISTS = ("ps_hosts", "worker_hosts")


def _writes_json(options: Mapping[str, Any]) -> bool:
    """Whether this process writes the JSON. A server that was started by hand has a command line of its
    own, so it writes. A launcher gives all servers the same command line, so only the first server writes."""
    if any(options[name] for name in _LISTS):
        return True
    try:
        launch = bootstrap.described_launch()
    except RdmacollError:
        return True
    rows, _ = load().readable_settings()
    servers = options["num_servers"] or int(Values(rows).number("RDMACOLL_NUM_SERVERS"))
    return launch is None or launch.rank == launch.size - servers


class _Report:
    """The counters of this server, for the terminal and for --json."""

    def __init__(self, every_s: float | None, workers: str, found: Findings) -> None:
        self._every_s, self._workers = every_s, workers
        self._at = 0.0
        self.found = found
        self._has_polled = False

    def poll(self) -> None:
        """Reads the counters, and prints them if it is time."""
        servers = world.current().variable_servers
        numbers = world.metrics() if servers is None else servers.stats
        is_first, self._has_polled = not self._has_polled, True
        self.found.update(
            self._rank_facts(),
            steps=numbers["batches" if servers is None else "updates"],
            bytes_received=numbers["bytes_received"],
            bytes_sent=numbers["bytes_sent"],
            waiting_workers=numbers["peers_waiting" if servers is None else "waiting"],
        )
        now = time.monotonic()
        if is_first:
            title = f"server {self.found['server']} ({world.describe()['summary']})"
            workers = f": {self._workers}" if self._workers else ""
            print_here(f"{title} serves {counted(self.found['workers'], 'worker')}{workers}")
            self._at = now
        elif self._every_s is not None and now - self._at >= self._every_s:
            self._at = now
            self.print_counters()

    @staticmethod
    def _rank_facts() -> Findings:
        workers = world.size() - int(world.describe()["servers"])  # the servers count all ranks
        return {"rank": world.rank(), "server": world.rank() - workers, "workers": workers}

    def print_interrupt(self) -> None:
        """Reports a Ctrl-C that comes before the world exists. A world reports it itself."""
        if not self._has_polled:
            workers = f"the workers {self._workers}" if self._workers else "the workers"
            text = (
                f"rdmacoll serve: interrupted (Ctrl-C) while it waited for {workers}: it has served no "
                "worker."
            )
            click.echo(text, err=True)

    def print_counters(self) -> None:
        """Prints the counters in one line."""
        if not self._has_polled:
            return
        received, sent = (moved_text(self.found[name]) for name in ("bytes_received", "bytes_sent"))
        print_here(
            f"server {self.found['server']}: {counted(self.found['steps'], 'step')}, {received} "
            f"received, {sent} sent, {counted(self.found['waiting_workers'], 'worker')} waiting"
        )


@click.command()
@click.option("--job_name", default="ps", show_default=True, help="The workers' flag. Only ps is allowed.")
@click.option(
    "--task_index", "--task-index", type=int, help="The index of this server in --ps_hosts, from 0."
)
@click.option("--ps_hosts", "--ps-hosts", default="", help="host:port of every server, with commas.")
@click.option("--worker_hosts", "--worker-hosts", default="", help="host:port of every worker, with commas.")
@click.option("--server_protocol", "--server-protocol", help="grpc, grpc+verbs, grpc+mpi or grpc+gdr.")
@click.option(
    "--num_servers",
    "--num-servers",
    type=click.IntRange(1),
    help="The number of servers, if a launcher starts them.",
)
@click.option("--asynchronous", is_flag=True, help="Serve workers that train with sync=False.")
@click.option(
    "--cross_replica_sync",
    "--cross-replica-sync",
    is_flag=False,
    flag_value="true",
    default="",
    help="The workers' flag: false means --asynchronous.",
)
@click.option(
    "--nocross_replica_sync",
    "--no_cross_replica_sync",
    "nocross",
    is_flag=True,
    help="The same as --cross_replica_sync=false.",
)
@click.option(
    "--variable_update",
    "--variable-update",
    help="The workers' flag: parameter_server or distributed_replicated.",
)
@click.option("--staleness", type=click.IntRange(0), help="The workers' staleness.")
@click.option("--every", type=Number(min=0, min_open=True), metavar="S", help="Print every S seconds.")
@command("serve", writes_json=_writes_json, passes_found=True)
def serve(
    *,
    job_name: str,
    task_index: int | None,
    ps_hosts: str,
    worker_hosts: str,
    server_protocol: str | None,
    num_servers: int | None,
    asynchronous: bool,
    cross_replica_sync: str,
    nocross: bool,
    variable_update: str | None,
    staleness: int | None,
    every: float | None,
    found: Findings,
) -> Findings:
    """A parameter server without a script.

    It serves until its workers are done. It is started by lists of hosts, the same as the workers', or by a
    launcher behind the workers: mpirun --bind-to none -np 2 python train.py : -np 1 rdmacoll serve
    """
    report = _Report(every, worker_hosts, found)
    flags = [f"--cross_replica_sync={cross_replica_sync}"] if cross_replica_sync else []
    flags += ["--nocross_replica_sync"] if nocross else []
    flags += [f"--variable_update={variable_update}"] if variable_update else []
    lists: dict[str, Any] = {}
    if ps_hosts or worker_hosts or task_index is not None:
        lists = {"job_name": job_name, "task_index": task_index}
        lists |= {"ps_hosts": ps_hosts, "worker_hosts": worker_hosts}
    world.serve_only(report.poll)
    try:
        world.init(
            mode="ps",
            num_servers=num_servers,
            protocol=server_protocol,
            sync=False if asynchronous else None,
            argv=flags,
            staleness=staleness,
            **lists,
        )
    except SystemExit as ended:  # init() ends so on a server
        if ended.code:
            raise
    except KeyboardInterrupt:
        report.print_interrupt()
        raise
    finally:
        report.print_counters()
    return {"ok": True}
