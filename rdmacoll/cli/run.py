"""`rdmacoll run`: starts the ranks of a program on this host and on others, and ends them together.

`horovodrun_main` is the entry point of the command horovodrun. The distribution rdmacoll-horovod installs it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, Callable

import click

from rdmacoll._launch import elastic_options, horovodrun_options
from rdmacoll._launch.config_file import read_config_file
from rdmacoll._launch.elastic_job import ElasticJob
from rdmacoll._launch.failure import Ended
from rdmacoll._launch.hosts import Host
from rdmacoll._launch.job import Job, JobOptions, say
from rdmacoll._launch.mpirun import mpirun_command, version_text
from rdmacoll._launch.request import hosts_of, job_options, ssh_arguments
from rdmacoll._start import bootstrap
from rdmacoll.cli.report import Findings, command, print_here
from rdmacoll.errors import ConfigError
from rdmacoll.version import __version__

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asks the launcher to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Makes signals that end a program raise Interrupted. Ignored signals stay ignored, as under nohup."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _with_options(function: Callable[..., None]) -> Callable[..., None]:
    for row in reversed(horovodrun_options.TUNABLES):
        function = click.option(
            *row.flags, type=None if row.kind is bool else row.kind, default=None, help=row.help
        )(function)
    for option in reversed(elastic_options.OPTIONS):
        function = click.option(
            *option.flags,
            option.name,
            type=str if option.least is None else click.IntRange(option.least),
            nargs=option.values,
            default=None,
            help=option.help,
        )(function)
    return function


@click.command(context_settings={"allow_interspersed_args": False})
@click.version_option(__version__, "-v", "--version", prog_name="rdmacoll")
@click.option("-np", "--num-proc", "num_proc", type=click.IntRange(1), help="The number of ranks.")
@click.option("-H", "--hosts", "hosts", help="Hosts and their slots: node1:4,node2:4. Default: this host.")
@click.option("-hostfile", "--hostfile", "hostfile", help="A file with lines like: node1 slots=4.")
@click.option("-p", "--ssh-port", "ssh_port", type=click.IntRange(1, 65535), help="The port of ssh.")
@click.option("-i", "--ssh-identity-file", "ssh_identity_file", help="The file with the key for ssh.")
@click.option(
    "--start-timeout",
    type=click.IntRange(1),
    help="Seconds until all hosts have answered and all ranks have met.",
)
@click.option(
    "--network-interfaces",
    "--network-interface",
    "nics",
    multiple=True,
    help="Interfaces for the ranks: eth0,eth1.",
)
@click.option("--output-filename", help="A folder that gets rank.N/stdout and rank.N/stderr, too.")
@click.option(
    "-prefix-timestamp",
    "--prefix-output-with-timestamp",
    "prefix_output_with_timestamp",
    is_flag=True,
    help="Print the time before each line.",
)
@click.option("--verbose", is_flag=True, help="Print how hosts and ranks are started.")
@click.option("--config-file", help="A YAML file with options, as horovodrun has it. Options here go first.")
@click.option("-cb", "--check-build", "check_build", is_flag=True, help="Show what is there, and exit.")
@click.option("--disable-cache", is_flag=True, help="No effect: hosts are checked at each start.")
@click.option("--gloo", "use_gloo", is_flag=True, help="Start without MPI. This is the default.")
@click.option("--mpi", "use_mpi", is_flag=True, help="Print the command line of mpirun, and run it.")
@click.option("--jsrun", "use_jsrun", is_flag=True, hidden=True)
@click.option("--mpi-args", help='Further arguments of mpirun: --mpi-args="--map-by ppr:6:node".')
@click.option("--binding-args", help="Arguments of mpirun in place of --bind-to none.")
@click.option("--tcp", "tcp_flag", is_flag=True, help="Carry data only over TCP and shared memory.")
@click.option("--horovod", "with_horovod", is_flag=True, help="Let `import horovod` find rdmacoll.")
@_with_options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...")
@command("run", writes_json=lambda _: True)
def run(*, words: tuple[str, ...], **options: Any) -> Findings:
    """Starts COMMAND on several ranks, here or over ssh.

    rdmacoll run -np 8 -H a:4,b:4 python train.py

    Each line of output has its rank in front. If a rank fails, the others are ended, and the reason is the
    last thing on the screen. The exit code is that of the rank that failed first. All options of horovodrun
    are allowed.
    """
    context = click.get_current_context()
    if options["check_build"]:
        print_here(build_text())
        return {"ok": True}
    if not words:
        raise click.UsageError("which program? As in: rdmacoll run -np 2 python train.py", context)
    try:
        given = {**options, **_from_file(context, options)}
        job = job_options(given, words, bootstrap.variables())
        if given["use_mpi"]:
            _become_mpirun(context, given, job)
    except ConfigError as error:
        raise click.UsageError(str(error), context) from None
    try:
        with _signals_raise():
            result = (Job(job) if job.elastic is None else ElasticJob(job)).run()
    except Interrupted as interrupt:
        name = signal.Signals(interrupt.number).name
        say(f"{name}: all ranks were ended.")
        return {"ok": False, "exit_code": 128 + interrupt.number, "failed": None, "signal": name}
    if result.message:
        print_last(result.message)
    return {
        "ok": result.exit_code == 0,
        "exit_code": result.exit_code,
        "failed": _fields(result.first),
        "ranks": [_fields(result.ended[rank]) for rank in sorted(result.ended)],
    }


def _fields(end: Ended | None) -> dict[str, Any] | None:
    if end is None:
        return None
    return {"rank": end.rank, "host": end.host, "pid": end.pid, "code": end.code, "reason": end.reason()}


def print_last(text: str) -> None:
    """Prints the last thing on the screen. Without a reader (`2>&1 | head`) the exit code stays."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def _from_file(context: click.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the configuration file that the command line does not give."""
    if not options["config_file"]:
        return {}
    given = click.core.ParameterSource.COMMANDLINE
    found = read_config_file(options["config_file"])
    if options["use_gloo"] or options["use_mpi"]:
        found = {name: value for name, value in found.items() if name not in ("use_gloo", "use_mpi")}
    return {name: value for name, value in found.items() if context.get_parameter_source(name) is not given}


