"""Arrays in memory of GPUs, with the fake CUDA driver beside real devices in software.

Such devices reach memory of the host alone, so the arrays are staged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cuda_sim_build import fake_driver
from ranks import ROOT, Outcome, run

from rdma.scene import RDMA, Traffic, main, own_device, seed

PROGRAM = ROOT / "tests" / "multiprocess" / "device_collectives.py"

SUMS = """
import numpy as np, rdmacoll
import gpu_arrays
from ranks import report
cupy = gpu_arrays.cupy()
rdmacoll.init()
me, count = rdmacoll.rank(), rdmacoll.size()
error = None
try:
    for turn in range(2):
        for size in (1, 3000, 300_003):
            ramp = (np.arange(size) % 1000).astype(np.float32)
            got = rdmacoll.engine.allreduce(cupy.array(ramp * (me + 1) + turn), rdmacoll.Sum).get()
            assert (got == ramp * (count * (count + 1) / 2) + count * turn).all(), (turn, size)
            rows = rdmacoll.engine.allgather(cupy.array(ramp[: size // 2 + me] + me)).get()
            wanted = np.concatenate([ramp[: size // 2 + rank] + rank for rank in range(count)])
            assert (rows == wanted).all(), (turn, size)
    rdmacoll.engine.barrier()
except rdmacoll.ConfigError as refusal:
    error = f"{type(refusal).__name__}: {refusal}"
report({"error": error, **rdmacoll._world.world.describe(), **rdmacoll.metrics()})
rdmacoll.shutdown()
"""


# Parts of a few bytes, and of as many that a device writes them. The parts of the ranks differ.
EVERY_KIND = """
import numpy as np, rdmacoll
from rdmacoll import engine
import gpu_arrays
from ranks import report
cupy = gpu_arrays.cupy()
rdmacoll.init()
me, count = rdmacoll.rank(), rdmacoll.size()

def data(rank, rows):
    return ((np.arange(rows * 3).reshape(rows, 3) * 7 + rank * 13) % 101).astype(np.float32)

def here(values):
    return cupy.array(np.ascontiguousarray(values))

cases = 0
def same(got, wanted, *case):
    global cases
    assert type(got) is cupy.ndarray, case
    got = got.get()
    assert got.shape == wanted.shape and (got == wanted).all(), case
    cases += 1

for root in range(count):
    for rows in (3, 40_000):
        every = [data(rank, rows + rank) for rank in range(count)]
        equal = [data(rank, rows * count) for rank in range(count)]
        total = sum(equal)
        mine = slice(me * rows, (me + 1) * rows)
        case = (root, rows)
        same(engine.allreduce(here(equal[me]), rdmacoll.Sum), total, "allreduce", *case)
        same(engine.allreduce(here(equal[me]), rdmacoll.Max), np.maximum.reduce(equal), "maximum", *case)
        groups = engine.grouped_allreduce([here(equal[me]), here(equal[me] + 1)], rdmacoll.Sum)
        for i, got in enumerate(groups):
            same(got, total + count * i, "grouped_allreduce", *case)
        handle = engine.allreduce_async(here(equal[me]), rdmacoll.Average)
        same(handle.wait(), total / count, "allreduce_async", *case)
        array = here(equal[me])
        call = engine.prepare_allreduce(array, array, rdmacoll.Sum)
        call()
        same(array, total, "prepared", *case)
        same(engine.broadcast(here(equal[me]), root), equal[root], "broadcast", *case)
        same(engine.allgather(here(every[me])), np.concatenate(every), "allgather", *case)
        same(engine.reducescatter(here(equal[me]), rdmacoll.Sum), total[mine], "reducescatter", *case)
        got = engine.reduce(here(equal[me]), root, rdmacoll.Sum)
        if me == root:
            same(got, total, "reduce", *case)
        got = engine.gather(here(every[me]), root)
        if me == root:
            same(got, np.concatenate(every), "gather", *case)
        same(engine.scatter(here(equal[root] if me == root else equal[me][:0]), root),
             equal[root][mine], "scatter", *case)
        splits = [rows + 2 * rank for rank in range(count)]
        ends = np.cumsum([0, *splits])
        sent = [data(rank, int(ends[-1])) for rank in range(count)]
        got = engine.alltoall(here(sent[me]), np.array(splits))
        got = got[0] if isinstance(got, tuple) else got
        same(got, np.concatenate([one[ends[me] : ends[me + 1]] for one in sent]), "alltoall", *case)
        # The last rank has its array in host memory.
        values = equal[me] if me == count - 1 else here(equal[me])
        got = engine.allreduce(values, rdmacoll.Sum)
        assert ((got if me == count - 1 else got.get()) == total).all(), ("mixed", *case)
engine.barrier()
report({"error": None, "cases": cases, **rdmacoll._world.world.describe(), **rdmacoll.metrics()})
rdmacoll.shutdown()
"""


def _sums(**env: str) -> Outcome:
    return _run(SUMS, **env)


def _run(program: str | Path, *arguments: str, **env: str) -> Outcome:
    fake = {
        "RDMACOLL_CUDA_LIBRARY": str(fake_driver()),
        "RDMACOLL_NVML_LIBRARY": str(fake_driver()),
        "CUDA_SIM_MACHINE": "h100x2",
        "CUDA_SIM_DELAY_US": "50",
    }
    env = {**RDMA, **fake, **env}
    return run(program, 2, arguments=list(arguments), env=env, env_of=own_device(2), deadline_s=280)


def _staged(entry: dict[str, Any]) -> None:
    assert entry["error"] is None, entry
    assert entry["transport"] == "rdma", entry
    assert entry["bytes_staged"] > 4_000_000, entry
    assert entry["bytes_direct_sent"] == entry["bytes_direct_received"] == 0, entry
    assert "send staged, receive staged" in entry["summary"], entry


def check_arrays_of_gpus_are_staged() -> None:
    traffic = Traffic()
    outcome = _sums()
    for entry in outcome.succeeded():
        _staged(entry)
    assert "does not read and write the memory of" not in outcome.text(), "nothing is lost"
    assert not traffic.silent(2)


def check_every_kind_of_collective() -> None:
    for entry in _run(EVERY_KIND).succeeded():
        _staged(entry)
        assert entry["cases"] >= 2 * 2 * 10, entry


def check_all_dtypes_and_operators() -> None:
    for entry in _run(PROGRAM, "numpy_collectives.py", str(seed())).succeeded():
        assert entry["transport"] == "rdma", entry
        assert entry["cases"] > 250, entry
        assert entry["metrics"]["bytes_staged"] > 10_000_000, entry


def check_the_direct_way_that_is_off_loses_nothing() -> None:
    for entry in _sums(RDMACOLL_GPUDIRECT="off").succeeded():
        _staged(entry)


def check_a_forced_way_is_an_error_with_its_reason() -> None:
    for entry in _sums(RDMACOLL_GPUDIRECT="send:force").succeeded():
        assert "RDMACOLL_GPUDIRECT=send:force,receive:auto, but" in entry["error"], entry
        assert "is a device in software, which reaches host memory only" in entry["error"], entry


if __name__ == "__main__":
    main(globals())
