"""Runs a program on numpy arrays with its arrays in GPU memory: device_collectives.py PROGRAM ARGUMENTS

Each function of `rdmacoll.engine` copies its arrays to the GPU first, and its results back to the host. The
arrays there are those of cupy, or of the imitated one (tests/gpu_arrays.py). The variable DEVICE_RANKS names
the ranks that do so ("0,2"); the others use host memory. With RDMACOLL_CUDA_IPC, each rank has to read memory
on GPUs of others. With GPU_OF_EACH_RANK=1, ranks with an odd number
use the second GPU. With GPU_MEMORY=engine, the imitated arrays lie in memory of `rdmacoll.engine.empty`.
"""

from __future__ import annotations

import functools
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import device_array
import gpu_arrays
import numpy as np

import rdmacoll
from rdmacoll import engine
from rdmacoll.operators import CODES

_OPERATIONS = (
    "allreduce",
    "broadcast",
    "allgather",
    "reducescatter",
    "reduce",
    "gather",
    "scatter",
    "alltoall",
)


def _is_taken(value: Any) -> bool:
    return (
        isinstance(value, np.ndarray)
        and value.dtype.isnative
        and value.dtype.name in CODES
        and min((0, *value.strides)) >= 0
        and not isinstance(value, np.ma.MaskedArray)
        and gpu_arrays.takes(value.dtype)
    )


def _to_device(value: Any) -> Any:
    """The values in GPU memory, with the strides that they have on the host."""
    if isinstance(value, (list, tuple)) and value and all(_is_taken(one) for one in value):
        return [_to_device(one) for one in value]
    if not _is_taken(value):
        return value
    return gpu_arrays.cupy().array(value) if value.flags.c_contiguous else gpu_arrays.strided(value)


def _to_host(value: Any, outs: dict[int, np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_to_host(one, outs) for one in value)
    if not isinstance(value, gpu_arrays.cupy().ndarray):
        return value
    host = value.get()
    if id(value) not in outs:
        return host
    outs[id(value)][...] = host
    return outs[id(value)]


class _Handle:
    def __init__(self, handle: Any, outs: dict[int, Any], kept: Any) -> None:
        self._handle, self._outs, self._kept = handle, outs, kept
        self._values: list[Any] = []

    def wait(self, *arguments: Any) -> Any:
        if not self._values:
            self._values.append(_to_host(self._handle.wait(*arguments), self._outs))
        return self._values[0]

    def done(self) -> bool:
        return bool(self._handle.done())


def _wrapped(name: str, function: Any) -> Any:
    @functools.wraps(function)
    def call(array: Any, *arguments: Any, out: Any = None, **options: Any) -> Any:
        device = _to_device(array)
        outs: dict[int, Any] = {}
        if out is not None:
            is_group = isinstance(out, (list, tuple))
            hosts = list(out) if is_group else [out]
            sources = list(array) if is_group else [array]
            devices = device if is_group else [device]
            targets = []
            for position, host in enumerate(hosts):
                is_same = position < len(sources) and host is sources[position]
                target = devices[position] if is_same else _to_device(host)
                outs[id(target)] = host
                targets.append(target)
            options["out"] = targets if is_group else targets[0]
        result = function(device, *arguments, **options)
        return _Handle(result, outs, options) if name.endswith("_async") else _to_host(result, outs)

    return call


def _enter() -> None:
    for operation in _OPERATIONS:
        for name in (operation, f"{operation}_async", f"grouped_{operation}", f"grouped_{operation}_async"):
            function = getattr(engine, name, None)
            if function is not None:
                setattr(engine, name, _wrapped(name, function))


def main() -> None:
    gpu_arrays.cupy()
    program, *arguments = sys.argv[1:]
    path = Path(__file__).with_name(program)
    sys.argv = [str(path), *arguments]
    init, shutdown = rdmacoll.init, rdmacoll.shutdown

    def begin(*given: Any, **options: Any) -> None:
        init(*given, **options)
        if os.environ.get("GPU_OF_EACH_RANK") == "1":
            gpu_arrays.cupy().cuda.Device(rdmacoll.rank() % 2).__enter__()
        if os.environ.get("GPU_MEMORY") == "engine":
            device_array.take_memory_from(lambda size, gpu: engine.empty(size, np.uint8, f"cuda:{gpu}"))
        ranks = os.environ.get("DEVICE_RANKS")
        if os.environ.get("RDMACOLL_CUDA_IPC", "off") != "off":
            gpu_arrays.prepare_sums()
        if ranks is None or str(rdmacoll.rank()) in ranks.split(","):
            _enter()

    def end() -> None:
        if os.environ.get("RDMACOLL_CUDA_IPC", "off") != "off":
            assert rdmacoll.metrics()["bytes_between_gpus"] > 0, "no rank has read memory on a GPU"
        device_array.take_memory_from(None)
        shutdown()

    rdmacoll.init, rdmacoll.shutdown = begin, end
    runpy.run_path(str(path), run_name="__main__")


if __name__ == "__main__":
    main()
