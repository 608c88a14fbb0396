"""Measures allreduces and broadcasts of arrays in GPU memory, of two ranks that share the first GPU.

    python3 benchmarks/gpu.py [--only staged|gradients|small] [--mps] [--scale 1] [--json FILE]

It starts its ranks itself, and needs numpy, the driver, and the libraries in rdmacoll/lib. Every call is
checked before it is timed. Each part has ranks of its own. The ratios:

- staged: bandwidth of a broadcast between the ranks, by the slowest of its ways: the same broadcast of host
  memory, and the pinned copies to the host and to the GPU that it needs. Host memory is broadcast in segments
  of the usual length and in long ones, as staged data is, and the faster one counts.
- gradients: time of an allreduce of ResNet-50's 161 gradients (102 MB), and of 16 times as much, by the time
  of two device copies of as many bytes.
- small: time of a prepared allreduce of 8 bytes, by that of the same in host memory and of three empty
  kernels that are launched and waited for.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

RANKS = 2
TURNS = 7
DEADLINE_S = 150
MPS = "nvidia-cuda-mps-control"
LONG_SEGMENTS = 16 << 20  # bytes
GOALS = {"staged": 0.90, "gradients": 2.5, "small": 1.0}


class Lent:
    """Plain memory of the driver with the CUDA array interface, as libraries of arrays have it."""

    def __init__(self, gpu: Any, shape: tuple[int, ...]) -> None:
        self.shape, self.dtype = shape, np.dtype(np.float32)
        self.address = gpu.allocate(4 * math.prod(shape))
        self._stream = gpu.stream.value

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "stream": self._stream,
            "version": 3,
        }


class Rank:
    """This rank: the world, and its GPU."""

    def __init__(self) -> None:
        import rdmacoll
        from rdmacoll import engine
        from rdmacoll._world.world import current
        from rdmacoll.cli.device_memory import Gpu

        rdmacoll.init()
        self.engine, self.sum = engine, rdmacoll.Sum
        self.number = rdmacoll.rank()
        self.gpu = Gpu(current().values.text("RDMACOLL_CUDA_LIBRARY"))

    def seconds(self, call: Callable[[], Any], calls: int) -> float:
        """The time of a call, in a burst of calls, at the slowest rank."""
        self.gpu.synchronize()
        self.engine.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        self.gpu.synchronize()
        mine = (time.perf_counter() - begin) / calls
        return float(self.engine.allreduce(np.array([mine]), op=_maximum())[0])

    def any_gpu_prepares(self) -> bool:
        """Whether a GPU of a rank is still made ready for sums. Arrays are staged meanwhile."""
        import rdmacoll

        mine = np.array([rdmacoll.metrics()["gpus_preparing"]], np.float64)
        return bool(self.engine.allreduce(mine, op=_maximum())[0] > 0)

    def medians(self, calls: dict[str, Callable[[], Any]], bursts: int) -> dict[str, float]:
        """The median time of each call. They take turns, so that other work meets all of them."""
        found: dict[str, list[float]] = {name: [] for name in calls}
        for call in calls.values():
            self.seconds(call, bursts)
            quiet = 0  # bursts in a row: a GPU is made ready in several steps, which begin with calls
            while quiet < 3:
                self.seconds(call, bursts)
                quiet = 0 if self.any_gpu_prepares() else quiet + 1
        for _ in range(TURNS):
            for name, call in calls.items():
                found[name].append(self.seconds(call, bursts))
        return {name: statistics.median(times) for name, times in found.items()}


def _maximum() -> Any:
    import rdmacoll

    return rdmacoll.Max


def link(rank: Rank, scale: float) -> list[dict[str, Any]]:
    """Bandwidth between the ranks, of host memory."""
    size = max(1000, int((64 << 20) * scale))
    values = np.arange(size, dtype=np.float32) % 1_000_003
    array = rank.engine.empty(size, np.float32)
    array[:] = values if rank.number == 0 else -values
    run = rank.engine.prepare_broadcast(array, 0, out=array)
    run()
    assert np.array_equal(array, values), "wrong values"
    rate = 4 * size / rank.medians({"broadcast": run}, 3)["broadcast"]
    return [_row("staged", "broadcast, host to host, in long segments", rate / 1e9, "GB/s")]


def staged(rank: Rank, scale: float, link_rate: float) -> list[dict[str, Any]]:
    """Bandwidth between the ranks, from and to each kind of memory.

    link_rate: bytes a second of host memory in long segments.
    """
    size = max(1000, int((64 << 20) * scale))
    values = np.arange(size, dtype=np.float32) % 1_000_003
    on_gpu, on_host = Lent(rank.gpu, (size,)), rank.engine.empty(size, np.float32)
    calls: dict[str, Callable[[], Any]] = {}
    for kinds in ("host to host", "GPU to host", "host to GPU", "GPU to GPU"):
        first, _, second = kinds.split()
        array: Any = on_gpu if (first, second)[rank.number] == "GPU" else on_host
        rank.gpu.put(on_gpu, values if rank.number == 0 else -values)
        on_host[:] = values if rank.number == 0 else -values
        run = rank.engine.prepare_broadcast(array, 0, out=array)
        run()
        found = rank.gpu.get(array) if array is on_gpu else array
        assert np.array_equal(found, values), f"{kinds}: wrong values"
        calls[kinds] = run
    rates = rank.gpu.copy_rates(4 * size) if rank.number == 0 else {}
    rank.engine.barrier()
    seconds = rank.medians(calls, 3)
    of_host = max(link_rate, 4 * size / seconds["host to host"])
    rows = [_row("staged", f"{name}, pinned", rate / 1e9, "GB/s") for name, rate in rates.items()]
    for kinds, taken in seconds.items():
        needed = {"host to host": (), "GPU to host": ("to host",), "host to GPU": ("to device",)}
        copies = [rates[way] for way in needed.get(kinds, tuple(rates))] if rates else []
        row = _row("staged", f"broadcast, {kinds}", 4 * size / taken / 1e9, "GB/s")
        if copies:
            row["ratio"] = 4 * size / taken / min(of_host, *copies)
            row["met"] = row["ratio"] >= GOALS["staged"]
        rows.append(row)
    return rows


def gradients(rank: Rank, scale: float) -> list[dict[str, Any]]:
    """Allreduces of 161 arrays in place, beside device copies of as many bytes."""
    from rdmacoll.benchmarks.resnet50 import shapes

    rows = []
    for times in (1, 16):
        arrays = [Lent(rank.gpu, (max(1, int(times * scale * math.prod(shape))),)) for shape in shapes()]
        size = sum(4 * array.shape[0] for array in arrays)
        for n, array in enumerate(arrays):
            rank.gpu.put(array, np.arange(array.shape[0]) % 1013 + n + 1000 * rank.number)

        def run(arrays: list[Any] = arrays) -> None:
            rank.engine.grouped_allreduce(arrays, rank.sum, out=arrays, stream=rank.gpu.stream.value)

        run()
        for n, array in enumerate(arrays):
            right = RANKS * (np.arange(array.shape[0]) % 1013 + n) + 1000 * (RANKS - 1) * RANKS // 2
            assert np.array_equal(rank.gpu.get(array), right), f"{size} bytes: array {n} has wrong values"
            rank.gpu.put(array, np.zeros(array.shape))
        taken = rank.medians({"allreduce": run}, 2)["allreduce"]
        alone = rank.gpu.device_copy_s(size, 2) if rank.number == 0 else 0.0
        rank.engine.barrier()
        both = float(rank.engine.allreduce(np.array([rank.gpu.device_copy_s(size)]), op=_maximum())[0])
        title = f"161 arrays, {size / 1e6:.0f} MB"
        row = _row("gradients", f"allreduce, {title}", 1e3 * taken, "ms")
        if alone:
            row["ratio"] = taken / alone
            row["met"] = row["ratio"] <= GOALS["gradients"]
        rows += [
            _row("gradients", f"two device copies, {title}", 1e3 * alone, "ms"),
            _row("gradients", f"a device copy of each rank at once, {title}", 1e3 * both, "ms"),
            row,
        ]
        for array in arrays:
            rank.gpu.free(array.address)
    return rows


def small(rank: Rank, scale: float) -> list[dict[str, Any]]:
    """Prepared allreduces of 8 bytes."""
    on_gpu, on_host = Lent(rank.gpu, (2,)), np.ones(2, np.float32)
    rank.gpu.put(on_gpu, np.ones(2))
    calls = {
        "allreduce of 8 B, host": rank.engine.prepare_allreduce(on_host, on_host, rank.sum),
        "allreduce of 8 B, GPU": rank.engine.prepare_allreduce(on_gpu, on_gpu, rank.sum),
    }
    for call in calls.values():
        call()
    assert rank.gpu.get(on_gpu).tolist() == on_host.tolist() == [RANKS] * 2, "wrong values"
    on_host[:] = 0
    rank.gpu.put(on_gpu, np.zeros(2))
    seconds = rank.medians(calls, max(20, int(2000 * scale)))
    kernel = 0.0
    if rank.number == 0:
        rank.gpu.run_empty_kernel()
        times = []
        for _ in range(TURNS):
            begin = time.perf_counter()
            for _ in range(max(20, int(500 * scale))):
                rank.gpu.run_empty_kernel()
            times.append((time.perf_counter() - begin) / max(20, int(500 * scale)))
        kernel = statistics.median(times)
    rank.engine.barrier()
    host, device = (seconds[name] for name in calls)
    rows = [_row("small", name, 1e6 * taken, "us") for name, taken in seconds.items()]
    rows.append(_row("small", "an empty kernel, launched and waited for", 1e6 * kernel, "us"))
    if kernel:
        rows[1]["ratio"] = device / (host + 3 * kernel)
        rows[1]["met"] = rows[1]["ratio"] <= GOALS["small"]
    return rows


PARTS = ("staged", "gradients", "small")
WAYS_OF = {"staged": ("",), "gradients": ("", "IPC"), "small": ("", "IPC", "IPC always")}


def _row(part: str, what: str, value: float, unit: str) -> dict[str, Any]:
    return {"part": part, "measured": what, "value": value, "unit": unit}


def _be_a_rank(part: str, scale: float, path: str, link_rate: float) -> None:
    rank = Rank()
    if part == "staged":
        rows = staged(rank, scale, link_rate)
    else:
        rows = {"link": link, "gradients": gradients, "small": small}[part](rank, scale)
    if rank.number == 0:
        Path(path).write_text(json.dumps({"gpu": rank.gpu.name, "rows": rows}))
    import rdmacoll

    rdmacoll.shutdown()


def _run_part(
    part: str, scale: float, folder: Path, settings: dict[str, str], link_rate: float = 0
) -> dict[str, Any]:
    """Runs a part on ranks of its own. Returns their rows, or the output of ranks that failed.

    settings: further variables of the ranks. link_rate: for the part "staged".
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    path, processes = folder / f"{part}.json", []
    command = [sys.executable, str(Path(__file__).resolve()), "--part", part, "--scale", str(scale)]
    command += ["--link-rate", str(link_rate)]
    for rank in range(RANKS):
        request = {"RANK": str(rank), "SIZE": str(RANKS), "RENDEZVOUS": address}
        environ = {**os.environ, **{f"RDMACOLL_{name}": value for name, value in request.items()}}
        environ.setdefault("RDMACOLL_SECRET_FILE", str(folder / "secret"))
        environ.update(PYTHONPATH=str(ROOT), **settings)
        output = (folder / f"{part}-{rank}.txt").open("wb")
        processes.append(
            subprocess.Popen([*command, "--json", str(path)], env=environ, stdout=output, stderr=output)
        )
    end = time.monotonic() + DEADLINE_S
    for process in processes:
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if any(process.returncode for process in processes):
        texts = [(folder / f"{part}-{rank}.txt").read_text(errors="replace") for rank in range(RANKS)]
        return {"rows": [], "failed": f"{part}: " + "\n".join(text[-3000:] for text in texts)}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@contextmanager
