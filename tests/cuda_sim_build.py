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
# The device kernels, emulated on a processor. Contraction would change their last bit.
KERNELS = ROOT / "cpp" / "cuda" / "kernels" / "emulate.cc"
KERNEL_OPTIONS = ("-O2", "-ffp-contract=off")


def fake_driver(without: tuple[str, ...] = ()) -> Path:
    """Returns the path of the library, which is built if its sources are new.

    Old drivers lack functions: the library does not export those in `without`.
    """
    sources = sorted(SOURCES.glob("*.cc"))
    headers = [*SOURCES.glob("*.h"), *(ROOT / "cpp" / "cuda").rglob("*.h"), KERNELS]
    digest = hashlib.sha256(" ".join(OPTIONS).encode())
    for path in [*sources, *sorted(headers)]:
        digest.update(path.name.encode() + path.read_bytes())
    stem = f"libcuda_sim-{digest.hexdigest()[:16]}"
    variant = hashlib.sha256(" ".join(without).encode()).hexdigest()[:8]
    library = TARGET / (f"{stem}-{variant}.so" if without else f"{stem}.so")
    TARGET.mkdir(parents=True, exist_ok=True)
    with open(TARGET / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _link(_objects(sources, TARGET / stem), without, library)
    return library


def _objects(sources: list[Path], stem: Path) -> list[Path]:
    """Compiles all sources of the driver as one, which is the fastest way on a busy processor."""
    whole, driver, kernels = (Path(f"{stem}{end}") for end in (".cc", ".o", ".kernels.o"))
    whole.write_text("".join(f'#include "{path.relative_to(ROOT / "tests")}"\n' for path in sources))
    cache = ["ccache"] if shutil.which("ccache") else []
    compiler = [*cache, "g++", *OPTIONS, f"-I{ROOT / 'cpp'}", f"-I{ROOT / 'tests'}"]
    for target, command in ((driver, ["-c", str(whole)]), (kernels, [*KERNEL_OPTIONS, "-c", str(KERNELS)])):
        if not target.exists():
            fresh = target.with_suffix(f".{os.getpid()}")  # a compiler that is killed leaves a part
            _run(*compiler, *command, "-o", str(fresh))
            fresh.rename(target)
    return [driver, kernels]


def _link(objects: list[Path], without: tuple[str, ...], library: Path) -> None:
    exports, fresh = library.with_suffix(".map"), library.with_suffix(f".{os.getpid()}")
    hidden = "".join(f" {name};" for name in without)
    exports.write_text(f"{{ global: *; {'local:' if without else ''}{hidden} }};\n")
    options = ["-shared", "-Wl,--no-undefined", f"-Wl,--version-script={exports}"]
    _run("g++", *options, *map(str, objects), "-o", str(fresh), "-lpthread")
    fresh.rename(library)


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-8000:]}"
