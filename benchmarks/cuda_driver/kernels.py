"""Makes kernels.ptx from kernels.cu with the compiler of the PyPI package nvidia-cuda-nvrtc-cu11==11.8.89.

    python3 benchmarks/cuda_driver/kernels.py path/to/libnvrtc.so.11.2

This release is the last one that compiles for capability 3.5. It writes PTX of version 7.8. Driver R470, the
last one for Tesla K80 boards, refuses this version. The kernels need version 6.0 only, so the text is changed
to 6.0.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
OPTIONS = (b"--gpu-architecture=compute_35", b"--std=c++17", b"--fmad=false")


def compiled(library: str, source: str) -> str:
    """Compiles CUDA source to PTX. Raises RuntimeError with the compiler's log."""
    nvrtc, program, size = ctypes.CDLL(library), ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
    part = "PTX" if nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options) == 0 else "ProgramLog"
    getattr(nvrtc, f"nvrtcGet{part}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{part}")(program, text)
    if part != "PTX":
        raise RuntimeError(text.value.decode())
    return text.value.decode().replace(".version 7.8", ".version 6.0")


if __name__ == "__main__":
    ptx = compiled(sys.argv[1], (HERE / "kernels.cu").read_text(encoding="utf-8"))
    (HERE / "kernels.ptx").write_text(ptx, encoding="utf-8")
