"""`rdmacoll doctor --pair`: tests the path between every two ranks, over RDMA and over TCP."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rdmacoll._abi.devices import engine_view
from rdmacoll._abi.mirror import BANDWIDTH, EXCHANGE, LATENCY
from rdmacoll._base.text import counted
from rdmacoll._world import pairs
from rdmacoll._world.pairs import Pair, RankGroup
from rdmacoll.cli import doctor_gather, path_page
from rdmacoll.cli.doctor_findings import PROBLEM
from rdmacoll.cli.pair_schedule import rounds_of
from rdmacoll.cli.path_findings import judge
from rdmacoll.cli.paths import (
    BANDWIDTH_BYTES,
    CUT_SIZES,
    LATENCY_BYTES,
    RDMA,
    TCP,
    Path,
    Paths,
    RankFacts,
    cut_of,
    path_of,
    rank_facts,
    rank_facts_from,
)
from rdmacoll.cli.rdma_request import rdma_request
from rdmacoll.cli.report import Findings, print_line
from rdmacoll.errors import ConfigError

# Many short bursts: a disturbance of a few of them leaves the median alone.
_CUT_BURSTS, _CUT_BURST_S = 9, 0.004


def examine_pairs(timeout_s: float) -> Findings:
    """Runs the tests on all ranks; rank 0 prints the page. `timeout_s` limits one test, in seconds."""
    with pairs.rank_group() as group:
        if group.launch.size < 2:
            raise ConfigError(
                "doctor --pair tests the paths between ranks, and here is one rank alone "
                f"({group.launch.source}): rdmacoll run -np 2 rdmacoll doctor --pair."
            )
        found = _paths(group, timeout_s)
        if group.launch.rank != 0:
            # A failure of another rank would make mpirun end rank 0 in the middle of the page.
            return {"ok": True}
    findings = judge(found)
    print_line("\n".join(path_page.lines(found, findings, shutil.get_terminal_size().columns)))
    return {
        "ok": not any(finding.state == PROBLEM for finding in findings),
        "findings": [finding.fields() for finding in findings],
        "ranks": [rank.fields() for rank in found.ranks],
        "paths": [path.fields() for path in found.paths],
        "rounds": found.rounds,
        "seconds": found.seconds,
        "acc_size": found.acc_size,
        "measured_acc_size": found.cut_bytes(),
    }


def _paths(group: RankGroup, timeout_s: float) -> Paths:
    ranks = _ranks(group)
    rounds = rounds_of([rank.host for rank in ranks])
    count = counted(sum(len(each) for each in rounds), "pair")
    print_line(f"testing {count} in {counted(len(rounds), 'round')} ...")
    begin = time.monotonic()
    paths: list[Path] = []
    for number, side_by_side in enumerate(rounds):
        paths += _round(group, _Tests(timeout_s), side_by_side, ranks, f"round {number}")
    return Paths(
        ranks,
        tuple(sorted(paths, key=lambda path: (path.transport, path.ranks))),
        acc_size_is_set=group.values.is_set("RDMACOLL_ACC_SIZE"),
        rounds=len(rounds),
        seconds=time.monotonic() - begin,
    )


def _ranks(group: RankGroup) -> tuple[RankFacts, ...]:
    own_facts = rank_facts(
        group.launch.rank,
        socket.gethostname(),
        engine_view(group.library),
        doctor_gather.kernel_devices(),
        rdma_request(doctor_gather.settings(group.library)),
    )
    texts = group.exchange.allgather(json.dumps(own_facts.fields()))
    return tuple(rank_facts_from(json.loads(text)) for text in texts)


class _Tests:
    """The tests of each path. They set a few settings; the others are the user's."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def path(self, transport: str) -> pairs.Test:
        """Latency and bandwidth."""
        return self._test(transport, {}, LATENCY | BANDWIDTH, (LATENCY_BYTES, BANDWIDTH_BYTES))

    def cut(self, acc_size: int) -> pairs.Test:
        """The exchange of each size. The cut at `acc_size` makes all of them eager or all of them
        rendezvous."""
        test = self._test("rdma", {"acc_size": acc_size}, EXCHANGE, CUT_SIZES)
        return replace(test, repeats=_CUT_BURSTS, burst_s=_CUT_BURST_S)

    def _test(
        self, transport: str, settings: dict[str, object], measures: int, sizes: Sequence[int]
    ) -> pairs.Test:
        # The connecting end gives up before the whole test does, because it knows the cause.
        own = {"transport": transport, "start_timeout_s": self._timeout_s / 2, **settings}
        return pairs.Test(
            own, measures, sizes, progress_timeout_s=self._timeout_s / 2, limit_s=self._timeout_s
        )


def _round(
    group: RankGroup, tests: _Tests, side_by_side: Sequence[Pair], ranks: Sequence[RankFacts], name: str
) -> Iterator[Path]:
    able = [pair for pair in side_by_side if not any(ranks[rank].obstacle for rank in pair)]
    for transport, tested in ((TCP, side_by_side), (RDMA, able)):
        if not tested:
            continue
        outcomes = pairs.measure(group, tested, tests.path(transport.lower()), f"{name} {transport}")
        found = {pair: path_of(pair, transport, outcome) for pair, outcome in outcomes.items()}
        if transport == RDMA:
            found.update(_with_cuts(group, tests, found, name))
        yield from found.values()


def _with_cuts(
    group: RankGroup, tests: _Tests, found: dict[Pair, Path], name: str
) -> Iterator[tuple[Pair, Path]]:
    well = [pair for pair, path in found.items() if path.is_ok]
    if not well:
        return
    eager = pairs.measure(group, well, tests.cut(CUT_SIZES[-1]), f"{name} eager")
    rendezvous = pairs.measure(group, well, tests.cut(0), f"{name} rendezvous")
    for pair in well:
        yield pair, replace(found[pair], cut=cut_of(eager[pair], rendezvous[pair]))
