"""`rdmacoll bench step`: the gradients of a training step beside raw MPI and Horovod."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import click

from rdmacoll._base.text import bytes_text, counted
from rdmacoll._start import bootstrap
from rdmacoll.benchmarks import builds, resnet50, step as steps
from rdmacoll.benchmarks.compare import MACHINE
from rdmacoll.benchmarks.libraries import LIBRARIES, OURS, PEERS, other_build
from rdmacoll.benchmarks.machine import machine_line
from rdmacoll.benchmarks.turns import Rules
from rdmacoll.cli.bench_compare import links_of, names_of, numbers_of, refuse_launched
from rdmacoll.cli.bench_machine import shown_machine
from rdmacoll.cli.number_option import Number
from rdmacoll.cli.report import Findings, command, parse_bytes, print_line, print_rows
from rdmacoll.cli.rules_options import takes_build, takes_rules, takes_seconds

DEFAULT_BUCKET = 26_214_400  # the default of RDMACOLL_BUCKET_BYTES


@click.command("step")
@click.option("--peers", default="all", show_default=True, help=f"all, or some of {', '.join(PEERS)}.")
@click.option("--ranks", default=2, show_default=True, type=click.IntRange(min=2))
@click.option(
    "--link", default=MACHINE, show_default=True, help="The link: machine, or Gbit/s between two hosts."
)
@click.option("--backward-ms", default=100.0, show_default=True, type=Number(1, 60_000))
@click.option(
    "--backward",
    default=",".join(steps.MANNERS),
    show_default=True,
    help="wait: the processor is free, as if an accelerator computed. compute: the processor computes.",
)
@click.option(
    "--threads",
    default="0,1,4",
    show_default=True,
    help="How many operations TensorFlow runs at once, in turn. 0: its default.",
)
@click.option("--buckets", default=f"1M,4M,12M,{DEFAULT_BUCKET},128M", show_default=True)
@takes_build
@takes_rules
@takes_seconds(600.0, "each part, in seconds: a backward pass with a number of threads")
@command("bench step")
def step(
    *,
    peers: str,
    ranks: int,
    link: str,
    backward_ms: float,
    backward: str,
    threads: str,
    buckets: str,
    build: Path | None,
    rules: Rules,
    seconds: float,
) -> Findings:
    """The gradients of ResNet-50 in one training step.

    They are 161, float32, 102 MB together. Starts all ranks itself.

    Ours are TensorFlow operations in a tf.function, one for each bucket that the optimizer wrapper cuts, for
    several values of RDMACOLL_BUCKET_BYTES. Horovod's are one for each gradient. Raw MPI sums numpy arrays,
    tensor by tensor. Alone: all gradients are ready at once. Step: they become ready one after the other
    during a backward pass. exposed: what the communication adds to it. hidden: the share of the
    communication that overlaps it.
    """
    refuse_launched()
    links_of(link, [ranks])
    manners = names_of(backward, list(steps.MANNERS), "--backward")
    counts = numbers_of(threads, "--threads", least=0)
    cuts = [parse_bytes(text) for text in buckets.split(",")]
    libraries = [*OURS.values(), *names_of(peers, PEERS, "--peers"), "memory", "stream"]
    libraries += [other_build(name) for name in OURS.values()] if build is not None else []
    print_line(machine_line())
    print_line(
        f"{len(resnet50.shapes())} gradients, {resnet50.total_bytes() / 1e6:.1f} MB, {counted(ranks, 'rank')}"
    )
    parts, left_out, wrong = [], [], 0
    of_builds: list[builds.Ratio] = []

    def report(text: str) -> None:
        left_out.append(text)
        click.echo(text, err=True)

    for manner, count in itertools.product(manners, counts):
        request = steps.StepRequest(
            [name for name in LIBRARIES if name in libraries],
            ranks,
            link,
            manner,
            count,
            backward_ms / 1e3,
            cuts,
            bootstrap.cache_folder(),
            rules,
            seconds,
            build,
        )
        with tempfile.TemporaryDirectory(prefix="step-") as folder:
            cells, facts = steps.measure(request, Path(folder), print_line, report)
        wrong += sum(cell.wrong for cell in cells.values())
        rows = steps.rows_of(cells, request.libraries, cuts)
        print_rows(["", *steps.table(rows), ""])
        best = steps.best_bucket(rows)
        part: dict[str, Any] = {"manner": manner, "threads": count, "rows": rows, "libraries": facts}
        if best is not None:
            ratios = steps.ratios_of(cells, best["bucket_bytes"])
            of_steps = steps.step_ratios_of(rows, best)
            part.update(step_ratio=of_steps)
            part.update(best_bucket_bytes=best["bucket_bytes"], ratio=ratios, missed=steps.missed(ratios))
            print_line(
                f"best RDMACOLL_BUCKET_BYTES: {best['bucket_bytes']} ({bytes_text(best['bucket_bytes'])}), "
                f"a step of {best['step']:.1f} ms, {best['exposed']:.1f} ms exposed, "
                f"{100 * best['hidden']:.0f} % of the communication hidden"
            )
            level = steps.level_with(rows, best)
            part["level_with_best"] = level
            if level:
                print_line(f"these turns do not distinguish it from: {', '.join(map(bytes_text, level))}")
            own = f"{OURS['tensorflow']} gradients {best['bucket_bytes']}"
            for name, value in ratios.items():
                is_quiet = all(cells[key].summary()["quiet"] for key in (own, f"{name} gradients"))
                mark = "" if is_quiet else " (L)"
                print_line(f"{LIBRARIES[name].title} / ours, gradients alone: {value:.2f}{mark}")
            for name, value in of_steps.items():
                print_line(f"{LIBRARIES[name].title} / ours, step: {value:.2f}")
            for sentence in part["missed"]:
                print_line(f"- {sentence}")
        parts.append(part)
        of_builds += steps.builds_of(manner, cells)
    machine = shown_machine()
    if build is not None:
        print_rows(builds.table(of_builds))
        print_line(f"beside {build}: {builds.summary(of_builds)}")
    print_line(counted(wrong, "wrong value"))
    found: Findings = {
        "ok": wrong == 0 and any(part["rows"] for part in parts) and (build is None or bool(of_builds)),
        **machine,
        "ranks": ranks,
        "link": link,
        "backward_ms": backward_ms,
        "parts": parts,
        "left_out": left_out,
        "wrong": wrong,
    }
    if build is not None:
        found["build"] = builds.facts(build, of_builds)
    return found