def _become_mpirun(context: click.Context, given: Mapping[str, Any], job: JobOptions) -> None:
    """Prints the command line of mpirun, and replaces this process by it."""
    if context.params["json_path"] is not None:
        raise ConfigError("--json and --mpi exclude each other: mpirun replaces this process.")
    hosts: list[Host] = hosts_of(given, job.environ) if given["hosts"] or given["hostfile"] else []
    variables = {**job.environ, **job.variables}
    line = mpirun_command(
        job.command,
        version=version_text(),
        size=len(job.slots),
        hosts=hosts,
        variables=variables,
        mpi_args=given["mpi_args"] or "",
        binding_args=given["binding_args"] or "",
        output_folder=job.output_folder,
        has_timestamps=job.has_timestamps,
        ssh=ssh_arguments(given),
    )
    say(shlex.join(line))
    os.execvpe(line[0], line, variables)


def build_text() -> str:
    """The answer to --check-build, in horovodrun's form."""

    def mark(is_there: bool) -> str:
        return "X" if is_there else " "

    def has(module: str) -> bool:
        return importlib.util.find_spec(module) is not None

    return "\n".join(
        [
            f"rdmacoll v{__version__}:",
            "",
            "Available Frameworks:",
            f"    [{mark(has('tensorflow'))}] TensorFlow",
            "    [ ] PyTorch",
            "    [ ] MXNet",
            "",
            "Available Controllers:",
            f"    [{mark(has('mpi4py'))}] MPI",
            "    [X] Gloo (here: rdmacoll's own rendezvous)",
            "",
            "Available Tensor Operations:",
            "    [ ] NCCL",
            "    [ ] DDL",
            "    [ ] CCL",
            "    [ ] MPI",
            "    [X] Gloo (here: rdmacoll's own over shared memory, TCP and RDMA)",
        ]
    )


def horovodrun_main() -> None:
    """`horovodrun`: as `rdmacoll run --horovod`, with the same options. Exits."""
    from rdmacoll.cli.main import main

    sys.argv[1:] = ["run", "--horovod", *sys.argv[1:]]
    main()
