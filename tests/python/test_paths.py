"""Paths between ranks: the schedule of the pairs, the judgement of the numbers, and the findings."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from rdmacoll._abi.devices import ENGINE, SYSFS, Device, Gid, Port, Rail, View
from rdmacoll._world.pairs import Outcome
from rdmacoll.cli import path_page
from rdmacoll.cli.doctor_findings import NOTE, OK, PROBLEM, Finding
from rdmacoll.cli.pair_schedule import round_robin, rounds_of
from rdmacoll.cli.path_findings import judge
from rdmacoll.cli.paths import (
    CUT_SIZES,
    RDMA,
    TCP,
    Cut,
    Path,
    Paths,
    RailFacts,
    RankFacts,
    cut_of,
    path_of,
    rank_facts,
    rank_facts_from,
)
from rdmacoll.cli.rdma_request import RdmaRequest

V2, V1 = "roce_v2", "roce_v1"


# ---- the schedule of pairs ----


@pytest.mark.parametrize("count", range(2, 10))
def test_every_pair_meets_once_in_as_few_rounds_as_there_can_be(count):
    rounds = rounds_of([f"host{rank}" for rank in range(count)])
    assert len(rounds) == count - 1 + count % 2
    for pairs in rounds:
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len(set(ranks)), pairs
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == list(itertools.combinations(range(count), 2))


@pytest.mark.parametrize("seed", range(20))
def test_a_host_takes_part_in_one_test_at_a_time(seed):
    source = random.Random(seed)
    hosts = [f"host{source.randrange(4)}" for _ in range(source.randint(2, 9))]
    rounds = rounds_of(hosts)
    for pairs in rounds:
        busy = [host for low, high in pairs for host in {hosts[low], hosts[high]}]
        assert len(busy) == len(set(busy)), (seed, hosts, pairs)
        assert pairs
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == list(itertools.combinations(range(len(hosts)), 2)), (seed, hosts)


def test_one_player_meets_nobody():
    assert round_robin("a") == [[]]


# ---- ranks ----


def v4(index: int, number: int, kind: str = V2, network: str = "10.9.0") -> Gid:
    return Gid(index, f"::ffff:{network}.{number}", kind, "eth0")


def link_local(index: int, number: int) -> Gid:
    return Gid(index, f"fe80::{number}", V2, "eth0")


def rank(number: int, *gids: Gid, host: str = "", obstacle: str = "", has_devices: bool = True) -> RankFacts:
    """Returns the facts of a rank that uses the first of these GIDs."""
    rails = (RailFacts(f"mlx5_0 port 1 (GID {gids[0].index} {gids[0].gid})", gids[0], gids),) if gids else ()
    return RankFacts(number, host or f"node{number}", rails, obstacle, has_devices)


def test_facts_of_a_rank_survive_json_and_have_the_gid_with_its_table():
    table = (link_local(0, 1), v4(1, 1, V1), v4(3, 1))
    device = Device("mlx5_0", ports=(Port(1, "active", "ethernet", gids=table),))
    view = View(
        ENGINE, (device,), rails=(Rail("mlx5_0", 1, "::ffff:10.9.0.1", "mlx5_0 port 1", "the first"),)
    )
    facts = rank_facts(5, "node5", view, View(SYSFS), RdmaRequest(demands=("A=1",)))
    assert facts.rails[0].gids == table
    assert facts.rails[0].gid.gid == "::ffff:10.9.0.1"
    assert facts.obstacle == ""
    assert rank_facts_from(json.loads(json.dumps(facts.fields()))) == facts


def test_a_rank_without_rdma_says_why():
    refusal = "RDMACOLL_DEVICE=mlx5_9 is not there."
    kernel = View(SYSFS)
    assert rank_facts(0, "node0", View(ENGINE, refusal=refusal), kernel, RdmaRequest()).obstacle == refusal
    off = rank_facts(0, "node0", View(ENGINE), kernel, RdmaRequest(off="RDMACOLL_TRANSPORT=tcp"))
    assert (off.obstacle, off.is_off) == ("it is turned off (RDMACOLL_TRANSPORT=tcp)", True)


def test_devices_that_only_the_kernel_sees_are_devices():
    engine = View(ENGINE, problem="RDMA needs the library libibverbs, which cannot be loaded (x): ...")
    for kernel, has_devices in ((View(SYSFS), False), (View(SYSFS, (Device("mlx5_0"),)), True)):
        ranks = [rank_facts(n, f"node{n}", engine, kernel, RdmaRequest()) for n in range(2)]
        assert [each.has_devices for each in ranks] == [has_devices] * 2
        assert judge(world(*ranks))[0].state == (PROBLEM if has_devices else OK)


# ---- outcomes ----


def outcome(**keys: float) -> Outcome:
    return Outcome({"rows": [{"bytes": size, **keys} for size in (8, 1 << 20)], "acc_size": 0})


def test_a_path_has_its_numbers_by_direction():
    numbers = {"GB_per_s_forward": 3.0, "GB_per_s_back": 2.0, "GB_per_s_both": 4.0}
    found = path_of((1, 4), TCP, outcome(latency_us=7.5, **numbers))
    assert (found.latency_us, found.both) == (7.5, 4.0)
    assert (found.speed(1), found.speed(4)) == (3.0, 2.0)


def test_the_echo_of_a_failure_is_not_its_cause():
    echo = "rank 1 (b, pid 2) stopped answering: closed its connection (the process ended, or left)"
    cause = "rank 0 (a, pid 1) stopped answering: queue pair 17 failed"
    assert Path((0, 1), RDMA, problems=(echo, cause)).causes() == cause
    assert Path((0, 1), RDMA, problems=(echo, "")).causes() == echo
    assert Path((0, 1), RDMA, problems=(cause, cause)).causes() == cause


def times(crossing: int) -> Cut:
    """Eager is faster below `crossing` bytes."""
    eager = tuple(1.0 if size < crossing else 9.0 for size in CUT_SIZES)
    return Cut(eager, (5.0,) * len(CUT_SIZES))


@pytest.mark.parametrize(
    ("crossing", "eager_bytes"), [(16384, 8192), (1024, 512), (65536, 32768), (1 << 20, 65536)]
)
def test_the_cut_is_below_the_first_size_at_which_rendezvous_is_not_slower(crossing, eager_bytes):
    assert times(crossing).eager_bytes == eager_bytes


def test_one_size_alone_does_not_make_the_cut():
    eager = [1.0] * len(CUT_SIZES)
    eager[2] = 9.0
    assert Cut(tuple(eager), (5.0,) * len(CUT_SIZES)).eager_bytes == 65536


def test_no_cut_without_both_tests():
    rows = Outcome({"rows": [{"bytes": size, "exchange_us": 1.0} for size in CUT_SIZES]})
    assert cut_of(rows, rows) == Cut((1.0,) * 7, (1.0,) * 7)
    assert cut_of(rows, Outcome({}, ("", "it failed"))) is None


# ---- findings ----


def world(
    *ranks: RankFacts, speed: Callable[[int, int], float] = lambda *_: 10.0, **changes: object
) -> Paths:
    """Returns a world whose paths all work, over TCP, and over RDMA if both ranks can use it."""
    paths = []
    for low, high in itertools.combinations(ranks, 2):
        numbers = (2.0, speed(low.rank, high.rank), speed(high.rank, low.rank), 12.0)
        paths.append(Path((low.rank, high.rank), TCP, *numbers))
        if not low.obstacle and not high.obstacle:
            paths.append(Path((low.rank, high.rank), RDMA, *numbers, acc_size=8192))
    return Paths(tuple(ranks), tuple(paths), **changes)


def failing(found: Paths, transport: str, pair: tuple[int, int], *sentences: str) -> Paths:
    problems = (sentences[0], sentences[-1] if len(sentences) > 1 else "")
    broken = Path(pair, transport, problems=problems)
    others = [p for p in found.paths if (p.ranks, p.transport) != (pair, transport)]
    return replace(found, paths=(*others, broken))


def of_state(findings: list[Finding], state: str) -> list[Finding]:
    return [finding for finding in findings if finding.state == state]


def only_problem(found: Paths) -> Finding:
    (finding,) = of_state(judge(found), PROBLEM)
    assert finding.why
    assert finding.cure
    assert finding.check
    return finding


NO_ANSWER = (
    "rank 7 (node7, pid 9) stopped answering: queue pair 17 failed: no answer from the other end: retry "
    "counter exceeded (12), on mlx5_0 port 1 to GID ::ffff:10.9.0.7"
)


def test_paths_that_are_well_are_ok():
    findings = judge(world(*(rank(number, v4(3, number)) for number in range(4))))
    assert [(finding.name, finding.state) for finding in findings] == [("RDMA", OK), ("TCP", OK)]
    assert "6 paths" in findings[0].seen


def test_a_gid_of_another_type_is_named_with_the_one_to_take():
    odd = rank(1, v4(2, 1, V1), v4(0, 1, V1), v4(3, 1))
    found = world(rank(0, v4(3, 0)), odd, rank(2, v4(3, 2)))
    found = failing(failing(found, RDMA, (0, 1), NO_ANSWER), RDMA, (1, 2), NO_ANSWER)
    finding = only_problem(found)
    assert "no path of rank 1 works" in finding.seen
    assert finding.why.startswith("wrong GID: ")
    assert "RoCE v1" in finding.why
    assert "RDMACOLL_GID_INDEX=3 at rank 1 (node1)" in finding.cure


def test_of_two_ranks_the_link_local_gid_is_the_wrong_one():
    found = world(rank(0, link_local(0, 5), v4(1, 0)), rank(1, v4(1, 1)))
    finding = only_problem(failing(found, RDMA, (0, 1), "the way to GID fe80::5 cannot be set up"))
    assert finding.why.startswith("wrong GID: ")
    assert "RDMACOLL_GID_INDEX=1 at rank 0 (node0)" in finding.cure


def test_a_gid_of_the_right_kind_that_is_not_there_asks_for_an_address():
    found = world(rank(0, link_local(0, 5)), rank(1, v4(1, 1)), rank(2, v4(1, 2)))
    finding = only_problem(failing(found, RDMA, (0, 1), "the way to GID fe80::5 cannot be set up"))
    assert "has no GID of the kind RoCE v2 IPv4" in finding.cure
    assert "address" in finding.cure


def test_a_single_path_that_fails_is_named_with_its_sentence_and_both_ranks():
    found = world(*(rank(number, v4(3, number)) for number in range(8)))
    finding = only_problem(failing(found, RDMA, (3, 7), NO_ANSWER))
    assert finding.name == "RDMA 3-7"
    assert finding.seen.startswith("rank 3 (node3) and rank 7 (node7): ")
    assert NO_ANSWER in finding.seen
    assert "4791" in finding.why
    assert "ping -I eth0 10.9.0.7 on node3" in finding.check


@pytest.mark.parametrize(
    "sentence", ["cannot be set up: network is unreachable", "cannot be set up: no route to host"]
)
def test_a_missing_route_is_called_that(sentence):
    found = world(*(rank(number, v4(3, number)) for number in range(4)))
    finding = only_problem(failing(found, RDMA, (1, 2), sentence))
    assert finding.why.startswith("missing route: ")
    assert "::ffff:10.9.0.1" in finding.why
    assert "::ffff:10.9.0.2" in finding.why


def test_gids_of_different_networks_ask_for_a_route():
    found = world(rank(0, v4(3, 1)), rank(1, v4(3, 1, network="10.8.0")), rank(2, v4(3, 2)))
    finding = only_problem(failing(found, RDMA, (0, 1), NO_ANSWER))
    assert finding.why.startswith("missing route: ")
    assert "different networks" in finding.why


def test_tcp_that_fails_names_ports_and_interface():
    found = world(*(rank(number, v4(3, number)) for number in range(3)))
    finding = only_problem(failing(found, TCP, (0, 2), "rank 2 (node2, pid 3) stopped answering: refused"))
    assert finding.name == "TCP 0-2"
    assert "RDMACOLL_INTERFACE" in finding.cure


def test_a_slow_link_is_named_with_both_values():
    slow = {(2, 3): 3.0}
    found = world(*(rank(n, v4(3, n)) for n in range(4)), speed=lambda a, b: slow.get((a, b), 10.0))
    notes = of_state(judge(found), NOTE)
    assert [finding.name for finding in notes] == ["RDMA 2-3", "TCP 2-3"]
    for finding in notes:
        assert "from rank 2 (node2) to rank 3 (node3) 3 GB/s, and back 10, where 10 GB/s" in finding.seen
        assert "node2,node3" in finding.check


def test_paths_within_a_host_are_compared_with_their_like_alone():
    # The path within node0 is much faster. The other paths do not count as slow because of that.
    ranks = [rank(n, v4(3, n), host="node0" if n < 2 else f"node{n}") for n in range(4)]
    found = world(*ranks, speed=lambda a, b: 100.0 if {a, b} == {0, 1} else 10.0)
    assert of_state(judge(found), NOTE) == []


def test_a_direction_that_is_slow_shows_with_two_ranks():
    found = world(rank(0, v4(3, 0)), rank(1, v4(3, 1)), speed=lambda a, b: 10.0 if a < b else 1.0)
    assert {finding.name for finding in of_state(judge(found), NOTE)} == {"RDMA 0-1", "TCP 0-1"}


def test_where_nobody_has_a_device_that_is_said_and_no_problem():
    ranks = [rank(n, obstacle="the kernel has no RDMA devices.", has_devices=False) for n in range(2)]
    findings = judge(world(*ranks))
    assert of_state(findings, PROBLEM) == []
    assert findings[0].name == "RDMA"
    assert "the kernel has no RDMA devices" in findings[0].seen


def test_rdma_that_is_demanded_and_cannot_be_used_is_a_problem_without_any_device_too():
    obstacle = "this machine has no RDMA device nothere."
    ranks = [rank(n, obstacle=obstacle, has_devices=False) for n in range(2)]
    request = RdmaRequest(demands=("TF_RDMA_DEV_NAME=nothere", "TF_RDMA_ENABLED=true"))
    ranks[1] = replace(ranks[1], demanded=request.demanded, demand_cure=request.cure)
    finding = only_problem(world(*ranks))
    assert "rank 1 (node1) TF_RDMA_DEV_NAME=nothere and TF_RDMA_ENABLED=true demand it" in finding.seen
    assert "unset TF_RDMA_DEV_NAME and TF_RDMA_ENABLED, to use TCP" in finding.cure


def test_rdma_that_is_turned_off_on_devices_is_no_problem():
    ranks = [replace(rank(n, obstacle="it is turned off"), is_off=True) for n in range(2)]
    findings = judge(world(*ranks))
    assert of_state(findings, PROBLEM) == []
    assert (findings[0].name, findings[0].state) == ("RDMA", OK)
    # RDMA is off on one rank alone, so the other rank waits for it.
    assert only_problem(world(ranks[0], rank(1, v4(3, 1)))).name == "RDMA"


def test_what_is_well_says_why_it_was_looked_at():
    found = world(rank(0, v4(3, 0)), rank(1, v4(3, 1)))
    measured = replace(found, paths=tuple(replace(path, cut=times(8192)) for path in found.paths))
    well = of_state(judge(measured), OK)
    assert {finding.name for finding in well} == {"RDMA", "TCP", "eager cut"}
    assert all(finding.why and finding.check and not finding.cure for finding in well)


def test_one_rank_without_rdma_among_others_is_a_problem():
    ranks = [rank(0, v4(3, 0)), rank(1, v4(3, 1)), rank(2, obstacle="no port of mlx5_0 is active.")]
    finding = only_problem(world(*ranks))
    assert "rank 2 (node2): no port of mlx5_0 is active" in finding.seen


@pytest.mark.parametrize("is_set", [True, False])
@pytest.mark.parametrize(("crossing", "state"), [(16384, OK), (4096, OK), (1 << 20, NOTE), (2048, NOTE)])
def test_a_cut_far_from_the_one_in_use_is_worth_a_note(crossing, state, is_set):
    found = world(rank(0, v4(3, 0)), rank(1, v4(3, 1)), acc_size_is_set=is_set)
    measured = replace(found, paths=tuple(replace(path, cut=times(crossing)) for path in found.paths))
    (finding,) = (finding for finding in judge(measured) if finding.name == "eager cut")
    assert finding.state == state
    used = "TF_RDMA_ACC_SIZE=8192 is set and is obeyed" if is_set else "the engine takes 8 KiB"
    assert used in finding.seen
    if state == NOTE:
        assert finding.cure == f"TF_RDMA_ACC_SIZE={times(crossing).eager_bytes}"


# ---- the page ----


def page(found: Paths, width: int = 120) -> str:
    return "\n".join(path_page.lines(found, judge(found), width))


def test_the_matrix_shows_each_direction_and_what_fails():
    found = world(*(rank(n, v4(3, n)) for n in range(3)), speed=lambda a, b: a + b / 10)
    found = failing(found, RDMA, (0, 2), NO_ANSWER)
    text = page(found)
    rows = [line.split() for line in text.splitlines()]
    assert ["0", "-", "0.100", "fails"] in rows
    assert ["1", "1.000", "-", "1.200"] in rows
    assert ["2", "2.000", "2.100", "-"] in rows  # TCP, where nothing fails
    assert "GB/s from row to column" in text


def test_a_world_too_large_for_a_matrix_shows_its_slowest_paths():
    found = world(
        *(rank(n, v4(3, n)) for n in range(20)), speed=lambda a, b: 1.5 if (a, b) == (4, 9) else 10.0
    )
    text = page(found)
    assert "1.500 from 4 to 9" in text
    assert "190 paths" in text
    assert max(len(line) for line in text.splitlines()) <= 130
