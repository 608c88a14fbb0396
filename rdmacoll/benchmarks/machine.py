"""The machine of a measurement. Times mean nothing without it."""

from __future__ import annotations

import os
import platform
from typing import Any

from rdmacoll._base.text import counted


def machine_facts() -> dict[str, Any]:
    """The facts of this machine, for JSON."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return {
        "machine": platform.platform(),
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
    }


def machine_line() -> str:
    """The same facts as the first line of a table: "AMD EPYC, 2 cores, Linux 6.1.0"."""
    facts = machine_facts()
    return f"{facts['processor']}, {counted(facts['cores'], 'core')}, Linux {facts['kernel']}"
