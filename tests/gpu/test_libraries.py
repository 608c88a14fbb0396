"""Arrays of PyTorch, JAX, numba and cupy in collectives of ranks that share the GPU.

Each library that this machine has is used, if there is a GPU.
"""

from __future__ import annotations

import py_compile
from pathlib import Path

import pytest
from places import LIBRARIES, Place, installed
from ranks import run

PROGRAMS = {name: Path(__file__).with_name(f"arrays_of_{name}.py") for name in LIBRARIES}


def test_the_programs_are_python(tmp_path: Path) -> None:
    for program in PROGRAMS.values():
        py_compile.compile(str(program), str(tmp_path / "compiled"), doraise=True)


if installed():

    @pytest.mark.gpu
    @pytest.mark.parametrize("name", installed())
    def test_a_library_takes_part_with_its_own_arrays(name: str) -> None:
        run(PROGRAMS[name], 2, env=Place(name, True).environment(), deadline_s=200).succeeded()
