"""Arrays in memory of GPUs, with the fake CUDA driver beside real devices in software.

Such devices reach memory of the host alone, so the arrays are staged.
"""

from __future__ import annotations

from typing import Any

from cuda_sim_build import fake_driver
from ranks import Outcome, run

from rdma.scene import RDMA, Traffic, main, own_device

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


def _sums(**env: str) -> Outcome:
    fake = {
        "RDMACOLL_CUDA_LIBRARY": str(fake_driver()),
        "RDMACOLL_NVML_LIBRARY": str(fake_driver()),
        "CUDA_SIM_MACHINE": "h100x2",
        "CUDA_SIM_DELAY_US": "50",
    }
    return run(SUMS, 2, env={**RDMA, **fake, **env}, env_of=own_device(2), deadline_s=150)


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


def check_the_direct_way_that_is_off_loses_nothing() -> None:
    for entry in _sums(RDMACOLL_GPUDIRECT="off").succeeded():
        _staged(entry)


def check_a_forced_way_is_an_error_with_its_reason() -> None:
    for entry in _sums(RDMACOLL_GPUDIRECT="send:force").succeeded():
        assert "RDMACOLL_GPUDIRECT=send:force,receive:auto, but" in entry["error"], entry
        assert "is a device in software, which reaches host memory only" in entry["error"], entry


if __name__ == "__main__":
    main(globals())
