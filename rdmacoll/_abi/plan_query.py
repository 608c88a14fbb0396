"""Questions of `rdmacoll plan`: the algorithm that would run, its costs, and each rank's steps."""

from __future__ import annotations

from typing import Any

from rdmacoll._abi import library as abi, mirror

OPERATIONS = (
    "allreduce",
    "reducescatter",
    "reduce",
    "broadcast",
    "allgather",
    "gather",
    "scatter",
    "alltoall",
)


def explain(
    operation: str,
    *,
    ranks: int,
    nodes: int,
    count: int,
    rank: int = 0,
    algorithm: str | None = None,
    via_nic: bool = True,
    latency_us: float = 0,
    gbit_per_s: float = 0,
    servers: int = 0,
    dtype: str = "float32",
) -> dict[str, Any]:
    """The answer to one question about `count` bytes; keys in rdmacoll_c.h.

    `servers`: parameter servers, which have the numbers after the ranks. `latency_us` and `gbit_per_s`
    describe the network between nodes; 0: usual values. `dtype`: the dtype of the summed arrays; sums of
    16-bit floats stay in float32 between ranks. Raises ConfigError when a value or a setting is wrong.

    >>> explain("allreduce", ranks=8, nodes=2, count=1 << 20)["reason"]
    'between nodes: the lowest cost by latency and rate of the links'
    """
    query = mirror.PlanQuery(
        mirror.KINDS[operation],
        ranks,
        nodes,
        count,
        rank,
        algorithm.encode() if algorithm else None,
        int(via_nic),
        latency_us,
        gbit_per_s,
        servers,
        dtype.encode(),
    )
    return abi.load().explain(query)
