"""Starts and stops many times with arrays in GPU memory. Nothing may stay behind. Runs on every rank."""

from __future__ import annotations

import os
import sys
import time

import device_array
import gpu_arrays
import numpy as np
from cuda_calls import counters
from device_array import DeviceArray
from ranks import report
from starts_and_stops import counts

import rdmacoll
from rdmacoll import engine

WARM_UP = 10
LIVE = ("live ", "retained ")
LIMIT_S = 20
STREAMS: list[device_array.Stream] = []


def live() -> dict[str, int]:
    """Returns the counts of all that the driver and the process hold, once no stream has work."""
    cuda = device_array._gpu(0).cuda
    end = time.monotonic() + LIMIT_S
    while counters(cuda)["queued"] and time.monotonic() < end:
        time.sleep(0.001)
    found = counters(cuda)
    assert found["queued"] == 0, found
    return {**counts(), **{name: count for name, count in found.items() if name.startswith(LIVE)}}


def once(turn: int) -> None:
    rdmacoll.init()
    me, size = rdmacoll.rank(), rdmacoll.size()
    values = device_array.array(np.full(5000, float(me + turn)))
    right = size * turn + size * (size - 1) / 2
    if os.environ["RDMACOLL_CUDA_IPC"] != "off":  # the ranks open memory of each other
        gpu_arrays.prepare_sums()
        engine.allreduce(values, rdmacoll.Sum)
        assert rdmacoll.metrics()["bytes_between_gpus"] > 0
    assert (engine.allreduce(values, rdmacoll.Sum).get() == right).all()
    stream = STREAMS[0]
    with stream:
        parts = [device_array.array(np.full(n, float(me))) for n in (3, 70, 900)]
    handles = [
        engine.allreduce_async(one, rdmacoll.Sum, name=f"{n}", stream=stream) for n, one in enumerate(parts)
    ]
    run = engine.prepare_allreduce(values, values, rdmacoll.Sum)
    run()
    rows = engine.allgather(device_array.array(np.full((me + 1, 2), turn)))
    many = engine.grouped_allreduce([device_array.array(np.full(7, me)) for _ in range(40)], op=rdmacoll.Sum)
    stored = engine.empty(1000, device=f"cuda:{turn % 2}")
    view: DeviceArray = device_array.from_dlpack(stored)
    for handle in handles:
        total = handle.wait()
        with stream:
            assert (total.get() == size * (size - 1) / 2).all()
    rdmacoll.shutdown()
    assert (many[39].get() == size * (size - 1) // 2).all()
    assert rows.get().shape == (size * (size + 1) // 2, 2)  # outlives the world
    assert view.shape == (1000,)


def main() -> None:
    turns = int(sys.argv[1])
    device_array.cupy_of(os.environ["RDMACOLL_CUDA_LIBRARY"])
    STREAMS.append(device_array.new_stream())
    rdmacoll.init()
    me = rdmacoll.rank()
    rdmacoll.shutdown()
    for turn in range(WARM_UP):
        once(turn)
    before = live()
    for turn in range(turns):
        once(turn)
    report([before, live()], rank=me)


if __name__ == "__main__":
    main()
