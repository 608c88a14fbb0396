"""The machine and its profile, as each benchmark shows them."""

from __future__ import annotations

from typing import Any

from rdmacoll._abi.library import load
from rdmacoll.benchmarks.machine import machine_facts
from rdmacoll.cli.profile_text import summary
from rdmacoll.cli.report import print_prose


def shown_machine() -> dict[str, Any]:
    """Prints the profile of this machine. Returns it with the facts of the machine, for JSON. Call it when
    ranks have started: the first start measures the profile."""
    profile = load().machine_profile()
    print_prose(f"profile: {summary(profile)}")
    return {**machine_facts(), "profile": profile}
