"""`rdmacoll bench pair --memory cuda`: the path between two ranks, from and to each kind of memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from rdmacoll import engine
from rdmacoll._base.text import bytes_text
from rdmacoll._world import world
from rdmacoll.benchmarks.machine import machine_line
from rdmacoll.cli.bench_machine import shown_machine
from rdmacoll.cli.bench_memory import CudaMemory, HostMemory, Memory
from rdmacoll.cli.device_memory import run_until_gpus_are_ready
from rdmacoll.cli.report import Findings, print_line
from rdmacoll.errors import ConfigError, RdmacollError
from rdmacoll.operators import Max, Min

# The memory of rank 0, and that of rank 1.
PAIRINGS = (("host", "host"), ("host", "GPU"), ("GPU", "GPU"))
_BYTE = np.dtype(np.uint8)
_CALLS_MAX = 20_000
_TITLES = ("size", "memory", "latency", "forward", "back", "of copies", "of copies")
_UNITS = ("(B)", "(rank 0, 1)", "(us)", "(GB/s)", "(GB/s)", "(forward)", "(back)")
_WIDTHS = (9, 12, 9, 9, 9, 10, 10)


class _Ends:
    """Both memories of this rank. limit_s: for all measurements."""

    def __init__(self, limit_s: float) -> None:
        self._begin, self._limit_s = time.perf_counter(), limit_s
        self.memories: dict[str, Memory] = {"host": HostMemory("engine", engine.empty), "GPU": CudaMemory()}
        self._gpu = self.memories["GPU"]

    def seconds(self, calls: Sequence[Callable[[], Any]], repeats: int) -> float:
        """The time of the calls, one after another, at the slower rank.

        Raises RdmacollError on both ranks once the limit of all measurements is over.
        """
        engine.barrier()
        begin = time.perf_counter()
        for _ in range(repeats):
            for call in calls:
                call()
        self._gpu.finish()
        now = time.perf_counter()
        slower, elapsed = engine.allreduce(np.array([(now - begin) / repeats, now - self._begin]), Max)
        if elapsed > self._limit_s:
            raise RdmacollError(
                f"bench pair has measured for {elapsed:.1f} s, and --timeout is {self._limit_s:g} s: raise "
                "it, or choose fewer --sizes, a smaller --repeat or a shorter --burst."
            )
        return float(slower)

    def copy_rates(self, size: int) -> dict[str, float]:
        """Bytes per second of pinned copies of this size, at the slower rank. The ranks measure in turns."""
        rates = np.zeros(2)
        for rank in range(2):
            engine.barrier()
            if rank == world.rank() and isinstance(self._gpu, CudaMemory):
                found = self._gpu.gpu.copy_rates(size)
                rates[:] = found["to host"], found["to device"]
        slower = engine.allreduce(rates, Min)
        return {"to host": float(slower[0]), "to device": float(slower[1])}


def _directions(ends: _Ends, pairing: tuple[str, str], size: int) -> list[Callable[[], Any]]:
    """Prepared transfers from rank 0 and from rank 1, whose results are right."""
    memory = ends.memories[pairing[world.rank()]]
    array = memory.allocate(size, _BYTE)
    calls: list[Callable[[], Any]] = []
    for root in (0, 1):
        values = (np.arange(size) * 7 + root * 101).astype(_BYTE)
        memory.put(array, values if world.rank() == root else values + 1)
        call = engine.prepare_broadcast(array, root, out=array)
        call()
        memory.finish()
        found = memory.get(array)
        if found is None or not np.array_equal(found, values):
            raise RdmacollError(f"a transfer of {size} bytes from rank {root} brought wrong values.")
        calls.append(call)
    run_until_gpus_are_ready(calls)
    return calls


def _of_copies(rate: float, copies: Sequence[float]) -> float | None:
    return 100 * rate / min(copies) if copies else None


def _row(ends: _Ends, pairing: tuple[str, str], size: int, repeat: int, burst: float) -> dict[str, Any]:
    calls = _directions(ends, pairing, size)
    once = ends.seconds(calls, 3)
    repeats = max(2, min(_CALLS_MAX, int(burst / max(once, 1e-7))))
    times: dict[str, list[float]] = {"both": [], "forward": [], "back": []}
    for _ in range(repeat):
        times["both"].append(ends.seconds(calls, repeats))
        times["forward"].append(ends.seconds(calls[:1], repeats))
        times["back"].append(ends.seconds(calls[1:], repeats))
    median = {name: statistics.median(found) for name, found in times.items()}
    copies = ends.copy_rates(size)
    forward, back = size / median["forward"], size / median["back"]
    to_first = [copies["to device"]] if pairing[0] == "GPU" else []
    from_first = [copies["to host"]] if pairing[0] == "GPU" else []
    to_second = [copies["to device"]] if pairing[1] == "GPU" else []
    from_second = [copies["to host"]] if pairing[1] == "GPU" else []
    return {
        "bytes": size,
        "memory": list(pairing),
        "latency_us": 1e6 * median["both"] / 2,
        "GB_per_s_forward": forward / 1e9,
        "GB_per_s_back": back / 1e9,
        "percent_of_copies_forward": _of_copies(forward, from_first + to_second),
        "percent_of_copies_back": _of_copies(back, from_second + to_first),
        "GB_per_s_copies": {name: rate / 1e9 for name, rate in copies.items()},
    }


def _line(cells: Sequence[str]) -> str:
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS))


def _row_line(row: dict[str, Any]) -> str:
    percents = [row["percent_of_copies_forward"], row["percent_of_copies_back"]]
    return _line(
        (
            bytes_text(row["bytes"]),
            "-".join(row["memory"]),
            f"{row['latency_us']:.2f}",
            f"{row['GB_per_s_forward']:.3f}",
            f"{row['GB_per_s_back']:.3f}",
            *("" if percent is None else f"{percent:.0f} %" for percent in percents),
        )
    )


def measured(
    transport: str | None, sizes: Sequence[int], repeat: int, burst: float, limit_s: float
) -> Findings:
    """Measures transfers one after another. Raises ConfigError without two ranks, or without a GPU, and
    RdmacollError after the limit.

    repeat: bursts of a cell. burst: seconds. limit_s: seconds for all, also for one transfer that hangs.
    """
    settings: dict[str, Any] = {"stall_error_s": limit_s}
    if transport is not None:
        settings["transport"] = transport
    world.init(**settings)
    if world.size() != 2:
        raise ConfigError(
            f"bench pair measures the path between 2 ranks, and {world.size()} were started: "
            "rdmacoll run -np 2 rdmacoll bench pair."
        )
    ends = _Ends(limit_s)
    found = world.describe()["transport"]
    label = ends.memories["GPU"].label
    print_line(f"2 ranks over {found}, {label}; {machine_line()}")
    machine = shown_machine()
    print_line(_line(_TITLES))
    print_line(_line(_UNITS))
    rows = []
    for size in sizes:
        for pairing in PAIRINGS:
            rows.append(_row(ends, pairing, size, repeat, burst))
            print_line(_row_line(rows[-1]))
    world.shutdown()
    return {
        "ok": True,
        **machine,
        "settings": {"repeat": repeat, "burst_s": burst, "memory": "cuda"},
        "transport": found,
        "gpu": label,
        "rows": rows,
    }
