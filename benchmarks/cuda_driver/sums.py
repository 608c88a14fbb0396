"""Compares sums on the GPU with a device copy, in one process and in two that share the GPU."""

from __future__ import annotations

import ctypes
import multiprocessing
import statistics
import struct
import time
from multiprocessing.connection import Connection
from typing import Any

from driver import (
    ATTRIBUTES,
    GI,
    POINTER,
    Cuda,
    DriverError,
)


def reduction(cuda: Cuda, _: Any) -> dict[str, Any]:
    """Measures sums of 1 GiB arrays beside a device copy, in GB/s of all bytes read and written."""
    size, stream = GI, cuda.stream()
    arrays = [cuda.allocate(size) for _ in range(5)]
    sm = cuda.attribute(ATTRIBUTES["multiprocessors"]) or 1
    float_words = [struct.unpack("<I", struct.pack("<f", value))[0] for value in (1.5, 2.25, 4.0, 8.0)]
    half_words, brain_words = [0x3E003C00, 0x40004200], [0x3FC03F80, 0x40404010]  # pairs of values

    def copy() -> None:
        cuda("cuMemcpyDtoDAsync_v2", POINTER(arrays[0]), POINTER(arrays[1]), ctypes.c_size_t(size), stream)

    rate = 2 * size / cuda.gpu_us(stream, copy, 20) / 1e3
    found: dict[str, Any] = {"copy": rate}
    kinds = {"f32": float_words[:2], "f16": half_words, "bf16": brain_words}
    expected = {"f32": 3.75, "f16": 0x44004580, "bf16": None}
    for kind, words in kinds.items():
        for unroll in (1, 4):
            name = f"sum_{kind}_{unroll}"
            for address, word in zip(arrays[1:3], words):
                cuda.fill(address, word, size)
            best = (0.0, "")
            for threads, blocks in ((256, 8 * sm), (512, 4 * sm), (256, 32 * sm), (1024, 2 * sm)):
                cuda.fill(arrays[0], 0, size)
                arguments = [POINTER(address) for address in arrays[:3]] + [ctypes.c_ulonglong(size // 16)]

                def work(b: int = blocks, t: int = threads, n: str = name, a: Any = tuple(arguments)) -> None:
                    cuda.launch(n, stream, b, t, *a)

                work()
                cuda("cuStreamSynchronize", stream)
                _check(kind, cuda.words(arrays[0] + size - 64, 16), words, expected[kind])
                speed = 3 * size / cuda.gpu_us(stream, work, 20) / 1e3
                best = max(best, (speed, f"{blocks // sm} blocks of {threads} a multiprocessor"))
            found[name] = {"GB/s": best[0], "of the copy": best[0] / rate, "with": best[1]}
    for address, word in zip(arrays[1:], float_words):
        cuda.fill(address, word, size)
    arguments = [POINTER(address) for address in arrays] + [ctypes.c_ulonglong(size // 16)]

    def four() -> None:
        cuda.launch("sum4_f32", stream, 8 * sm, 256, *arguments)

    four()
    cuda("cuStreamSynchronize", stream)
    last = struct.unpack("<f", struct.pack("<I", cuda.words(arrays[0], 1)[0]))[0]
    if last != 15.75:
        raise DriverError(f"the sum of four is {last}, not 15.75")
    speed = 5 * size / cuda.gpu_us(stream, four, 20) / 1e3
    found["sum4_f32"] = {"GB/s": speed, "of the copy": speed / rate}
    cuda.free(*arrays)
    return found


def _two_floats(word: int) -> tuple[float, ...]:
    """Returns the two bfloat16 values of a 32-bit word."""
    return struct.unpack("<2f", struct.pack("<2I", word << 16 & 0xFFFFFFFF, word & 0xFFFF0000))


def _check(kind: str, found: list[int], words: list[int], expected: Any) -> None:
    """Compares the GPU's sums with sums made in Python. Raises DriverError if they differ."""
    if kind == "f32":
        (value,) = {struct.unpack("<f", struct.pack("<I", word))[0] for word in found}
        right = value == expected
    elif kind == "f16":
        parts = [[struct.unpack("<2e", struct.pack("<I", word))] for word in (*words, *found)]
        right = all(one[0] == tuple(a + b for a, b in zip(parts[0][0], parts[1][0])) for one in parts[2:])
    else:
        wide = [_two_floats(word) for word in (*words, found[0])]
        right = len(set(found)) == 1 and all(abs(s - a - b) <= (a + b) / 256 for a, b, s in zip(*wide))
    if not right:
        raise DriverError(f"wrong sums of {kind}: {found[:4]}")


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
        found = [end.recv() if end.poll(60) else DriverError("a process is silent") for end in ends]
        for one in found:
            if isinstance(one, str):
                raise DriverError(one)
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
        half, sm = size // 2, cuda.attribute(ATTRIBUTES["multiprocessors"]) or 1
        own, rest = rank * half, (1 - rank) * half
        count = ctypes.c_ulonglong(half // 16)
        rounds = 0
        while (phase := end.recv()) != "end":
            if phase == "reduce":
                rounds += 1
                places = [POINTER(one) for one in (mine + own, mine + own, peer.value + own)]
                cuda.launch("sum_f32_4", stream, 8 * sm, 256, *places, count)
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
