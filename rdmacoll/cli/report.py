"""The common parts of all commands: ranges, output, the JSON file, exit codes."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import os
import secrets
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import click

from rdmacoll._base.text import SIZE_SUFFIXES
from rdmacoll._start import bootstrap
from rdmacoll._world import world
from rdmacoll.errors import RdmacollError, error_to_fields
from rdmacoll.version import __version__

if TYPE_CHECKING:
    from rich.table import Table

# The result of a command: its JSON keys, "ok" among them.
Findings = dict[str, Any]


STDOUT = "-"  # as the FILE of --json
_JSON_HELP = "Write the result here as JSON; -: to standard output, and all else to standard error."
_STDOUT_FD, _STDERR_FD = 1, 2
_WORD_MAX = 12  # a longer word of a table, such as a path, may be folded

_LAST_RANK: list[int] = []  # this process's rank in its latest world; empty: it was in none


def _remember(engine: int) -> None:
    if engine:
        _LAST_RANK[:] = [world.rank()]


world.on_change(_remember)


def is_rank_0() -> bool:
    """Whether this process prints and writes for all: rank 0, as far as the rank is known."""
    if _LAST_RANK:
        return _LAST_RANK[0] == 0
    try:
        return bootstrap.described_rank() == 0
    except RdmacollError:
        return True


def print_here(text: str = "") -> None:
    """Prints a line. If the reader of the pipe is gone (`| head`), output is discarded and the command
    goes on. Other ranks wait for it, and --json has yet to be written. Raises RdmacollError."""
    try:
        click.echo(text)
    except OSError as error:
        with open(os.devnull, "wb") as nowhere:  # the rest, of Python's buffer too
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise _not_written("standard output", error) from None


def _not_written(place: str, error: OSError) -> RdmacollError:
    return RdmacollError(f"{place} cannot be written: {error.strerror}. Make room, or name another place.")


def print_line(text: str = "") -> None:
    """Prints a line at rank 0."""
    if is_rank_0():
        print_here(text)


def print_table(table: Table) -> None:
    """Prints a table at rank 0. In a terminal that is too narrow, its lines are longer than the terminal: a
    broken word or number says something else."""
    from rich.console import Console

    needed = 0
    for column in table.columns:
        cells = [str(cell) for cell in (column.header, *column.cells)]
        if column.no_wrap:
            width = max((len(line) for cell in cells for line in cell.splitlines()), default=0)
        else:
            width = min(max((len(word) for cell in cells for word in cell.split()), default=0), _WORD_MAX)
        column.min_width = width
        needed += width + sum(table.padding[1::2])
    # The console gets no stream: rich would end the process if the reader of the pipe is gone.
    text = io.StringIO()
    console = Console(file=text, force_terminal=sys.stdout is not None and sys.stdout.isatty())
    console.width = max(console.width, needed)
    console.print(table)
    print_line(text.getvalue().removesuffix("\n"))


def print_prose(text: str, indent: str = "", hanging: str | None = None) -> None:
    """Prints a text at rank 0, folded at the width of the terminal. hanging: the indent of all lines but
    the first."""
    print_line(
        textwrap.fill(
            text,
            shutil.get_terminal_size().columns,
            initial_indent=indent,
            subsequent_indent=indent if hanging is None else hanging,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def print_rows(lines: Sequence[str]) -> None:
    """Prints Markdown tables (titles, alignments, rows) at rank 0, in columns. An empty line ends a table."""
    from rich.table import Table

    for has_text, part in groupby(lines, key=bool):
        if not has_text:
            print_line("")
            continue
        titles, alignments, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part]
        table = Table(box=None, pad_edge=False)
        for title, alignment in zip(titles, alignments):
            table.add_column(title, justify="right" if alignment.endswith(":") else "left", overflow="fold")
        for row in rows:
            table.add_row(*row)
        print_table(table)


def note_world_of_one(name: str) -> None:
    """Prints a note if a command that needs several ranks runs with one."""
    if world.size() == 1:
        print_prose(
            "note: this is a world of one rank, in which nothing travels. Start it by a launcher: "
            f"mpirun -np 2 {name}"
        )


def _draft(target: Path) -> Path:
    """Creates an empty file in the target's folder, under a name that is free, and returns its path."""
    while True:
        draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        with contextlib.suppress(FileExistsError):
            draft.touch(exist_ok=False)
            return draft


def _is_special(target: Path) -> bool:
    """Whether the target is a pipe, a device (/dev/null) or a link (/dev/stdout). A file must not replace
    these."""
    return target.is_symlink() or (target.exists() and not target.is_file())


