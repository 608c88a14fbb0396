"""The PTX in the repository belongs to the source of the device kernels beside it, and every assembler of
NVIDIA takes it.

The compiler and the assemblers come from PyPI when they are missing (130 MB), and are kept.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from ranks import ROOT

KERNELS = ROOT / "cpp" / "cuda" / "kernels"
COMPILER = "nvidia-cuda-nvrtc-cu11==11.8.89"
# Assemblers, and the GPUs beside the oldest one that each of them knows. 3.7 is a Tesla K80.
ASSEMBLERS = {
    "nvidia-cuda-nvcc-cu11==11.8.89": ("sm_37",),
    "nvidia-cuda-nvcc-cu12": ("sm_90",),
    "nvidia-cuda-nvcc>=13": ("sm_90",),
}


def installed(requirement: str, file: str) -> Path:
    """Returns a file of a package of PyPI, which is downloaded when it is missing."""
    cache = Path(os.environ.get("RDMACOLL_CACHE", Path.home() / ".cache" / "rdmacoll"))
    folder = cache / re.sub(r"\W+", "-", requirement)
    cache.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = sorted(folder.rglob(file))
        if not found:
            shutil.rmtree(folder, ignore_errors=True)
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
            subprocess.run([*pip, "--target", str(folder), requirement], check=True, timeout=600)
            found = sorted(folder.rglob(file))
    return found[0]


@pytest.fixture(scope="module")
def make_ptx() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_ptx", KERNELS / "make_ptx.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shipped() -> dict[str, str]:
    """Returns the PTX of each kernel."""
    found = {}
    for path in sorted((KERNELS / "ptx").glob("*.inc")):
        if path.stem != "table":
            text = path.read_text(encoding="utf-8")
            assert text.startswith('R"ptx(')
            assert text.endswith(')ptx"\n')
            found[path.stem] = text[len('R"ptx(') : -len(')ptx"\n')]
    return found


def test_the_ptx_was_made_from_the_source_beside_it(make_ptx: ModuleType) -> None:
    table = (KERNELS / "ptx" / "table.inc").read_text(encoding="utf-8")
    assert make_ptx.source_hash() in table, "run cpp/cuda/kernels/make_ptx.py"
    named = set(re.findall(r'^\{"(\w+)",$', table, re.MULTILINE))
    assert named == set(make_ptx.programs()) == set(shipped())
    assert named >= {"sum_float32", "reduce_int8", "sum_mixed_bfloat16", "copy_bytes", "write_word"}


def test_the_ptx_is_for_tesla_k80_boards_and_their_last_driver() -> None:
    for name, ptx in shipped().items():
        assert ptx.startswith(".version 6.0\n.target sm_35\n.address_size 64\n"), name
        assert re.findall(r"^\.visible \.entry (\w+)\($", ptx, re.MULTILINE) == [name]
        # Halves have sums only from capability 5.3 on, and bfloat16 has conversions from 8.0 on.
        assert not re.search(r"\b(add|mul|fma)\.(rn\.)?f16|\.bf16", ptx), name
        # An assembler may fuse a product and a sum that do not say how they are rounded.
        assert not re.search(r"\b(fma|mad)\.(rn\.)?f|\b(add|sub|mul)\.f", ptx), name
        # A minimum of floats would lose NaNs.
        assert not re.search(r"\b(min|max)\.f", ptx), name
        # Local memory would be allocated for all threads that the GPU can have.
        assert ".local" not in ptx, name
        assert not re.search(r"\b(div|mul|add)\.\w*\.?(approx|ftz)", ptx), name


def test_the_ptx_has_no_path_of_the_machine_that_compiled_it() -> None:
    for name, ptx in shipped().items():
        assert "/" not in ptx, name


@pytest.mark.slow
def test_the_compiler_makes_the_same_ptx_again(tmp_path: Path) -> None:
    # The compiler changes the locale of its process.
    program = [sys.executable, KERNELS / "make_ptx.py", installed(COMPILER, "libnvrtc.so.*"), tmp_path]
    subprocess.run(program, check=True, timeout=600)
    made, kept = (
        {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.inc")}
        for folder in (tmp_path, KERNELS / "ptx")
    )
    assert set(made) == set(kept)
    assert [name for name in made if made[name] != kept[name]] == []


@pytest.mark.slow
@pytest.mark.parametrize("requirement", ASSEMBLERS)
def test_an_assembler_takes_all_kernels(requirement: str, tmp_path: Path) -> None:
    ptxas = installed(requirement, "ptxas")
    ptxas.chmod(0o755)
    usage = subprocess.run([ptxas, "--help"], capture_output=True, text=True, timeout=60).stdout
    oldest = min((int(number) for number in re.findall(r"'sm_(\d+)'", usage)), default=0)
    targets = (f"sm_{oldest}", *ASSEMBLERS[requirement])
    for name, ptx in shipped().items():
        source = tmp_path / f"{name}.ptx"
        source.write_text(ptx, encoding="utf-8")
        for target in targets:
            command = [ptxas, "-v", f"-arch={target}", source, "-o", tmp_path / "kernel.cubin"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, f"{name} for {target}: {done.stderr}"
            # Memory for a frame is allocated for all threads that the GPU can have.
            frame = re.search(r"(\d+) bytes stack frame", done.stderr)
            assert frame, done.stderr
            assert int(frame[1]) <= 64, f"{name} for {target}: {done.stderr}"
