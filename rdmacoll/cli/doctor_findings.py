"""A finding of `rdmacoll doctor`: what was seen, why it matters, the cure, and how to check it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rdmacoll.cli.doctor_facts import UNLIMITED, Limit

OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True)
class Finding:
    """Without a cure when all is well."""

    name: str
    state: str
    seen: str
    why: str = ""
    cure: str = ""
    check: str = ""
    group: str = ""
    is_standing: bool = False  # a note about the machine as it is, which comes behind those about faults

    @property
    def urgency(self) -> int:
        """Findings are shown by it: problems, notes, standing notes, and what is well."""
        return 3 if self.state == OK else 0 if self.state == PROBLEM else 2 if self.is_standing else 1

    def fields(self) -> dict[str, str]:
        """For JSON."""
        return {name: value for name, value in asdict(self).items() if name != "is_standing"}


def ok(name: str, seen: str, *, why: str, check: str) -> Finding:
    """Nothing to do; why it was looked at, and how to see it oneself."""
    return Finding(name, OK, seen, why, check=check)


def note(name: str, seen: str, *, why: str, cure: str, check: str, is_standing: bool = False) -> Finding:
    """Worth knowing; a training runs."""
    return Finding(name, NOTE, seen, why, cure, check, is_standing=is_standing)


def problem(name: str, seen: str, *, why: str, cure: str, check: str) -> Finding:
    """A training fails, or does not use what is there."""
    return Finding(name, PROBLEM, seen, why, cure, check)


def size_text(count: int) -> str:
    """Bytes for a person.

    >>> size_text(65536), size_text(1 << 30), size_text(1536), size_text(12)
    ('64 KiB', '1 GiB', '1.5 KiB', '12 B')
    """
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count} B"


def limit_cure(limit: Limit, need: int, raised: str, entry: str, otherwise: str = "") -> str:
    """How to raise a limit to `need`: in the shell if the hard limit allows it, else as root.

    raised: the arguments of ulimit. entry: the line of limits.d. otherwise: more ways beside that.

    >>> limit_cure(Limit(64, 4096), 1024, "-n 4096", "nofile 65536")
    'ulimit -n 4096 in the shell or script that starts the ranks'
    >>> limit_cure(Limit(64, 64), 1024, "-n 4096", "nofile 65536")
    "as root: '* - nofile 65536' in /etc/security/limits.d/rdmacoll.conf and log in again"
    """
    if limit.hard == UNLIMITED or limit.hard >= need:
        return f"ulimit {raised} in the shell or script that starts the ranks"
    return f"as root: '* - {entry}' in /etc/security/limits.d/rdmacoll.conf and log in again{otherwise}"
