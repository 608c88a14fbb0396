"""The facts of `rdmacoll doctor --pair` about ranks and the paths between them, as plain values."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rdmacoll._abi.devices import Gid, View
from rdmacoll._world.pairs import Outcome, Pair
from rdmacoll.cli.rdma_request import RdmaRequest

RDMA, TCP = "RDMA", "TCP"
LATENCY_BYTES, BANDWIDTH_BYTES = 8, 1 << 20
CUT_SIZES = tuple(1 << power for power in range(10, 17))  # 1 KiB to 64 KiB


@dataclass(frozen=True)
class RailFacts:
    """A port that carries RDMA: its text in the engine's words, its GID, and all GIDs of the port."""

    text: str
    gid: Gid
    gids: tuple[Gid, ...] = ()


@dataclass(frozen=True)
class RankFacts:
    """A rank: its host, and its RDMA ports or the reason why it has none."""

    rank: int
    host: str
    rails: tuple[RailFacts, ...] = ()
    obstacle: str = ""  # why the rank cannot use RDMA; empty: it can
    has_devices: bool = False  # the kernel or the engine lists devices, usable or not
    is_off: bool = False  # the rank's settings turn RDMA off
    demanded: str = ""  # "TF_RDMA_ENABLED=true demands": RDMA that cannot be used is an error at the start
    demand_cure: str = ""  # the advice that ends the demand

    @property
    def text(self) -> str:
        """The rank in a sentence."""
        return f"rank {self.rank} ({self.host})"

    def fields(self) -> dict[str, Any]:
        """The fields for JSON."""
        return asdict(self)


def rank_facts(rank: int, host: str, view: View, kernel: View, request: RdmaRequest) -> RankFacts:
    """The facts of a rank. view: the engine's view and choice. kernel: the kernel's list. request: the
    settings' decision."""
    obstacle = f"it is turned off ({request.off})" if request.off else ""
    rails = []
    for rail in view.rails:
        ports = [p for d in view.devices if d.name == rail.device for p in d.ports if p.number == rail.port]
        gids = ports[0].gids if ports else ()
        known = next((gid for gid in gids if gid.gid == rail.gid), Gid(-1, rail.gid))
        rails.append(RailFacts(rail.text, known, gids))
    obstacle = obstacle or view.problem or view.refusal
    return RankFacts(
        rank,
        host,
        tuple(rails),
        obstacle,
        has_devices=bool(view.devices or kernel.devices),
        is_off=bool(request.off),
        demanded=request.demanded,
        demand_cure=request.cure,
    )


def rank_facts_from(fields: Mapping[str, Any]) -> RankFacts:
    """The inverse of `RankFacts.fields`, after JSON."""
    rails = tuple(
        RailFacts(str(rail["text"]), Gid(**rail["gid"]), tuple(Gid(**gid) for gid in rail["gids"]))
        for rail in fields["rails"]
    )
    return RankFacts(**{**fields, "rails": rails})


@dataclass(frozen=True)
class Cut:
    """Times of the exchange of each size: all eager, and all by rendezvous."""

    eager_us: tuple[float, ...]
    rendezvous_us: tuple[float, ...]

    @property
    def eager_bytes(self) -> int:
        """The largest size up to which eager is faster, in bytes. If eager is never faster, half of the
        smallest size. One size alone at which the times cross may be chance, so the next size has to
        agree."""
        slower = [eager >= rendezvous for eager, rendezvous in zip(self.eager_us, self.rendezvous_us)]
        for position, size in enumerate(CUT_SIZES):
            if all(slower[position : position + 2]):
                return size // 2
        return CUT_SIZES[-1]


@dataclass(frozen=True)
class Path:
    """The path between two ranks over one transport: its numbers, or the messages of both ends."""

    ranks: Pair
    transport: str
    latency_us: float = 0.0
    forward: float = 0.0  # GB/s, from the lower rank to the higher
    back: float = 0.0
    both: float = 0.0
    problems: tuple[str, str] = ("", "")
    acc_size: int = 0  # the eager cut in use, in bytes
    cut: Cut | None = None

    @property
    def is_ok(self) -> bool:
        """Whether the path has numbers."""
        return self.problems == ("", "")

    def speed(self, source: int) -> float:
        """GB/s from `source` to the other rank."""
        return self.forward if source == self.ranks[0] else self.back

    def directions(self) -> tuple[tuple[float, Pair], tuple[float, Pair]]:
        """Both directions: (GB/s, (from, to))."""
        low, high = self.ranks
        return (self.forward, (low, high)), (self.back, (high, low))

    def causes(self) -> str:
        """The messages of both ends, each once. The message that the peer closed its connection follows
        from the peer's own message, and is left out if there is one."""
        problems = list(dict.fromkeys(problem for problem in self.problems if problem))
        return " ".join([text for text in problems if "closed its connection" not in text] or problems)

    def fields(self) -> dict[str, Any]:
        """The fields for JSON."""
        fields = asdict(self)
        if self.cut is not None:
            fields["cut"].update(sizes=CUT_SIZES, eager_bytes=self.cut.eager_bytes)
        return fields


def path_of(pair: Pair, transport: str, outcome: Outcome) -> Path:
    """The path, from a test of LATENCY_BYTES and BANDWIDTH_BYTES."""
    if not outcome.is_ok:
        return Path(pair, transport, problems=outcome.problems)
    rows = {row["bytes"]: row for row in outcome.found["rows"]}
    large = rows[BANDWIDTH_BYTES]
    return Path(
        pair,
        transport,
        rows[LATENCY_BYTES]["latency_us"],
        large["GB_per_s_forward"],
        large["GB_per_s_back"],
        large["GB_per_s_both"],
        acc_size=outcome.found["acc_size"],
    )


def cut_of(eager: Outcome, rendezvous: Outcome) -> Cut | None:
    """The cut, from two tests of CUT_SIZES; None if one of them failed."""
    if not (eager.is_ok and rendezvous.is_ok):
        return None
    times = [
        tuple(float(row["exchange_us"]) for row in outcome.found["rows"]) for outcome in (eager, rendezvous)
    ]
    return Cut(*times)


@dataclass(frozen=True)
class Paths:
    """All facts: ranks by number, paths, and whether the user set the eager cut."""

    ranks: tuple[RankFacts, ...]
    paths: tuple[Path, ...]
    acc_size_is_set: bool = False
    rounds: int = 0
    seconds: float = field(default=0.0, compare=False)

    def over(self, transport: str) -> list[Path]:
        """The paths of one transport."""
        return [path for path in self.paths if path.transport == transport]

    @property
    def acc_size(self) -> int | None:
        """The eager cut in use, in bytes: the median of the paths'; None if no path over RDMA works."""
        cuts = [path.acc_size for path in self.over(RDMA) if path.is_ok]
        return statistics.median_low(cuts) if cuts else None

    def cut_bytes(self) -> int | None:
        """The measured cut in bytes, a power of 2: the median of the pairs'; None if nothing was measured."""
        cuts = [path.cut.eager_bytes for path in self.paths if path.cut is not None]
        return statistics.median_low(cuts) if cuts else None
