"""The results of `rdmacoll selftest`, the same on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from rdmacoll import engine
from rdmacoll.cli import references


class Results:
    """Counts cases. A case is one operation whose result every rank has compared.

    engine: has the functions of `rdmacoll.engine`, whose results are compared.
    """

    def __init__(self, engine: Any = engine) -> None:
        self.engine = engine
        self.cases = 0
        self.failures: list[dict[str, str]] = []
        self.skipped: list[dict[str, str]] = []

    def add(self, case: str, problem: str) -> None:
        """Adds a case that has run; `problem` is empty if the result is right."""
        self.cases += 1
        if problem:
            self.failures.append({"case": case, "reason": problem})

    def skip(self, case: str, reason: str) -> None:
        """Adds a case that cannot run here."""
        self.skipped.append({"case": case, "reason": reason})


def everywhere(problem: str, result: np.ndarray[Any, Any] | None = None) -> str:
    """The failing ranks, with this rank's own problem, or a message that the bits of the ranks' results
    differ. Empty if all is right. Every rank calls it; `result` is given if all ranks must have the same
    one."""
    print_of_result = 0 if result is None else references.fingerprint(result)
    prints = engine.allgather(np.array([print_of_result, 1 if problem else 0], np.int64).reshape(1, 2))
    if prints[:, 1].any():
        ranks = ", ".join(str(rank) for rank in np.flatnonzero(prints[:, 1]))
        return f"wrong on ranks {ranks}: {problem}" if problem else f"wrong on ranks {ranks}"
    if len(set(prints[:, 0].tolist())) != 1:
        return "the ranks' results are not bitwise equal"
    return ""
