"""The PTX in the repository belongs to the source of the device kernels beside it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from ranks import ROOT

KERNELS = ROOT / "cpp" / "cuda" / "kernels"


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
        # A sum is rounded before anything is added to it.
        assert not re.search(r"\bfma\.", ptx), name
        # Local memory would be allocated for all threads that the GPU can have.
        assert ".local" not in ptx, name
        assert not re.search(r"\b(div|mul|add)\.\w*\.?(approx|ftz)", ptx), name


def test_the_shared_source_has_no_path_of_the_machine_that_compiled_it() -> None:
    for name, ptx in shipped().items():
        assert str(Path.home()) not in ptx, name
        assert "/" not in ptx, name
