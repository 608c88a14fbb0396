"""What `rdmacoll plan` asks the library: which algorithm would run, what each costs, who does what."""

from __future__ import annotations

import ctypes
from typing import Any

from rdmacoll._abi import library as abi

_KINDS = {
    "allreduce": abi.ALLREDUCE,
    "reducescatter": abi.REDUCESCATTER,
    "reduce": abi.REDUCE,
    "broadcast": abi.BROADCAST,
    "allgather": abi.ALLGATHER,
    "gather": abi.GATHER,
    "scatter": abi.SCATTER,
    "alltoall": abi.ALLTOALL,
}
OPERATIONS = tuple(_KINDS)


class _Question(ctypes.Structure):
    """rc_question."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("kind", ctypes.c_int32),
        ("ranks", ctypes.c_int32),
        ("nodes", ctypes.c_int32),
        ("bytes", ctypes.c_uint64),
        ("rank", ctypes.c_int32),
        ("algorithm", ctypes.c_char_p),
        ("is_rdma", ctypes.c_int32),
        ("latency_us", ctypes.c_double),
        ("gbit_per_s", ctypes.c_double),
        ("servers", ctypes.c_int32),
        ("dtype", ctypes.c_char_p),
    ]


def explain(
    operation: str,
    *,
    ranks: int,
    nodes: int,
    count: int,
    rank: int = 0,
    algorithm: str | None = None,
    is_rdma: bool = True,
    latency_us: float = 0,
    gbit_per_s: float = 0,
    servers: int = 0,
    dtype: str = "float32",
) -> dict[str, Any]:
    """The answer to one question about `count` bytes; keys in rdmacoll_c.h.

    `servers`: parameter servers beside the ranks, with the numbers after theirs. `latency_us` and
    `gbit_per_s` are those of the network between nodes; 0: what is usual. `dtype`: of what is summed; sums of
    16-bit floats stay in float32 on their way. Raises ConfigError when a value or a setting is wrong.

    >>> explain("allreduce", ranks=8, nodes=2, count=1 << 20)["algorithm"]
    'two_level'
    """
    question = _Question(
        ctypes.sizeof(_Question),
        _KINDS[operation],
        ranks,
        nodes,
        count,
        rank,
        algorithm.encode() if algorithm else None,
        int(is_rdma),
        latency_us,
        gbit_per_s,
        servers,
        dtype.encode(),
    )
    return abi.load().explain(question)
