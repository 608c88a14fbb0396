"""Launches the library's kernels that reduce, from the PTX in cpp/cuda/kernels."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

from driver import ATTRIBUTES, Cuda, ReduceParameters

PTX = Path(__file__).resolve().parent.parent.parent / "cpp" / "cuda" / "kernels" / "ptx"
# The launch that cpp/cuda/kernel_library.h plans: threads of a block, blocks of a multiprocessor, and the
# bytes that a thread sums at a time.
THREADS, BLOCKS, UNIT = 256, 32, 16
UNITS, WORDS = 0, 1  # Access
ELEMENTS = {"bytes": 1, "float16": 2, "bfloat16": 2, "float32": 4}


def ptx_of(name: str) -> bytes:
    """Returns the PTX of a kernel of the library."""
    text = (PTX / f"{name}.inc").read_text(encoding="utf-8")
    (ptx,) = re.findall(r'R"ptx\((.*)\)ptx"', text, re.DOTALL)
    return str(ptx).encode()


class Reduction:
    """A reduction of whole arrays of `size` bytes by the library's kernel `name`."""

    def __init__(self, cuda: Cuda, name: str, to: int, sources: list[int], size: int, rows: int = 1) -> None:
        self._cuda, self._name = cuda, cuda.load(name, ptx_of(name))
        element = ELEMENTS[name.partition("_")[2]]
        tile = THREADS * UNIT
        part = size // element * element if rows == 1 else size // rows // UNIT * UNIT
        access = UNITS if name.startswith(("sum", "copy")) and len(sources) <= 4 else WORDS
        self._parameters = ReduceParameters(rows=rows, sources=len(sources))
        table = []
        for at in range(0, rows * part, part):
            addresses = [address + at for address in (to, *sources)]
            table.append([self._parameters.tiles, part // element, access, *addresses])
            self._parameters.tiles += -(-part // tile)
        words, inline = [word for row in table for word in row], self._parameters.words
        if len(words) <= len(inline):
            inline[: len(words)] = words
        else:
            samples = [row[0] for row in table[:: -(-rows // len(inline))]]
            inline[: len(samples)] = samples
            self._parameters.table = cuda.allocate(8 * len(words))
            image = (ctypes.c_uint64 * len(words))(*words)
            size_of_image = ctypes.c_size_t(8 * len(words))
            cuda("cuMemcpyHtoD_v2", ctypes.c_uint64(self._parameters.table), image, size_of_image)
        multiprocessors = cuda.attribute(ATTRIBUTES["multiprocessors"]) or 1
        self._blocks = min(self._parameters.tiles, BLOCKS * multiprocessors)

    def launch(self, stream: Any) -> None:
        self._cuda.launch(self._name, stream, self._blocks, THREADS, self._parameters)
