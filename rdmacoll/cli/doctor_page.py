"""Prints the findings of `rdmacoll doctor` as one page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

import click

from rdmacoll._base.text import counted
from rdmacoll.cli import doctor_gpu
from rdmacoll.cli.doctor_facts import Machine
from rdmacoll.cli.doctor_findings import NOTE, OK, PROBLEM, Finding

_COLOURS = {OK: "green", NOTE: "yellow", PROBLEM: "red"}
_STATE_WIDTH = len(PROBLEM)
# Titles by urgency. Findings that are ok stand below the title of their group.
_TITLES = {0: "Problems", 1: "Notes", 2: "Notes about the machine"}
_WIDTH_MIN, _WIDTH_MAX = 50, 120  # longer lines are hard to read


def lines(machine: Machine, findings: Sequence[Finding], width: int) -> Iterator[str]:
    """The page: problems and notes, then the findings that are ok, one line each, by groups."""
    yield f"rdmacoll {machine.package} on {machine.host} ({machine.system}, Python {machine.python})"
    yield from finding_lines(findings, width, doctor_gpu.lines(machine.gpus, _bounded(width)))


def _bounded(width: int) -> int:
    return max(_WIDTH_MIN, min(width, _WIDTH_MAX))


def finding_lines(findings: Sequence[Finding], width: int, more: Iterable[str] = ()) -> Iterator[str]:
    """The findings, faults before the groups that are ok, then `more` lines, and the summary."""
    width = _bounded(width)
    name_width = max((len(finding.name) for finding in findings), default=0)
    group = ""
    for finding in sorted(findings, key=lambda finding: finding.urgency):
        title = _TITLES.get(finding.urgency, finding.group)
        if title != group:
            group = title
            yield ""
            yield click.style(group, bold=True)
        yield from _block(finding, name_width, width)
    yield from more
    yield ""
    yield summary(findings)


def _block(finding: Finding, name_width: int, width: int) -> Iterator[str]:
    margin = 2 + _STATE_WIDTH + 2
    indent = " " * (margin + name_width + 2)
    state = click.style(finding.state.ljust(_STATE_WIDTH), fg=_COLOURS[finding.state])
    seen = _wrapped(finding.seen, width - len(indent))
    yield f"  {state}  {finding.name.ljust(name_width)}  {seen[0]}"
    for line in seen[1:]:
        yield indent + line
    if finding.state == OK:
        return
    for label, text in (("why", finding.why), ("cure", finding.cure), ("check", finding.check)):
        label_width = len("check: ")
        for number, line in enumerate(_wrapped(text, width - len(indent) - label_width)):
            title = f"{label}:".ljust(label_width) if number == 0 else " " * label_width
            yield indent + title + line


def _wrapped(text: str, width: int) -> list[str]:
    # Paths and options stay in one piece, so that a user can copy them.
    return textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False) or [""]


def summary(findings: Sequence[Finding]) -> str:
    """The last line: the number of problems, notes and ok."""
    count = {state: sum(finding.state == state for finding in findings) for state in (PROBLEM, NOTE, OK)}
    return f"{counted(count[PROBLEM], 'problem')}, {counted(count[NOTE], 'note')}, {count[OK]} ok."
