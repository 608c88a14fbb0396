"""The judgement of comparisons: disturbed bursts, broken teams, ratios and goals."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rdmacoll.benchmarks import judge, overhead, step
from rdmacoll.benchmarks.libraries import LIBRARIES
from rdmacoll.benchmarks.processor_load import Reading
from rdmacoll.benchmarks.team import TeamError
from rdmacoll.benchmarks.team_rank import values
from rdmacoll.benchmarks.turns import Burst, Cell, Rules, Task, Turns, best_burst


def cell(*seconds: float, quiet: bool = True, wrong: int = 0) -> Cell:
    return Cell([Burst([each], 0.0, 0.0, quiet) for each in seconds], wrong=wrong)


class Machine:
    """A machine with two processors. The readings give other processes these shares, one after the other."""

    cores = 2

    def __init__(self, *shares: float) -> None:
        self.shares = list(shares)
        self.waits = 0
        self._now = Reading(0.0, 0.0, 0.0)
        self._is_end = False

    def read(self) -> Reading:
        share = self.shares.pop(0) if self._is_end and self.shares else 0.0
        self._now = Reading(self._now.at + 1.0, self._now.busy + 2 * share, 0.0)
        self._is_end = not self._is_end
        return self._now

    def wait(self, share_max: float, until: float) -> bool:
        self.waits += 1
        return True


class FakeTeam:
    """Two ranks whose calls take a second. The team breaks at burst number `breaks`."""

    def __init__(self, name: str = "openmpi", breaks: int = 0, wrong: int = 0) -> None:
        self.library = LIBRARIES[name]
        self.requests: list[str] = []
        self._breaks, self._wrong = breaks, wrong

    def query(self, request, within_s):
        self.requests.append(request["do"])
        if request["do"] == "usage":
            return [{"cpu_s": 0.0, "peak": 1}] * 2
        if request["do"] != "burst":
            return [{"wrong": self._wrong}, {"wrong": 0}]
        if self._breaks and self.requests.count("burst") >= self._breaks:
            raise TeamError("Open MPI: rank 1 is gone")
        return [{"seconds": [1.0] * request["slices"], "each": 1}] * 2

    def resume(self) -> None:
        self.requests.append("go")

    def stop(self) -> None:
        self.requests.append("stop")

    def end(self) -> None:
        self.requests.append("end")


def taken(teams, machine, *, turns=2, until=math.inf):
    reports: list[str] = []
    rules = Rules(turns=turns)
    tasks = {team.library.name: Task(team.library.name, {"bytes": 8}) for team in teams}
    return Turns(machine, rules, until, reports.append).take(teams, tasks), reports


def test_a_disturbed_burst_is_dropped_and_measured_again_after_a_quiet_moment():
    machine = Machine(0.5, 0.3, 0.02)
    cells, _ = taken([FakeTeam()], machine, turns=1)
    found = cells["openmpi"]
    assert (found.dropped, machine.waits) == (2, 2)
    assert found.bursts[0].is_quiet
    assert found.bursts[0].foreign == pytest.approx(0.02)


def test_without_a_quiet_moment_the_least_disturbed_burst_stands_and_is_marked():
    cells, _ = taken([FakeTeam()], Machine(0.5, 0.3, 0.2, 0.4), turns=1)
    summary = cells["openmpi"].summary()
    assert (summary["quiet"], summary["dropped"]) == (False, 3)
    assert summary["foreign"] == pytest.approx(0.2)


def test_libraries_that_sleep_may_be_disturbed_more():
    cells, _ = taken([FakeTeam("horovod-mpi")], Machine(0.2), turns=1)
    assert cells["horovod-mpi"].dropped == 0


def test_ranks_are_stopped_outside_their_turn_and_who_begins_changes():
    teams = [FakeTeam("openmpi"), FakeTeam("mpich")]
    order = []
    for team in teams:
        team.resume = lambda name=team.library.name: order.append(name)
    taken(teams, Machine(), turns=3)
    assert order == ["openmpi", "mpich", "mpich", "openmpi", "openmpi", "mpich"]
    assert all(team.requests[-1] == "stop" for team in teams)


def test_a_team_that_breaks_leaves_with_its_sentence_and_the_others_go_on():
    teams = [FakeTeam("openmpi", breaks=2), FakeTeam("mpich")]
    broken = teams[0]
    cells, reports = taken(teams, Machine())
    assert [team.library.name for team in teams] == list(cells) == ["mpich"]
    assert len(cells["mpich"].bursts) == 2
    assert broken.requests[-1] == "end"
    assert reports == ["left out from here on: Open MPI: rank 1 is gone"]


def test_when_the_time_is_over_it_says_after_which_turn():
    cells, reports = taken([FakeTeam()], Machine(), turns=5, until=time.monotonic() - 1)
    assert len(cells["openmpi"].bursts) == 1
    assert reports == ["the time is over after turn 1 of 5"]


def test_wrong_values_of_all_ranks_and_turns_are_counted():
    cells, _ = taken([FakeTeam(wrong=3)], Machine(), turns=2)
    assert cells["openmpi"].wrong == 2 * 2 * 3  # at its start and at its end, in each turn


def test_packets_and_own_time_are_not_foreign():
    before, after = Reading(0.0, 0.0, 0.0), Reading(1.0, 2.0, 0.5)
    assert after.share_since(before, own_s=1.5, cores=2) == 0.0
    assert after.share_since(before, own_s=1.0, cores=2) == 0.25


def test_the_first_quiet_burst_is_the_best():
    bursts = [Burst([1.0], 0.3, 0.0, False), Burst([9.0], 0.1, 0.0, True), Burst([2.0], 0.0, 0.0, True)]
    assert best_burst(bursts) is bursts[1]


def test_a_row_has_the_ratio_to_the_best_peer_of_the_same_kind():
    cells = {
        "rdmacoll": cell(2.0, 4.0, 2.0),
        "openmpi": cell(4.0, 4.0, 3.0),
        "mpich": cell(8.0, 8.0, 8.0),
        "rdmacoll-op": cell(1.0, 1.0, 1.0),
        "horovod-gloo": cell(30.0, 50.0, 10.0),
        "memory": cell(1.0, 1.0, 1.0),
    }
    row = judge.compared(1 << 20, cells)
    assert row["ratio"] == {"openmpi": 1.5, "mpich": 4.0, "horovod-gloo": 30.0}
    assert row["best"] == {
        "numpy": {"peer": "openmpi", "ratio": 1.5},
        "tensorflow": {"peer": "horovod-gloo", "ratio": 30.0},
    }
    assert row["percent_of_limit"] == {"rdmacoll": {"memory": 50.0}, "rdmacoll-op": {"memory": 100.0}}


@pytest.mark.parametrize(
    ("size", "peer", "sentence"),
    [
        (8, 1.1, None),
        (8, 0.9, "8: rdmacoll is 0.90 times as fast as Open MPI; the goal is 1 times"),
        (1 << 20, 1.4, None),
        (1 << 20, 1.1, "1M: rdmacoll is 1.10 times as fast as Open MPI; the goal is 1.3 times"),
    ],
)
def test_missed_goals_are_sentences(size, peer, sentence):
    row = judge.compared(size, {"rdmacoll": cell(1.0), "openmpi": cell(peer)})
    assert judge.missed([row]) == ([] if sentence is None else [sentence])


def test_who_goes_around_the_link_is_no_best_peer():
    cells = {"rdmacoll": cell(1.0), "mpich": cell(0.1), "openmpi": cell(2.0), "stream": cell(1.0)}
    row = judge.compared(1 << 20, cells)
    assert row["best"]["numpy"] == {"peer": "openmpi", "ratio": 2.0}
    assert judge.missed([row]) == [
        "1M: MPICH is much faster than plain TCP over the link, so its bytes bypassed the link, and it "
        "does not count as the best peer"
    ]
    assert judge.compared(1 << 10, cells)["best"]["numpy"]["peer"] == "mpich"


@pytest.mark.parametrize(
    ("link", "stream", "count"), [(1.0, 0.98, 0), (1.0, 0.9, 1), (10.0, 0.9, 0), (None, 0.9, 0)]
)
def test_a_slow_link_is_to_be_filled(link, stream, count):
    row = judge.compared(1 << 20, {"rdmacoll": cell(1.0), "stream": cell(stream), "openmpi": cell(1.4)})
    assert len(judge.missed([row], link)) == count


def test_an_operation_of_few_bytes_is_to_be_a_25th_of_horovods():
    def rows(size):
        return [judge.compared(size, {"rdmacoll-op": cell(1.0), "horovod-mpi": cell(10.0)})]

    assert judge.missed(rows(8)) == [
        "8: rdmacoll's op is 10.00 times as fast as Horovod, Open MPI; the goal is 25 times"
    ]
    assert judge.missed(rows(64)) == []


def test_the_table_marks_disturbed_times_and_shows_plain_calls():
    row = judge.compared(8, {"rdmacoll": cell(2e-6), "openmpi": cell(4e-6, quiet=False)})
    plain = {"rdmacoll": cell(7e-6), "openmpi": cell(10.5e-6), "mpich": cell(14e-6)}
    row["time_us"].update({f"{name} plain": one.summary() for name, one in plain.items()})
    row["best_plain"] = judge.best_plain(plain)
    larger = judge.compared(1 << 20, {"rdmacoll": cell(8e-6), "openmpi": cell(4e-6)})
    assert judge.table([row, larger])[1:] == [
        "| bytes | rdmacoll | plain call | Open MPI | best peer / ours "
        "| best peer's plain call | / our plain call |",
        "|---:|---:|---:|---:|---:|---:|---:|",
        "| 8 | 2.00 | 7.00 | 4.00 (L) | 2.00 | 10.50 | 1.50 |",
        "| 1M | 8.00 | - | 4.00 | 0.50 | - | - |",
    ]


def test_only_doublings_are_judged_by_their_growth():
    assert judge.growth([(8, 1.0), (64, 100.0), (128, 201.0)]) == []


def test_a_wrong_sum_is_seen_wherever_it_is():
    array = np.zeros(2 * values.PERIOD + 5, np.float32)
    for rank in range(3):
        part = np.empty_like(array)
        values.fill(part, rank, turn=4)
        array += part
    assert values.wrong_sums(array, 3, turn=4) == 0
    array[[0, values.PERIOD, -1]] += 1
    assert values.wrong_sums(array, 3, turn=4) == 3
    assert values.wrong_sums(array, 3, turn=5) > values.PERIOD


def test_gradients_tell_ranks_and_tensors_apart():
    right = [np.full(3, float(n + 1) * (1 + 2), np.float32) for n in range(4)]
    assert values.wrong_gradients(right, 2) == 0
    assert values.wrong_gradients([right[1], right[0], *right[2:]], 2) == 2
    assert values.wrong_gradients(right, 3) == 4


def test_the_best_bucket_is_that_of_the_shortest_step_and_what_it_hides_is_shown():
    cells = {
        "openmpi gradients": cell(0.04),
        "rdmacoll-op backward": cell(0.1),
        "rdmacoll-op gradients 1048576": cell(0.02),
        "rdmacoll-op step 1048576": cell(0.115),
        "rdmacoll-op gradients 4194304": cell(0.02),
        "rdmacoll-op step 4194304": cell(0.105),
        "horovod-mpi backward": cell(0.1),
        "horovod-mpi gradients": cell(0.08),
        "horovod-mpi step": cell(0.21),
    }
    rows = step.rows_of(cells, ["rdmacoll-op", "openmpi", "horovod-mpi"], [1 << 20, 4 << 20])
    best = step.best_bucket(rows)
    assert best is not None
    assert (best["bucket_bytes"], best["hidden"]) == (4 << 20, pytest.approx(0.75))
    ratios = step.ratios_of(cells, best["bucket_bytes"])
    assert ratios == {"openmpi": pytest.approx(2.0), "horovod-mpi": pytest.approx(4.0)}
    assert step.step_ratios_of(rows, best) == {"horovod-mpi": pytest.approx(2.0)}
    assert step.missed(ratios) == []
    assert step.missed({"openmpi": 0.8, "horovod-mpi": 2.0}) == [
        "our operation is 0.80 times as fast as Open MPI; the goal is 1 times",
        "our operation is 2.00 times as fast as Horovod, Open MPI; the goal is 3 times",
    ]
    assert step.table(rows)[2:] == [
        "| rdmacoll's op | 1M | 20.0 | 100.0 | 115.0 | 15.0 | 25 % |",
        "| rdmacoll's op | 4M | 20.0 | 100.0 | 105.0 | 5.0 | 75 % |",
        "| Open MPI |  | 40.0 |  |  |  |  |",
        "| Horovod, Open MPI |  | 80.0 | 100.0 | 210.0 | 110.0 | 0 % |",
    ]


def test_buckets_whose_turns_overlap_are_not_told_apart():
    cells = {"rdmacoll-op backward": cell(0.1, 0.1)}
    for bucket, turns in ((1, (0.2, 0.3)), (2, (0.25, 0.29)), (3, (0.31, 0.32))):
        cells[f"rdmacoll-op gradients {bucket}"] = cell(0.1, 0.1)
        cells[f"rdmacoll-op step {bucket}"] = cell(*turns)
    rows = step.rows_of(cells, ["rdmacoll-op"], [1, 2, 3])
    best = step.best_bucket(rows)
    assert best is not None
    assert best["bucket_bytes"] == 1
    assert step.level_with(rows, best) == [2]


def test_starts_are_medians_of_the_slowest_rank():
    starts = [{"python": 0.1, "import": 0.1, "init": 0.05, "total": total} for total in (0.5, 0.25, 0.3)]
    total, *parts = overhead.start_lines(starts)
    assert (total.value, total.is_missed) == (300.0, False)
    assert [part.goal for part in parts] == [None] * 3
    assert overhead.start_lines([starts[0]])[0].is_missed


def test_overhead_says_that_it_waits_and_prints_a_part_once_it_is_measured(monkeypatch):
    written: list[str] = []
    rank = {"begin": 10.5, "joined": 11.0, "import": 0.125, "init": 0.25}
    team = SimpleNamespace(started_at=10.0, starts=[rank])
    before_the_turns: list[int] = []
    monkeypatch.setattr(overhead, "LoadWatch", lambda: SimpleNamespace(wait=lambda share, until: False))
    monkeypatch.setattr(overhead, "layout_of", lambda *_: nullcontext((None, None)))
    monkeypatch.setattr(overhead, "teams_of", lambda *_: nullcontext([team]))
    monkeypatch.setattr(overhead.Overhead, "_running", lambda *_: before_the_turns.append(len(written)) or [])
    overhead.Overhead(2, 3, 0.1, Rules(), Path(), 60.0).lines(Path(), written.append)
    waits = [line for line in written if "quiet moments" in line]
    assert waits == [written[0]]
    assert "(--seconds)" in waits[0]
    assert before_the_turns == [len(written)] == [5]
