"""The command line: `rdmacoll COMMAND --json FILE`. Exit codes: 0 ok, 1 findings or failures, 2 usage."""

from __future__ import annotations

import sys
import time

import click

from rdmacoll.cli.bench import bench
from rdmacoll.cli.bench_compare import compare, peers_command
from rdmacoll.cli.bench_consistency import consistency
from rdmacoll.cli.bench_overhead import overhead
from rdmacoll.cli.bench_pair import pair
from rdmacoll.cli.bench_record import record
from rdmacoll.cli.bench_rpc import COMMANDS as RPC_COMMANDS
from rdmacoll.cli.bench_step import step
from rdmacoll.cli.bench_training import training
from rdmacoll.cli.build_gpu_op import build_gpu_op
from rdmacoll.cli.checks import sim, verify_schedules
from rdmacoll.cli.config import config
from rdmacoll.cli.doctor import doctor
from rdmacoll.cli.plan import plan
from rdmacoll.cli.report import is_rank_0
from rdmacoll.cli.run import run
from rdmacoll.cli.scale import scale
from rdmacoll.cli.selftest import selftest
from rdmacoll.cli.serve import serve
from rdmacoll.cli.tune import tune
from rdmacoll.version import __version__

# If one rank fails, the launcher ends the others. Rank 0 gets this long to print the reason.
SPEAKER_GRACE_S = 5.0


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rdmacoll")
def commands() -> None:
    """The communication of distributed TensorFlow: settings, checks and benchmarks."""


commands.add_command(config)
commands.add_command(doctor)
commands.add_command(verify_schedules)
commands.add_command(plan)
commands.add_command(tune)
commands.add_command(selftest)
sim.add_command(scale)
commands.add_command(sim)
for benchmark in (pair, consistency, compare, peers_command, step, overhead, record, training, *RPC_COMMANDS):
    bench.add_command(benchmark)
commands.add_command(bench)
commands.add_command(run)
commands.add_command(serve)
commands.add_command(build_gpu_op)


def main() -> None:
    """Runs the command line and exits. Wrong usage is the same on all ranks, so rank 0 alone prints it."""
    try:
        sys.exit(commands.main(prog_name="rdmacoll", standalone_mode=False) or 0)
    except click.ClickException as error:
        # A server is never rank 0: rank 0 is one of its workers. A rank may start ranks of another job.
        is_single = error.ctx is not None and error.ctx.command in (serve, run)  # type: ignore[attr-defined]
        if is_rank_0() or is_single:
            error.show()
        else:
            time.sleep(SPEAKER_GRACE_S)
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)


if __name__ == "__main__":
    main()
