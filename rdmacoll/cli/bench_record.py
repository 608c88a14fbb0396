"""`rdmacoll bench record`: the sizes of a training's tensors, for other benchmarks to replay."""

from __future__ import annotations

from pathlib import Path

import click

from rdmacoll._base.text import counted
from rdmacoll.benchmarks.rpc import record as records
from rdmacoll.cli.report import Findings, check_json, command, is_rank_0, print_line, write_json
from rdmacoll.errors import ConfigError


@click.command("record", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--out",
    required=True,
    metavar="FILE",
    help="The file to write, which --payload of other benchmarks takes.",
)
@click.option(
    "--model",
    type=click.Choice(["resnet50"]),
    help="Record the known sizes of this model instead of a program's.",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@command("bench record")
def record(*, out: str, model: str | None, program: tuple[str, ...]) -> Findings:
    """Runs a training, and writes the sizes of its gradients.

    rdmacoll run -np 2 rdmacoll bench record --out sizes.json train.py ARGUMENT...

    Recorded is what DistributedOptimizer and DistributedGradientTape reduce and rdmacoll.ps.exchange
    pushes; of several lists, the one with the most bytes. Rank 0 writes, which is worker 0 in a start by
    hand, where every process has this command.
    """
    if bool(model) == bool(program):
        raise click.UsageError("give a program to run, as in train.py --epochs 1, or --model resnet50.")
    if program and not Path(program[0]).is_file():
        raise click.BadParameter(f"{program[0]} is no file: give a Python program.")
    if is_rank_0():
        check_json(out, "--out")
    seen = records.of_program(program) if program else records.of_resnet50()
    if not is_rank_0():
        return {"ok": seen.exit_code == 0}
    if not seen.tensors:
        raise ConfigError(
            f"{program[0]} reduced no gradients of known sizes: record one that trains with "
            "DistributedOptimizer, DistributedGradientTape or rdmacoll.ps.exchange."
        )
    found: Findings = {
        "ok": seen.exit_code == 0,
        "source": model or program[0],
        "tensors": seen.tensors,
        "lists": seen.lists,
        "unknown": seen.unknown,
    }
    write_json(out, found)
    for limit, count, total in records.distribution(seen.tensors):
        print_line(f"up to {limit:>5}: {counted(count, 'tensor'):>12}, {total} bytes")
    total = sum(tensor["bytes"] for tensor in seen.tensors)
    print_line(f"{counted(len(seen.tensors), 'tensor')}, {total} bytes")
    if seen.unknown:
        print_line(f"and {counted(seen.unknown, 'tensor')} whose rows depend on the data")
    if seen.exit_code != 0:
        print_line(f"the program ended with {seen.exit_code}")
    return found
