"""Compares sums on the GPU with a device copy, in one process and in two that share the GPU."""

from __future__ import annotations

import ctypes
import multiprocessing
import statistics
import struct
import time
from multiprocessing.connection import Connection
from typing import Any

from driver import MI, POINTER, Cuda
from reduce import UNIT, Reduction

ROWS = 161  # as many arrays as the gradients of ResNet-50
# Kernels of the library, each with its number of sources and of rows.
CASES = (
    ("copy_bytes", 1, 1),
    ("copy_bytes", 1, ROWS),
    ("sum_float32", 2, 1),
    ("sum_float32", 2, ROWS),
    ("sum_float32", 4, 1),
    ("sum_float16", 2, 1),
    ("sum_bfloat16", 2, 1),
    ("reduce_float32", 2, 1),
    ("reduce_float32", 8, 1),
)


def reduction(cuda: Cuda, _: Any) -> dict[str, Any]:
    """Measures the library's kernels on arrays of 512 MiB beside a device copy, in GB/s of all bytes read and
    written.
    """
    size, stream = 512 * MI, cuda.stream()
    arrays = [cuda.allocate(size) for _ in range(1 + max(sources for _, sources, _ in CASES))]

    def copy() -> None:
        cuda("cuMemcpyDtoDAsync_v2", POINTER(arrays[0]), POINTER(arrays[1]), ctypes.c_size_t(size), stream)

    rate = 2 * size / cuda.gpu_us(stream, copy, 20) / 1e3
    found: dict[str, Any] = {"copy": rate}
    for name, sources, rows in CASES:
        dtype = name.partition("_")[2]
        for index, address in enumerate(arrays):
            cuda.fill(address, _word(dtype, index), size)
        job = Reduction(cuda, name, arrays[0], arrays[1 : sources + 1], size, rows)
        job.launch(stream)
        cuda("cuStreamSynchronize", stream)
        part = size // rows // UNIT * UNIT
        for at in (0, part * rows // 2 // 64 * 64, part * rows - 64):
            if set(cuda.words(arrays[0] + at, 16)) != {_word(dtype, sources * (sources + 1) // 2)}:
                raise RuntimeError(f"wrong results of {name} with {sources} sources in {rows} rows at {at}")
        used = (sources + 1) * part * rows
        speed = used / cuda.gpu_us(stream, lambda one=job: one.launch(stream), 20) / 1e3
        found[f"{name}, {sources} sources, {rows} rows"] = {
            "GB/s": speed,
            "of the copy": speed / rate,
            "compiled in ms": cuda.module_load_ms[name],
        }
    cuda.free(*arrays)
    return found


def _word(dtype: str, value: float) -> int:
    """Returns the 32 bits of a number, or of two equal 16-bit ones."""
    word: int
    if dtype == "float16":
        (word,) = struct.unpack("<I", struct.pack("<2e", value, value))
        return word
    (word,) = struct.unpack("<I", struct.pack("<f", value))
    return word >> 16 | word & 0xFFFF0000 if dtype == "bfloat16" else word


def shared_card(cuda: Cuda, options: Any) -> dict[str, Any]:
    """Measures two processes on this GPU that sum an array through CUDA IPC.

    Each process sums one half and copies the other half from its peer.
    """
    size = options.shared_bytes // 2 // 16 * 32
    context = multiprocessing.get_context("spawn")
    ends, processes = [], []
    for rank in range(2):
        mine, theirs = context.Pipe()
        processes.append(context.Process(target=_sharer, args=(theirs, options, size, rank), daemon=True))
        processes[-1].start()
        ends.append(mine)

    def answers() -> list[Any]:
        found = [end.recv() if end.poll(60) else RuntimeError("a process is silent") for end in ends]
        for one in found:
            if isinstance(one, str):
                raise RuntimeError(one)
        return found

    try:
        handles = answers()
        for end, handle in zip(ends, reversed(handles)):
            end.send(handle)
        answers()
        times: dict[str, list[float]] = {"sum": [], "copy": []}
        for step in ["sum", "copy"] * 7:
            begin = time.perf_counter()
            for phase in ("reduce", "gather") if step == "sum" else ("copy",):
                for end in ends:
                    end.send(phase)
                answers()
            times[step].append(1e3 * (time.perf_counter() - begin))
        for end in ends:
            end.send("end")
        checked = answers()
    finally:
        for process in processes:
            process.terminate()
            process.join()
    total, copy = (statistics.median(times[step][1:]) for step in ("sum", "copy"))
    return {"bytes": size, "allreduce ms": total, "one device copy each ms": copy, "ratio": total / copy} | {
        "right": all(checked)
    }


def _sharer(end: Connection, options: Any, size: int, rank: int) -> None:
    try:
        cuda = Cuda(options.library, options.gpu, options.ptx)
        stream = cuda.stream()
        mine, other = cuda.allocate(size), cuda.allocate(size)
        cuda.fill(mine, struct.unpack("<I", struct.pack("<f", 1.0 + rank))[0], size)
        handle = ctypes.create_string_buffer(64)
        cuda("cuIpcGetMemHandle", handle, POINTER(mine))
        end.send(handle.raw)

        class Handle(ctypes.Structure):
            _fields_ = (("reserved", ctypes.c_char * 64),)

        opened, peer = Handle.from_buffer_copy(end.recv()), POINTER()
        cuda("cuIpcOpenMemHandle_v2", ctypes.byref(peer), opened, 1)
        end.send(True)
        half = size // 2
        own, rest = rank * half, (1 - rank) * half
        summed = Reduction(cuda, "sum_float32", mine + own, [mine + own, peer.value + own], half)
        rounds = 0
        while (phase := end.recv()) != "end":
            if phase == "reduce":
                rounds += 1
                summed.launch(stream)
            else:
                to, source = (mine, peer.value) if phase == "gather" else (other, mine)
                at, length = (rest, half) if phase == "gather" else (0, size)
                where = POINTER(to + at), POINTER(source + at)
                cuda("cuMemcpyDtoDAsync_v2", *where, ctypes.c_size_t(length), stream)
            cuda("cuStreamSynchronize", stream)
            end.send(True)
        expected = 3.0 * 2.0 ** (rounds - 1)
        words = cuda.words(mine, 4) + cuda.words(mine + size - 16, 4)
        end.send({struct.unpack("<f", struct.pack("<I", word))[0] for word in words} == {expected})
        end.recv()
    except EOFError:
        pass
    except Exception as error:  # the parent raises the text as an error
        end.send(f"{type(error).__name__}: {error}")