def _mps(folder: Path) -> Iterator[dict[str, str]]:
    """Runs NVIDIA's Multi-Process Service, by which kernels of ranks run at once. Yields its variables."""
    folder.mkdir()
    settings = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    environ = {**os.environ, **settings}
    subprocess.run([MPS, "-d"], env=environ, check=True, timeout=20)
    try:
        yield settings
    finally:
        subprocess.run([MPS], input=b"quit\n", env=environ, check=False, timeout=20)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", choices=PARTS, action="append", help="this part; may be given several times"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of sizes and numbers of calls")
    parser.add_argument("--mps", action="store_true", help="the gradients once more, by NVIDIA's MPS")
    parser.add_argument("--json", default="")
    parser.add_argument("--part", choices=("link", *PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--link-rate", type=float, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        _be_a_rank(options.part, options.scale, options.json, options.link_rate)
        return 0
    results: dict[str, Any] = {"gpu": "", "ranks": RANKS, "cores": os.cpu_count(), "rows": [], "failed": []}
    with tempfile.TemporaryDirectory() as folder:
        ways = _ways()
        for part in options.only or PARTS:
            link_rate = _measure_link(results, options.scale, Path(folder)) if part == "staged" else 0
            for way, settings in ways.items():
                if way in WAYS_OF[part]:
                    _add(results, _run_part(part, options.scale, Path(folder), settings, link_rate), way)
        if options.mps and shutil.which(MPS):
            _measure_with_mps(results, options.scale, Path(folder), ways)
        elif options.mps:
            print(f"without {MPS}, which is not here")
    print(f"{RANKS} ranks on {results['gpu'] or 'no GPU'}, {results['cores']} cores")
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    return 1 if results["failed"] else 0


def _measure_link(results: dict[str, Any], scale: float, folder: Path) -> float:
    """Returns the bandwidth of host memory in long segments, in bytes a second, or 0 after a failure."""
    found = _run_part("link", scale, folder, {"RDMACOLL_SEGMENT_BYTES": str(LONG_SEGMENTS)})
    _add(results, found, "")
    return 1e9 * float(found["rows"][0]["value"]) if found["rows"] else 0.0


def _measure_with_mps(
    results: dict[str, Any], scale: float, folder: Path, ways: dict[str, dict[str, str]]
) -> None:
    """Measures the gradients once more. A service that does not work leaves the other results as they are."""
    way, known = list(ways.items())[:2][-1]
    try:
        with _mps(folder / "mps") as settings:
            found = _run_part("gradients", scale, folder, {**known, **settings})
            _add(results, found, f"{way} MPS".strip())
    except (OSError, subprocess.SubprocessError) as error:
        results["failed"].append(f"{MPS} does not work: {str(error).rstrip('.')}. Run without --mps.")
        print(results["failed"][-1])


def _ways() -> dict[str, dict[str, str]]:
    """The ways of data between ranks of a node, with their settings: those that the library has."""
    from rdmacoll._abi.library import load

    if "RDMACOLL_CUDA_IPC" not in {row["name"] for row in load().settings()}:
        return {"": {}}
    values = {"": "off", "IPC": "auto", "IPC always": "always"}
    return {way: {"RDMACOLL_CUDA_IPC": value} for way, value in values.items()}


def _add(results: dict[str, Any], found: dict[str, Any], way: str) -> None:
    results["gpu"] = found.get("gpu") or results["gpu"]
    for row in found["rows"]:
        row["way"] = way
    results["rows"] += found["rows"]
    for row in found["rows"]:
        _print_row(row)
    if "failed" in found:
        results["failed"].append(found["failed"])
        print(found["failed"])


def _print_row(row: dict[str, Any]) -> None:
    ratio = f"{row['ratio']:8.2f} of {GOALS[row['part']]:.2f}" if "ratio" in row else ""
    end = {True: ", met", False: ", missed"}.get(row.get("met"), "")
    measured = ", ".join(filter(None, (row["measured"], row["way"])))
    print(
        f"{row['part']:<10} {measured:<58} {row['value']:>10.2f} {row['unit']:<5}{ratio}{end}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
