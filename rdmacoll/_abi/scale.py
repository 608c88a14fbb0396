"""Questions of `rdmacoll sim scale`: the duration of a step of allreduces on modelled links."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rdmacoll._abi import mirror
from rdmacoll._abi.library import load

BYTES_PER_US_OF_GBIT = 125.0


@dataclass(frozen=True)
class Link:
    """LogGP parameters: latency, the processor's overhead at each end of a transfer, the gap between
    transfers at a port, and the bytes that a port carries in each direction."""

    latency_us: float
    overhead_us: float
    gap_us: float
    bytes_per_us: float


@dataclass(frozen=True)
class Model:
    """Links within a node and between nodes, and a processor's rates."""

    network: Link
    via_nic: bool
    node: Link = Link(0.3, 0.2, 0.0, 10_000)
    rack_nodes: int = 0  # 0: all nodes are in one rack
    oversubscription: float = 1.0  # the send rate of all nodes of a rack, divided by its uplink's rate
    step_us: float = 0.1
    copy_bytes_per_us: float = 12_000
    reduce_bytes_per_us: float = 8_000

    @property
    def uplink_bytes_per_us(self) -> float:
        """The rate of a rack's uplink in each direction."""
        return max(1, self.rack_nodes) * self.network.bytes_per_us / self.oversubscription


# TCP over Ethernet carries 1448 of the 1538 bytes of a full frame.
_TCP_SHARE = 1448 / 1538
PRESETS = {
    "1gbit": Model(Link(30, 8, 2, 125 * _TCP_SHARE), via_nic=False),
    "10gbit": Model(Link(15, 4, 1, 1250 * _TCP_SHARE), via_nic=False),
    "25gbit": Model(Link(2, 0.4, 0.1, 3_000), via_nic=True),
    "100gbit": Model(Link(1.2, 0.3, 0.1, 12_000), via_nic=True),
    "200gbit": Model(Link(1.2, 0.3, 0.1, 24_000), via_nic=True),
}


def with_network(model: Model, **options: float | None) -> Model:
    """The model with these values of its network; None keeps the model's value.

    >>> with_network(PRESETS["1gbit"], latency_us=50.0, gap_us=None).network.latency_us
    50.0
    """
    set_options = {name: value for name, value in options.items() if value is not None}
    return replace(model, network=replace(model.network, **set_options))


def _link(link: Link) -> mirror.Link:
    return mirror.Link(link.latency_us, link.overhead_us, link.gap_us, link.bytes_per_us)


def simulate(
    model: Model,
    *,
    ranks: int,
    per_node: int = 1,
    operations: Sequence[tuple[int, float]],
    algorithm: str | None = None,
    transfers_max: int = 4_000_000,
) -> dict[str, Any]:
    """Simulates a step of allreduces.

    operations: for each allreduce its bytes, and the time of its submission after the step's begin in us.
    Result: "time_us" (None if the step has more than `transfers_max` transfers), "transfers", "algorithms",
    and "moved" (true: sums were compared; false: only sizes were simulated). Raises ConfigError for a wrong
    question.

    >>> simulate(PRESETS["10gbit"], ranks=2, operations=[(1 << 20, 0.0)])["time_us"] > 900
    True
    """
    count = len(operations)
    sizes = (ctypes.c_uint64 * count)(*(size for size, _ in operations))
    ready = (ctypes.c_double * count)(*(time for _, time in operations))
    query = mirror.ScaleQuery(
        ranks,
        per_node,
        model.rack_nodes,
        _link(model.node),
        _link(model.network),
        model.uplink_bytes_per_us,
        int(model.via_nic),
        model.step_us,
        model.copy_bytes_per_us,
        model.reduce_bytes_per_us,
        algorithm.encode() if algorithm else None,
        count,
        sizes,
        ready,
        transfers_max,
    )
    return load().sim_scale(query)
