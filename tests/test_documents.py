"""Documents: the links, commands, settings and messages that they name exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from test_tidy import CPP, ROOT, cpp_files, relative, tracked

from rdmacoll.cli.main import commands

# Measurements are history: they name things of their day.
FOR_USERS = [
    path
    for path in tracked("README.md", "docs/*.md", "benchmarks/*.md")
    if path.parent.name != "measurements"
]
PLAIN = [
    *FOR_USERS,
    *(ROOT / name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
]
NO_SETTINGS = {"RDMACOLL_TEST_DEVICE"}  # variables of tests
WORDS_MAX = 25  # in one sentence
# First words that put the subject last.
_ASTRAY = re.compile(r"(?:What|Who|Whoever|Of|Where|That)\b")


def test_chapters_have_one_form() -> None:
    for path in tracked("docs/internals/*.md"):
        parts = re.findall(r"^## (.*)$", path.read_text(), re.MULTILINE)
        assert parts == ["Problem", "Design", "Decisions"], f"{relative(path)}: {parts}"


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{relative(path)}: {target}"
        for path in tracked("*.md")
        for target in re.findall(r"\]\(([^)\s]+)\)", _without_code(path.read_text()))
        if "://" not in target and not _leads_somewhere(path, target)
    ]
    assert not broken, "\n".join(broken)


def _leads_somewhere(path: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    document = path.parent / name if name else path
    if not anchor or not document.is_file():
        return document.exists()
    titles = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return anchor in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _without_code(markdown: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", markdown, flags=re.DOTALL)


@pytest.mark.parametrize("path", FOR_USERS, ids=relative)
def test_every_command_and_setting_of_a_page_exists(path: Path) -> None:
    page, where = path.read_text(), relative(path)
    table = (CPP / "settings" / "settings_table.cc").read_text()
    for name in set(re.findall(r"\bRDMACOLL_[A-Z_]+[A-Z]\b", page)) - NO_SETTINGS:
        assert f'"{name}"' in table, f"{where} names {name}, which is no setting"
    named = re.findall(
        r"(?<![\w./])rdmacoll((?: [a-z][a-z-]+)+)((?: --[a-z][a-z_-]*(?:=\S+)?| [\w:]+)*)", _code(page)
    )
    for words, rest in named:
        command: click.Command = commands
        for word in words.split():
            assert isinstance(command, click.Group), f"{where}: rdmacoll{words}"
            assert word in command.commands, f"{where}: rdmacoll{words} is no command"
            command = command.commands[word]
        options = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--[a-z][a-z_-]*", rest)) <= options, f"{where}: rdmacoll{words}{rest}"


@pytest.mark.parametrize("path", PLAIN, ids=relative)
def test_sentences_are_short_and_begin_with_their_subjects(path: Path) -> None:
    """A list of names in code counts as one word. A colon ends a sentence."""
    assert list(_unclear(path.read_text())) == []


def test_it_is_seen_which_sentences_are_not_plain() -> None:
    words = "and so on " * 9
    page = (
        f"# What\n\nIt is, {words}.\nWhat is it? Of two\nparts. `a`, `b` and `c` do: where they lie.\n\n"
        "- **Who.** It.\n| that | of |\n"
    )
    assert list(_unclear(page)) == [f"It is, {words.strip()} .", "Of two parts.", "Who."]


def _unclear(markdown: str) -> Iterator[str]:
    for sentence in _sentences(markdown):
        words = [word for word in sentence.split() if re.search(r"\w", word)]
        if len(words) > WORDS_MAX or (_ASTRAY.match(sentence) and not sentence.endswith("?")):
            yield sentence


def _sentences(markdown: str) -> Iterator[str]:
    text = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    text = re.sub(r"^(?:#|\||    ).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)\s]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`(?:(?:,| and| or)\s+`[^`]*`)*", "Code", text)
    for paragraph in re.split(r"\n\s*(?:- |\d+\. )|\n\s*\n", "\n" + text):
        yield from re.split(r"(?<=[.!?:]) +(?=[(\w])", " ".join(paragraph.replace("**", "").split()))


def test_every_command_is_on_its_page() -> None:
    page = (ROOT / "docs/commands.md").read_text()
    missing = [name for name in commands.commands if f"rdmacoll {name}" not in page]
    assert not missing


def test_titles_of_troubleshooting_are_parts_of_messages() -> None:
    pages = [(ROOT / "docs" / name).read_text() for name in ("troubleshooting.md", "gpu.md")]
    found = [re.findall(r"^### `(.*)`$", page, re.MULTILINE) for page in pages]
    assert all(found)
    titles = [title for of_page in found for title in of_page]
    sources = [*cpp_files(), *(ROOT / "rdmacoll").rglob("*.py")]
    # Adjacent string literals of the source are one text in the message.
    sources_text = "\n".join(re.sub(r'"\s*\n\s*f?"', "", path.read_text()) for path in sources)
    missing = [title for title in titles if title not in sources_text]
    assert not missing, missing


def _code(markdown: str) -> str:
    blocks = re.findall(r"^```(?:sh)?\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^    (.*)$", markdown, re.MULTILINE)
    return "\n".join([*blocks, *indented, *re.findall(r"`([^`\n]+)`", markdown.replace("```", ""))])
