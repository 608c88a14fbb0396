"""Reads the sentences of comments and docstrings, for the test of their first words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

# First words that put the subject last. Questions are allowed.
_ASTRAY = re.compile(r"[\"'(`]*(?:What|Who|Whoever|Of|Where|That)\b", re.IGNORECASE)
_DOCTEST = re.compile(r"^[ \t]*>>>.*(?:\n(?![ \t]*$).*)*", re.MULTILINE)
_PARAGRAPHS = re.compile(r"\n[ \t]*\n|\n[ \t]*(?=[-*] )")
_ENDS = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][)\"'`])) +(?=[\"'(`]*[A-Z])")
# Literals are matched too, so that their contents are not taken for comments.
_CPP = re.compile(
    r'"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'|//(?P<line>[^\n]*)|/\*(?P<block>(?:.|\n)*?)\*/'
)


def astray(path: Path) -> Iterator[tuple[int, str]]:
    """Yields line and text of each sentence that begins with one of the first words above."""
    text = path.read_text()
    blocks = (
        [*_docstrings(text), *_joined(_of_python(text), text)]
        if path.suffix == ".py"
        else _joined(_of_cpp(text), text)
    )
    for line, block in blocks:
        for sentence in sentences(block):
            if _ASTRAY.match(sentence) and not sentence.rstrip("\"')`").endswith("?"):
                yield line, sentence


def sentences(text: str) -> list[str]:
    """Returns the sentences of one comment or docstring. Paragraphs and list items begin new sentences."""
    found = []
    for paragraph in _PARAGRAPHS.split("\n" + _DOCTEST.sub("\n", text)):
        joined = " ".join(paragraph.split()).removeprefix("- ").removeprefix("* ")
        found += [sentence for sentence in _ENDS.split(joined) if sentence]
    return found


def _docstrings(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found = ast.get_docstring(node)
            if found:
                yield node.body[0].lineno, found


def _of_python(text: str) -> Iterator[tuple[int, int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield *token.start, token.string.lstrip("#:")


def _of_cpp(text: str) -> Iterator[tuple[int, int, str]]:
    for found in _CPP.finditer(text):
        comment = found["line"] if found["line"] is not None else found["block"]
        if comment is not None:
            begin = text.rfind("\n", 0, found.start()) + 1
            yield text.count("\n", 0, begin) + 1, found.start() - begin, comment.lstrip("/*")


def _joined(comments: Iterator[tuple[int, int, str]], text: str) -> Iterator[tuple[int, str]]:
    """Joins a comment with the next line's comment in the same column, if that line has no code."""
    lines = text.splitlines()
    first, place, block = 0, (-1, -1), ""
    for line, column, comment in comments:
        if place == (line - 1, column) and not lines[line - 1][:column].strip():
            block += "\n" + comment
        else:
            if block:
                yield first, block
            first, block = line, comment
        place = line, column
    if block:
        yield first, block
