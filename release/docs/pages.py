"""Writes the pages of the documentation site, for mkdocs: python release/docs/pages.py FOLDER.

The site is docs/, the documents of the root, and generated pages: settings, algorithms, commands and the
API. A link to a file that is no page becomes plain text. A link to a file that does not exist ends the
program.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from rdmacoll._abi.library import load
from rdmacoll.cli.main import commands

ROOT = Path(__file__).resolve().parents[2]
# Documents outside docs/, and their pages.
ADDED = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
}
API = ("rdmacoll", "rdmacoll.engine", "rdmacoll.ps", "rdmacoll.keras.callbacks")
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def with_links_of_the_site(markdown: str, source: Path, page: Path, places: dict[Path, Path]) -> str:
    """Returns the text of `source` with its links changed for `page`. places: the page of each document.
    Exits with a sentence if a link leads nowhere."""

    def moved(found: re.Match[str]) -> str:
        text, target, anchor = found.group(1), found.group(2), found.group(3) or ""
        if "://" in target:
            return found.group(0)
        if not (source.parent / target).exists():
            raise SystemExit(f"{source} links to {target}, which does not exist")
        place = places.get((source.parent / target).resolve())
        return text if place is None else f"[{text}]({os.path.relpath(place, page.parent)}{anchor})"

    return _LINK.sub(moved, markdown)


def settings_page(rows: list[dict[str, Any]]) -> str:
    """Returns Markdown with a section for each setting."""
    parts = ["# Settings", "Each is an environment variable, and an argument of `init()` without its prefix."]
    for row in rows:
        facts = [
            f"default: `{row['default']}`" if row["default"] else "no default",
            f"allowed: {row['allowed']}",
        ]
        if row["aliases"]:
            facts.append(f"also: {', '.join(row['aliases'])}")
        parts += [f"## {row['name']}", row["help"], "- " + "\n- ".join(facts)]
    return "\n\n".join(parts) + "\n"


def algorithms_page(rows: list[dict[str, Any]]) -> str:
    """Returns Markdown with a table of the algorithms, in the order in which they are preferred."""
    parts = ["# Algorithms", "`rdmacoll plan` shows which one runs for an operation, and why."]
    lines = ["| algorithm | result | setting | canonical order |", "|---|---|---|---|"]
    for row in rows:
        setting = "can be forced" if row["can_be_forced"] else "automatic"
        order = f"no: {row['never_canonical']}" if row["never_canonical"] else "yes"
        order = "if nodes have a power of two of ranks" if row["by_node"] else order
        order = order if "sum" in row["result"] else ""
        lines.append(f"| `{row['name']}` | {row['result'].replace('_', ' ')} | {setting} | {order} |")
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"


def commands_page(group: click.Group) -> str:
    """Returns Markdown with a section for each command, which shows the output of --help."""
    parts = ["# Command reference"]
    for words, command in _commands_of(group, "rdmacoll"):
        context = click.Context(command, info_name=words, terminal_width=80)
        parts += [f"## {words}", f"```text\n{command.get_help(context)}\n```"]
    return "\n\n".join(parts) + "\n"


def _commands_of(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    for word, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from _commands_of(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


def api_page(modules: list[ModuleType]) -> str:
    """Returns Markdown with a section for each public name, its signature and docstring."""
    parts, seen = ["# API"], set()
    for module in modules:
        parts.append(f"## {module.__name__}")
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.ismodule(value) or not callable(value) or id(value) in seen:
                continue
            seen.add(id(value))
            parts += [f"### {module.__name__}.{name}", f"```python\n{name}{_signature(value)}\n```"]
            parts.append(f"```text\n{inspect.getdoc(value) or ''}\n```")
    return "\n\n".join(parts) + "\n"


def _signature(value: Any) -> str:
    try:
        return str(inspect.signature(value))
    except (TypeError, ValueError):  # a function that is not written in Python
        return "(...)"


def write(folder: Path, modules: list[ModuleType]) -> None:
    """Writes all pages into `folder`, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    docs = ROOT / "docs"
    pages = {source: folder / source.relative_to(docs) for source in docs.rglob("*.md")}
    pages.update({ROOT / source: folder / page for source, page in ADDED.items()})
    pictures = {source: folder / source.relative_to(docs) for source in docs.rglob("*.svg")}
    for page in (*pages.values(), *pictures.values()):
        page.parent.mkdir(parents=True, exist_ok=True)
    for source, picture in pictures.items():
        shutil.copyfile(source, picture)
    for source, page in pages.items():
        page.write_text(with_links_of_the_site(source.read_text(), source, page, pages | pictures))
    (folder / "settings.md").write_text(settings_page(load().settings()))
    (folder / "algorithms.md").write_text(algorithms_page(load().algorithms()))
    (folder / "command-reference.md").write_text(commands_page(commands))
    (folder / "api.md").write_text(api_page(modules))


if __name__ == "__main__":
    write(Path(sys.argv[1]), [importlib.import_module(name) for name in API])
