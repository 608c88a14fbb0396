"""Arrays on GPUs for parameter servers, which have host memory: copies in the order of streams."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rdmacoll._abi.arguments import Array, address_of
from rdmacoll._calls.device_arrays import DeviceArray
from rdmacoll._calls.submission import Operand
from rdmacoll._world.world import current
from rdmacoll.engine.memory import pool_array


def on_host(arrays: Mapping[str, Operand]) -> dict[str, Array]:
    """The arrays with those on GPUs copied to the host, after the work of their streams.

    Raises RdmacollError.
    """
    hosts = beside(arrays)
    _copy(arrays, hosts, to_host=True)
    return hosts


def beside(arrays: Mapping[str, Operand]) -> dict[str, Array]:
    """The arrays with uninitialised memory of the host in the places of those on GPUs.

    It is memory of the pool, which is pinned for GPUs. If the pool is exhausted, copies are slower.
    """
    return {name: _host_for(one) if isinstance(one, DeviceArray) else one for name, one in arrays.items()}


def to_gpus(arrays: Mapping[str, Operand], hosts: Mapping[str, Array]) -> None:
    """Copies `hosts` to those of the arrays that are on GPUs, after the work of their streams.

    The copies are done when the function returns. Raises RdmacollError.
    """
    _copy(arrays, hosts, to_host=False)


def _host_for(array: DeviceArray) -> Array:
    host: Array | None = pool_array(current(), array.shape, array.dtype)
    return np.empty(array.shape, array.dtype) if host is None else host


def _copy(arrays: Mapping[str, Operand], hosts: Mapping[str, Array], *, to_host: bool) -> None:
    blocks: dict[tuple[int, int], list[tuple[int, int, int]]] = {}  # by GPU and stream
    for name, array in arrays.items():
        if isinstance(array, DeviceArray) and array.nbytes:
            block = (array.address, address_of(hosts[name]), array.nbytes)
            blocks.setdefault((array.gpu, array.order.stream), []).append(block)
    engine = current()
    for (gpu, stream), of_stream in blocks.items():
        with engine.held() as address:
            engine.library.gpu_copy(address, gpu, stream, of_stream, to_host=to_host)
