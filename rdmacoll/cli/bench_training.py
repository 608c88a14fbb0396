"""`rdmacoll bench ps-training`: images per second beside TensorFlow's own parameter servers over gRPC."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import click

from rdmacoll._base.text import counted
from rdmacoll._start import bootstrap
from rdmacoll.benchmarks import builds
from rdmacoll.benchmarks.compare import MACHINE, cable_of
from rdmacoll.benchmarks.libraries import other_build
from rdmacoll.benchmarks.machine import machine_line
from rdmacoll.benchmarks.training import judge
from rdmacoll.benchmarks.training.libraries import OURS, PEERS, takes_part_between_hosts
from rdmacoll.benchmarks.training.measure import Measurement, Training, TrainingRequest
from rdmacoll.benchmarks.training.models import CLASSES, MODELS
from rdmacoll.benchmarks.turns import Rules
from rdmacoll.cli.bench_compare import links_of, names_of, refuse_launched
from rdmacoll.cli.bench_machine import shown_machine
from rdmacoll.cli.report import Findings, command, print_line, print_rows
from rdmacoll.cli.rules_options import takes_build, takes_rules, takes_seconds

# The default leaves out the contestants over TCP: they double the number of ranks, and each rank of AlexNet
# has gigabytes.
_OURS = ",".join(name for name in OURS if takes_part_between_hosts(name))


def trainings_of(models: str, image: int | None, batch: int | None) -> list[Training]:
    """The trainings of a comma list of models. Raises click's usage error."""
    found = []
    for name in names_of(models, list(MODELS), "--models"):
        model = MODELS[name]
        if image is not None and image < model.image_min:
            raise click.BadParameter(f"--image {image}: {model.title} takes images from {model.image_min} on")
        found.append(Training(model, image or model.image, batch or model.batch))
    return found


@click.command("ps-training")
@click.option("--models", default="all", show_default=True, help=f"all, or some of {', '.join(MODELS)}.")
@click.option(
    "--batch",
    type=click.IntRange(1, 4096),
    help="Images in each step of a worker. Default: "
    f"{', '.join(f'{model.batch} for {model.name}' for model in MODELS.values())}.",
)
@click.option(
    "--image",
    type=click.IntRange(1, 1024),
    help="Width and height of the images in pixels. Default: "
    f"{', '.join(f'{model.image} for {model.name}' for model in MODELS.values())}.",
)
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 64))
@click.option("--servers", default=1, show_default=True, type=click.IntRange(1, 64))
@click.option("--ours", default=_OURS, show_default=True, help=f"all, or some of {', '.join(OURS)}.")
@click.option(
    "--peer", "peers", multiple=True, help=f"all, or one of {', '.join(PEERS)}; may be given several times."
)
@click.option(
    "--links",
    default=MACHINE,
    show_default=True,
    help="The links: machine, or Gbit/s between two hosts (1,10).",
)
@takes_build
@takes_rules
@takes_seconds(1800.0)
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw the result here (needs matplotlib).")
@command("bench ps-training")
def training(
    *,
    models: str,
    batch: int | None,
    image: int | None,
    workers: int,
    servers: int,
    ours: str,
    peers: tuple[str, ...],
    links: str,
    build: Path | None,
    rules: Rules,
    seconds: float,
    plot: str | None,
) -> Findings:
    """Workers train a model with parameter servers.

    Images are synthetic. Results are images per second of all workers.

    All are the same graph of TensorFlow 1 in a session, plain SGD, in the same TensorFlow. sync: a step ends
    when the gradients of all workers are in it. async: nobody waits for others. Before it is timed, a step is
    compared with the same one computed without servers. Communication is the share of a step beyond what it
    takes workers that train each for itself. Images are small, so that computing takes little: with --image
    224 and larger batches they are as in the literature. A worker of AlexNet takes 1.6 GB of memory.
    """
    refuse_launched()
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError(
            "--plot needs matplotlib, which is not installed: pip install 'rdmacoll[plot]'."
        )
    chosen_peers = list(PEERS) if "all" in peers else names_of(",".join(peers), list(PEERS), "--peer")
    own = names_of(ours, list(OURS), "--ours")
    contestants = [*own, *chosen_peers]
    contestants += [other_build(name) for name in own] if build is not None else []
    if not contestants:
        raise click.BadParameter("--ours is empty, and there is no --peer: nobody would train")
    request = TrainingRequest(
        contestants,
        trainings_of(models, image, batch),
        workers,
        servers,
        links_of(links, [2]),
        bootstrap.cache_folder(),
        rules,
        seconds,
        build,
    )
    print_line(machine_line())
    measurement = Measurement(request, lambda text: click.echo(text, err=True))
    measurement.run(_print_part)
    machine = shown_machine()
    rows = [row for part in measurement.parts for row in part["rows"]]
    wrong = sum(cell["wrong"] for row in rows for cell in row["time_us"].values())
    for text in measurement.left_out:
        print_line(text)
    ratios = [ratio for row in rows for ratio in builds.ratios_of(row["title"], row)]
    if build is not None:
        print_rows(builds.table(ratios))
        print_line(f"beside {build}: {builds.summary(ratios)}")
    print_line(counted(wrong, "wrong step"))
    found: Findings = {
        "ok": wrong == 0
        and bool(rows)
        and all(row["time_us"] for row in rows)
        and (build is None or bool(ratios)),
        "what": "ps-training",
        **machine,
        "settings": {
            "workers": workers,
            "servers": servers,
            "classes": CLASSES,
            "turns": rules.turns,
            "burst_s": rules.burst_s,
            "foreign_share_max": rules.foreign_of_sleepers,
        },
        "parts": measurement.parts,
        "missed": {part["link"]: _missed(part) for part in measurement.parts},
        "left_out": measurement.left_out,
        "wrong": wrong,
    }
    if build is not None:
        found["build"] = builds.facts(build, ratios)
    if plot is not None:
        importlib.import_module("rdmacoll.benchmarks.training.plot").draw(found).savefig(plot)
    return found


def _missed(part: dict[str, Any]) -> list[str]:
    return judge.missed(part["rows"], None if part["link"] == MACHINE else float(part["link"]))


def _print_part(part: dict[str, Any]) -> None:
    print_line(f"\n{part['title']}{cable_of(part)}")
    for name, facts in part["libraries"].items():
        print_line(f"{name}: {', '.join(f'{what} {value}' for what, value in facts.items())}")
    for row in part["rows"]:
        print_line("\n".join(["", f"{row['title']}, {row['variables_bytes'] / 1e6:.1f} MB", ""]))
        print_rows(judge.table(row))
    print_line()
    for sentence in _missed(part):
        print_line(f"- {sentence}")
