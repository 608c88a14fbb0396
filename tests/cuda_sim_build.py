"""Builds the fake CUDA driver of tests/cuda_sim for Python tests. It stands for libcuda and for NVML."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "tests" / "cuda_sim"
TARGET = ROOT / "build" / "cuda_sim"
OPTIONS = ("-std=c++20", "-O1", "-g1", "-fPIC", "-fvisibility=hidden")
# The device kernels, played on a processor. Contraction would change their last bit.
KERNELS = ROOT / "cpp" / "cuda" / "kernels" / "play.cc"
KERNEL_OPTIONS = ("-O2", "-ffp-contract=off")
# Optional functions of the driver are in this file.
OPTIONAL = "optional_api.cc"


def fake_driver(has_optional: bool = True) -> Path:
    """Returns the path of the library, which is built if its sources are new.

    Without the optional functions the library plays a driver that does not export them.
    """
    sources = sorted(SOURCES.glob("*.cc"))
    if not has_optional:
        sources = [path for path in sources if path.name != OPTIONAL]
    headers = [*SOURCES.glob("*.h"), *(ROOT / "cpp" / "cuda").rglob("*.h"), KERNELS]
    digest = hashlib.sha256(" ".join(OPTIONS).encode())
    for path in [*sources, *sorted(headers)]:
        digest.update(path.name.encode() + path.read_bytes())
    library = TARGET / f"libcuda_sim-{digest.hexdigest()[:16]}.so"
    TARGET.mkdir(parents=True, exist_ok=True)
    with open(TARGET / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _build(sources, library)
    return library


def _build(sources: list[Path], library: Path) -> None:
    """Compiles all sources of the driver as one, which is the fastest way on a busy processor."""
    whole, built, kernels = (library.with_suffix(end) for end in (".cc", ".o", ".kernels.o"))
    whole.write_text("".join(f'#include "{path.relative_to(ROOT / "tests")}"\n' for path in sources))
    cache = ["ccache"] if shutil.which("ccache") else []
    folders = [f"-I{ROOT / 'cpp'}", f"-I{ROOT / 'tests'}"]
    _run(*cache, "g++", *OPTIONS, *folders, "-c", str(whole), "-o", str(built))
    _run(*cache, "g++", *OPTIONS, *KERNEL_OPTIONS, *folders, "-c", str(KERNELS), "-o", str(kernels))
    fresh = library.with_suffix(f".{os.getpid()}")
    _run("g++", "-shared", "-Wl,--no-undefined", str(built), str(kernels), "-o", str(fresh), "-lpthread")
    fresh.rename(library)


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-8000:]}"
