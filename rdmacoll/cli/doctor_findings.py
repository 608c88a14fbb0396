"""A finding of `rdmacoll doctor`: the observation, why it matters, the cure, and a command to check it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rdmacoll.cli.doctor_facts import UNLIMITED, Limit

OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True)
class Finding:
    """A finding. If all is well, it has no cure."""

    name: str
    state: str
    seen: str
    why: str = ""
    cure: str = ""
    check: str = ""
    group: str = ""
    is_standing: bool = False  # a note about the machine itself, shown after notes about faults

    @property
    def urgency(self) -> int:
        """The order of the page: 0 problem, 1 note, 2 standing note, 3 ok."""
        return 3 if self.state == OK else 0 if self.state == PROBLEM else 2 if self.is_standing else 1

    def fields(self) -> dict[str, str]:
        """The fields for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "is_standing"}


def ok(name: str, seen: str, *, why: str, check: str) -> Finding:
    """A finding without a cure. why: the reason for the check. check: a command that shows the same."""
    return Finding(name, OK, seen, why, check=check)


def note(name: str, seen: str, *, why: str, cure: str, check: str, is_standing: bool = False) -> Finding:
    """A finding that is worth knowing; a training runs."""
    return Finding(name, NOTE, seen, why, cure, check, is_standing=is_standing)


def problem(name: str, seen: str, *, why: str, cure: str, check: str) -> Finding:
    """A fault: a training fails, or does not use the hardware that is there."""
    return Finding(name, PROBLEM, seen, why, cure, check)


def size_text(count: int) -> str:
    """A number of bytes for people.

    >>> size_text(65536), size_text(1 << 30), size_text(1536), size_text(12)
    ('64 KiB', '1 GiB', '1.5 KiB', '12 B')
    """
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count} B"


def limit_cure(limit: Limit, required: int, raised: str, entry: str, otherwise: str = "") -> str:
    """How to raise a limit to `required`: in the shell if the hard limit allows it, otherwise as root.

    raised: the arguments of ulimit. entry: the line of limits.d. otherwise: further ways, added to the second
    text.

    >>> limit_cure(Limit(64, 4096), 1024, "-n 4096", "nofile 65536")
    'ulimit -n 4096 in the shell or script that starts the ranks'
    >>> limit_cure(Limit(64, 64), 1024, "-n 4096", "nofile 65536")
    "as root: '* - nofile 65536' in /etc/security/limits.d/rdmacoll.conf and log in again"
    """
    if limit.hard == UNLIMITED or limit.hard >= required:
        return f"ulimit {raised} in the shell or script that starts the ranks"
    return f"as root: '* - {entry}' in /etc/security/limits.d/rdmacoll.conf and log in again{otherwise}"
