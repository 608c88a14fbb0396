"""The output of commands fits a terminal of 80 columns, has units, and says each thing once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from command_lines import command_line

from rdmacoll.cli import main, report
from rdmacoll.cli.curves import panel, picture
from rdmacoll.cli.number_option import Number

COMMANDS = [
    ("config",),
    ("config", "--all"),
    *(
        ("plan", "--op", operation, "--ranks", "24", "--nodes", "8", "--bytes", "64M")
        for operation in ("allreduce", "alltoall")
    ),
    ("sim", "scale", "--ranks", "2:8", "--bytes", "64K"),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_command_fits_a_terminal_of_80_columns(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, _, output = command_line(tmp_path, *arguments, env={"COLUMNS": "80"})
    assert code == 0, output
    assert [line for line in output.splitlines() if len(line) > 80] == []
    assert "…" not in output, "a cell is cut short"


@pytest.mark.parametrize("columns", ["60", "20"])
def test_a_narrow_terminal_breaks_no_word_of_a_table(tmp_path: Path, columns: str) -> None:
    for arguments in (("config",), ("plan", "--op", "allreduce", "--ranks", "8", "--nodes", "2")):
        texts = {}
        for width in ("200", columns):
            code, _, texts[width] = command_line(tmp_path, *arguments, env={"COLUMNS": width})
            assert code == 0, texts[width]
        missing = set(texts["200"].split()) - set(texts[columns].split())
        assert [word for word in missing if len(word) <= 12 or word.startswith("RDMACOLL_")] == []


def test_a_long_value_is_folded_at_the_width_of_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    report.print_rows(["| file | bytes |", "|---|---:|", f"| /{'x' * 200} | 8 |"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert "".join(lines).count("x") == 200


def _options(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Parameter]]:
    for name, part in getattr(command, "commands", {}).items():
        yield from _options(part, (*path, name))
    for parameter in command.params:
        yield " ".join((*path, *parameter.opts)), parameter


def _commands(group: click.Group) -> Iterator[tuple[click.Group, str, click.Command]]:
    for name, part in group.commands.items():
        yield group, name, part
        if isinstance(part, click.Group):
            yield from _commands(part)


def test_no_line_of_a_list_of_commands_is_cut_short() -> None:
    listed = "\n".join(
        group.get_help(click.Context(group, terminal_width=80))
        for group in {group for group, _, _ in _commands(main.commands)}
    )
    assert {name for _, name, _ in _commands(main.commands) if f"  {name} " not in listed} == set()
    assert [line for line in listed.splitlines() if line.startswith("  ") and line.endswith("...")] == []


def test_every_command_that_a_help_shows_binds_no_rank_to_a_core() -> None:
    helps = "\n".join(part.get_help(click.Context(part)) for _, _, part in _commands(main.commands))
    shown = re.findall(r"^ *(mpirun|rdmacoll run) +(.*)", helps, re.MULTILINE)
    assert len(shown) >= 4
    assert [words for name, words in shown if name == "mpirun" and "--bind-to none" not in words] == []


def test_every_fraction_has_a_range_without_nan() -> None:
    # `run` checks its fractions as values of Horovod's variables.
    kind = click.types.FloatParamType
    fractions = {name: one.type for name, one in _options(main.commands) if isinstance(one.type, kind)}
    judged = {name: one for name, one in fractions.items() if not name.startswith("run ")}
    assert {"plan --gbit", "sim scale --latency-us", "serve --every"} <= set(judged)
    assert [name for name, one in judged.items() if not isinstance(one, Number)] == []


@pytest.mark.parametrize("value", ["-3", "0", "nan", "inf", "1e300"])
@pytest.mark.parametrize("option", ["--latency-us", "--gbit"])
def test_a_link_of_an_impossible_latency_or_rate_is_refused(tmp_path: Path, option: str, value: str) -> None:
    code, _, output = command_line(tmp_path, "plan", "--nodes", "2", option, value)
    assert code == 2, output
    assert f"Invalid value for '{option}'" in output
    assert "is not in the range" in output or "is not a finite number" in output


def test_the_test_of_a_path_says_how_many_ranks_there_are(tmp_path: Path) -> None:
    code, _, output = command_line(tmp_path, "bench", "pair")
    assert code == 1, output
    assert (
        "between 2 ranks, and here 1 rank started (no launcher): rdmacoll run -np 2 rdmacoll bench pair."
        in output
    )


def test_settings_have_units(tmp_path: Path) -> None:
    _, _, output = command_line(tmp_path, "config", env={"RDMACOLL_CHUNK_SIZE": "1000"})
    rows = {line.split()[0]: line for line in output.splitlines()}
    assert "25 MiB" in rows["RDMACOLL_BUCKET_BYTES"]
    assert "1000 B" in rows["RDMACOLL_CHUNK_SIZE"]
    assert "600 s" in rows["RDMACOLL_STALL_ERROR_S"]
    assert rows["RDMACOLL_DEVICE"].split()[1:] == ["automatic"] * 3


@pytest.mark.parametrize("arguments", [("bench", "allreduce", "--max", "8", "--turns", "1")], ids=" ".join)
def test_a_benchmark_of_one_rank_says_so(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, _, output = command_line(tmp_path, *arguments)
    assert code == 0, output
    assert "world of one rank" in output
    assert "mpirun -np 2 rdmacoll bench allreduce" in output
    _, _, output = command_line(tmp_path, *arguments, ranks=2)
    assert "world of one rank" not in output


def test_the_selftest_says_once_how_it_was_started(tmp_path: Path) -> None:
    arguments = ("selftest", "--transport", "tcp", "--algorithm", "ring")
    code, _, output = command_line(tmp_path, *arguments, ranks=2)
    assert code == 0, output
    assert output.count("started by") == 1


def test_each_part_of_the_selftest_reports_its_cases(tmp_path: Path) -> None:
    arguments = ("selftest", "--transport", "tcp", "--algorithm", "ring")
    code, found, output = command_line(tmp_path, *arguments, ranks=1)
    assert code == 0, output
    parts = re.findall(r"^(.*): (\d+) cases, 0 failed so far$", output, re.MULTILINE)
    assert [title for title, _ in parts] == [
        "allreduce ring, tcp, order run",
        "other calls, tcp, order run",
        "other calls, tcp, order canonical",
    ]
    assert int(parts[-1][1]) == found["cases"]


def test_scaling_is_not_that_of_the_one_algorithm_that_could_be_simulated(tmp_path: Path) -> None:
    cells = ("--ranks", "8", "--bytes", "", "--algorithms", "recursive_doubling,ring")
    code, found, output = command_line(tmp_path, "sim", "scale", *cells, "--transfers", "1000")
    assert code == 0, output
    (row,) = found["rows"]
    assert row["time_us"]["ring"] is None
    assert row["time_us"]["recursive_doubling"] is not None
    assert row["scaling"] is None


def test_markdown_is_printed_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    report.print_rows(["| | bytes | ours |", "|---|---:|---:|", "| push | 8 | 1.25 |"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["bytes", "ours"], ["push", "8", "1.25"]]
    assert lines[0].index("ours") == lines[1].index("1.25")


def test_no_curve_hides_another_and_the_axis_is_named() -> None:
    same = [(2.0, 1.0), (4.0, 2.0)]
    drawn = panel("a sum", {"auto": same, "ring": same})
    assert drawn.index('stroke-width="6"') < drawn.index('stroke-width="1"/>', drawn.index("auto"))
    assert ">ranks</text>" in drawn
    assert 'width="840" height="600"' in picture([drawn] * 3)
