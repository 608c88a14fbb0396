"""Unpacks pyverbs from Debian's package without installing it. Other tests need a machine without pyverbs."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from rdma import cache
from rdma.cache import GuestError

_MODULES = Path("usr/lib/python3/dist-packages")


def folder() -> Path:
    """Returns the folder that PYTHONPATH needs for pyverbs.

    Raises GuestError if Debian's pyverbs does not fit this Python.
    """
    found = [modules for modules in cache.folder().glob(f"pyverbs-*/{_MODULES}") if _fits(modules)]
    modules = (
        max(found, key=lambda one: one.stat().st_mtime)
        if found
        else cache.unpacked("python3-pyverbs", "pyverbs") / _MODULES
    )
    if not _fits(modules):
        ours = sys.version.split()[0]
        raise GuestError(f"python3-pyverbs is not made for Python {ours}: use the system's own Python")
    return modules


def _fits(modules: Path) -> bool:
    return any((modules / "pyverbs" / f"device{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
