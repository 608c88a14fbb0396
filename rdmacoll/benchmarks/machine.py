"""The machine of a measurement. Times mean nothing without it."""

from __future__ import annotations

import os
import platform
from typing import Any

from rdmacoll._base.text import counted


def processor_in(cpuinfo: str) -> str:
    """The first processor of /proc/cpuinfo, as the profile of the machine names it. "": it has no name.
    Several kinds of processor have one name, and differ in family and model.

    >>> processor_in("processor: 0\\nmodel\\t\\t: 17\\nmodel name\\t: AMD EPYC\\ncpu family\\t: 25\\n\\n")
    'AMD EPYC, family 25, model 17'
    """
    pairs = [line.partition(":") for line in cpuinfo.partition("\n\n")[0].splitlines()]
    found = {name.strip(): value.strip() for name, _, value in pairs}
    words = (
        ("model name", ""),
        ("cpu family", "family "),
        ("model", "model "),
        ("CPU implementer", "implementer "),
        ("CPU part", "part "),
    )
    return ", ".join(shown + found[name] for name, shown in words if name in found)


def machine_facts() -> dict[str, Any]:
    """The facts of this machine, for JSON."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        cpuinfo = file.read()
    return {
        "machine": platform.platform(),
        "processor": processor_in(cpuinfo) or platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
    }


def machine_line() -> str:
    """The same facts as the first line of a table: "AMD EPYC, family 25, model 17, 2 cores, Linux 6.1.0"."""
    facts = machine_facts()
    return f"{facts['processor']}, {counted(facts['cores'], 'core')}, Linux {facts['kernel']}"
