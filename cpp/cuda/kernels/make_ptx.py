"""Makes the files of ptx/ from the kernels' source with the compiler of the PyPI package
nvidia-cuda-nvrtc-cu11==11.8.89, which needs no GPU.

    python3 cpp/cuda/kernels/make_ptx.py path/to/libnvrtc.so.11.2 [another folder]

This release is the last one that compiles for capability 3.5. It writes PTX of version 7.8. Driver R470, the
last one for Tesla K80 boards, refuses this version. The kernels need version 6.0 only, so the text is changed
to 6.0.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PTX = HERE / "ptx"
CPP = HERE.parent.parent
SOURCES = ("parameters.h", "machine.h", "elements.h", "reduce.h", "write_word.h", "make_ptx.py")
OPTIONS = (
    "--gpu-architecture=compute_35",
    "--std=c++17",
    "--fmad=false",
    f"--include-path={CPP}",
)
REDUCTION = """
#include "cuda/kernels/reduce.h"
using namespace rdmacoll::cuda;
extern "C" __global__ void __launch_bounds__(kThreads) %s(const ReduceParameters job) {
  Reduction<%s, %s>(job, {blockIdx.x, gridDim.x, threadIdx.x}).run();
}
"""
WRITE_WORD = """
#include "cuda/kernels/write_word.h"
using namespace rdmacoll::cuda;
extern "C" __global__ void write_word(const WriteWordParameters job) { write(job); }
"""


def programs() -> dict[str, str]:
    """Returns the CUDA source of each kernel, by its name."""
    lists = (HERE / "parameters.h").read_text(encoding="utf-8")
    found = {}
    for name, dtype, operator in re.findall(r"X\((\w+), (\w+), (Sum|Any|Copy)\)", lists):
        found[name] = REDUCTION % (name, dtype, operator)
    found["write_word"] = WRITE_WORD
    return found


def source_hash() -> str:
    """Returns a hash of everything that the PTX depends on, but the compiler."""
    texts = (f"{name}\n{(HERE / name).read_text(encoding='utf-8')}" for name in SOURCES)
    return hashlib.sha256("".join(texts).encode()).hexdigest()


class Compiler:
    """The compiler of a library libnvrtc.so."""

    def __init__(self, library: str) -> None:
        self._nvrtc = ctypes.CDLL(library)

    def compiled(self, name: str, source: str) -> str:
        """Compiles CUDA source to PTX. Raises RuntimeError with the compiler's log."""
        nvrtc, program, size = self._nvrtc, ctypes.c_void_p(), ctypes.c_size_t()
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
        options = (ctypes.c_char_p * len(OPTIONS))(*(option.encode() for option in OPTIONS))
        succeeded = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options) == 0
        part = "PTX" if succeeded else "ProgramLog"
        getattr(nvrtc, f"nvrtcGet{part}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, f"nvrtcGet{part}")(program, text)
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
        if not succeeded:
            raise RuntimeError(text.value.decode())
        return text.value.decode()


def shortened(ptx: str) -> str:
    """Returns the PTX with the older version, without comments, blank lines, tabs and unused constants."""
    text = re.sub(r"//.*", "", ptx).replace(".version 7.8", ".version 6.0")
    text = re.sub(r"^\.global .*;$", "", text, flags=re.MULTILINE)
    lines = (re.sub(r"[ \t]+", " ", line).strip() for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def files(library: str) -> dict[str, str]:
    """Returns the texts of all files in ptx/. They are C++ for #include, with a string in each."""
    compiler, table, found = Compiler(library), [], {}
    for name, source in programs().items():
        ptx = shortened(compiler.compiled(name, source))
        found[f"{name}.inc"] = f'R"ptx({ptx})ptx"\n'
        table.append(f'{{"{name}",\n#include "cuda/kernels/ptx/{name}.inc"\n}},\n')
    found["table.inc"] = f"// Made by make_ptx.py from sources of hash {source_hash()}.\n{''.join(table)}"
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else PTX
    for old in folder.glob("*.inc"):
        old.unlink()
    for name, text in files(sys.argv[1]).items():
        (folder / name).write_text(text, encoding="utf-8")