def check_json(path: str, option: str = "--json") -> None:
    """Raises click's usage error if `path` cannot be written. Call before the work begins."""
    if path == STDOUT:
        raise click.UsageError(
            f"{option} takes a file: standard output has other lines. ./- is one of that name."
        )
    target = Path(path)
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if _is_special(target):
            if not os.access(target, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        _draft(target).unlink()
    except (OSError, ValueError) as error:  # ValueError: the path has a NUL
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise click.UsageError(f"{option} {path!r} cannot be written: {reason}.") from None


def write_json(path: str | None, fields: Mapping[str, Any]) -> None:
    """Writes the file at rank 0, completely or not at all."""
    if path is not None and is_rank_0():
        _write(path, fields)


def _json_text(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, indent=1) + "\n"


def _write(path: str, fields: Mapping[str, Any]) -> None:
    try:
        _replace(Path(path), _json_text(fields))
    except OSError as error:
        raise _not_written(f"--json {path!r}", error) from None


def _replace(target: Path, text: str) -> None:
    if _is_special(target):
        target.write_text(text, encoding="utf-8")
        return
    draft = _draft(target)
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _writer(path: str | None) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yields the function that writes the JSON; call it once. If the JSON goes to standard output, all
    other output goes to standard error meanwhile. This includes the output of children and of libraries."""
    if path != STDOUT:
        yield functools.partial(_write, path or "")
        return
    if sys.stdout is None:
        raise click.UsageError("--json - takes standard output, and it is closed: give a file.")
    sys.stdout.flush()
    own = os.dup(_STDOUT_FD)
    os.dup2(_STDERR_FD, _STDOUT_FD)

    def write(fields: Mapping[str, Any]) -> None:
        try:
            with open(own, "w", encoding="utf-8", closefd=False) as file:
                file.write(_json_text(fields))
        except OSError as error:
            raise _not_written("standard output", error) from None

    try:
        yield write
    finally:
        sys.stdout.flush()
        os.dup2(own, _STDOUT_FD)
        os.close(own)


def _writes_json(_options: Mapping[str, Any]) -> bool:
    return is_rank_0()


def command(
    name: str, writes_json: Callable[[Mapping[str, Any]], bool] = _writes_json, *, passes_found: bool = False
) -> Callable[[Callable[..., Findings]], Callable[..., None]]:
    """Wraps a command's body: adds --json, and writes the JSON after success and after a failure. Exits with
    0 (ok), 1 (findings, failures) or 2 (usage: nothing has run, nothing is written). A failed command may
    give another code as "exit_code".

    writes_json: whether this process writes, by its options; by default rank 0 does. passes_found: the body
    gets one more argument, the dictionary `found`. Its entries are written even if the body fails.
    """

    def wrap(body: Callable[..., Findings]) -> Callable[..., None]:
        @click.option("--json", "json_path", metavar="FILE", help=_JSON_HELP)
        @functools.wraps(body)
        def run(*, json_path: str | None, **options: Any) -> None:
            if json_path is not None and json_path != STDOUT and writes_json(options):
                check_json(json_path)

            fields: dict[str, Any] = {"command": name, "version": __version__, "ok": False}
            if passes_found:
                options["found"] = fields
            with _writer(json_path) as put_fields:

                def write() -> None:
                    if json_path is not None and writes_json(options):
                        put_fields(fields)

                try:
                    fields.update(body(**options))
                    write()
                except click.ClickException:
                    raise
                except BaseException as error:
                    fields.update(ok=False, error=error_to_fields(error))
                    with contextlib.suppress(OSError, RdmacollError):
                        write()
                    if not isinstance(error, (RdmacollError, OSError)):
                        raise
                    # Every rank that fails prints this: a wrong environment may be this rank's alone.
                    click.echo(f"rdmacoll {name}: {type(error).__name__}: {error}", err=True)
            if not fields["ok"]:
                sys.exit(fields.get("exit_code", 1))

        return run

    return wrap


def parse_range(text: str) -> tuple[int, int]:
    """Two numbers of "A:B"; a single "A" is A:A.

    >>> parse_range("1:64"), parse_range("3")
    ((1, 64), (3, 3))
    """
    first, colon, last = text.partition(":")
    try:
        return int(first), int(last if colon else first)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a range like 1:64") from None


def parse_bytes(text: str) -> int:
    """A size: 8, 64K, 1M (2^20), 1MiB.

    >>> parse_bytes("64K"), parse_bytes("1MiB"), parse_bytes("8")
    (65536, 1048576, 8)
    """
    stem = text.strip().upper().removesuffix("IB").removesuffix("B")
    factor = SIZE_SUFFIXES.get(stem[-1:], 1)
    digits = stem[:-1] if factor > 1 else stem
    if not digits.isdigit():
        raise click.BadParameter(f"{text!r} is not a size like 8, 64K or 1M")
    return int(digits) * factor
