"""The command line: `rdmacoll COMMAND --json FILE`. Exit codes: 0 ok, 1 findings or failures, 2 usage."""

from __future__ import annotations

import click

from rdmacoll.cli.bench import bench
from rdmacoll.cli.checks import sim, verify_schedules
from rdmacoll.cli.config import config
from rdmacoll.cli.selftest import selftest
from rdmacoll.engine.version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rdmacoll")
def main() -> None:
    """The communication of distributed TensorFlow: settings, checks and benchmarks."""


main.add_command(config)
main.add_command(verify_schedules)
main.add_command(selftest)
main.add_command(sim)
main.add_command(bench)

if __name__ == "__main__":
    main()
