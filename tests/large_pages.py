"""Builds the library that gives a process pages of 64 KiB, from large_pages.cc."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tests" / "large_pages.cc"
TARGET = ROOT / "build" / "large_pages"
OPTIONS = ("-std=c++20", "-O1", "-fPIC", "-shared")


def large_pages() -> dict[str, str]:
    """The variables with which a process has such pages."""
    library = TARGET / f"large_pages-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
    TARGET.mkdir(parents=True, exist_ok=True)
    with open(TARGET / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            compiler = os.environ.get("CXX", "c++")
            subprocess.run([compiler, *OPTIONS, str(SOURCE), "-o", str(library), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}
