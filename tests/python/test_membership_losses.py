"""The workers and hosts of an elastic job that fail, come late, or are not needed any more."""

from __future__ import annotations

import pytest
from test_membership import START_S, TIMEOUT_S, Job

from rdmacoll._launch.membership import LOST_S


def test_a_host_that_is_lost_with_its_workers_has_failed_once() -> None:
    job = Job("a:1 b:4", cooldown_s=(10, 1000))
    job.begin()
    job.members.lose_host("b", job.now)
    for number in (1, 2, 3, 4):
        job.end(number)  # as the launcher tells of each worker, too
    job.now += 9
    assert job.start() == []
    job.now += 2
    assert job.start() == [5, 6, 7, 8]
    job.members.lose_host("b", job.now)
    job.now += 19
    assert job.start() == []
    job.now += 2
    assert job.start() == [9, 10, 11, 12]


def test_a_lost_host_is_lost_with_more_slots_than_it_had() -> None:
    job = Job("a:1 b:2", may_grow=True)
    job.begin()
    job.members.lose_host("b", job.now)
    job.set_hosts("a:1 b:4")
    assert job.start() == []


def test_a_host_that_left_may_be_switched_off_and_come_back() -> None:
    job = Job("a:1 b:1", may_grow=True)
    job.begin()
    job.set_hosts("a:1")
    job.ask(0, 1)
    assert job.ranks() == [0]
    assert [worker.number for worker in job.members.to_dismiss(job.now)] == [1]
    job.members.lose_host("b", job.now)
    job.set_hosts("a:1 b:1")
    assert job.start() == [2]


def test_slots_on_which_no_worker_comes_are_a_failure_after_the_timeout() -> None:
    """A host may fail to answer again and again, after each cooldown."""
    job = Job("a:1 b:1", least=2, first=2, cooldown_s=(1, 1))
    job.ask(job.members.start("a").number)
    while job.now < TIMEOUT_S:
        assert job.members.to_start(job.now) == ["b"]
        assert job.members.failure(job.now) == ""
        job.members.lose_host("b", job.now)
        job.now += 2
    job.now += 2
    assert job.members.failure(job.now) == "--min-np is 2, and there is 1 worker for 600 s"


def test_a_worker_that_never_calls_init_is_late_after_the_timeout() -> None:
    job = Job("a:2", least=2, first=2)
    job.start()
    job.ask(0)
    job.now += TIMEOUT_S - 1
    assert job.members.late(job.now) == []
    job.now += 2
    assert [worker.number for worker in job.members.late(job.now)] == [1]
    job.end(1)
    assert job.members.failure(job.now) == "--min-np is 2, and there is 1 worker"


def test_a_new_worker_that_never_calls_init_is_late_when_the_others_need_it() -> None:
    job = Job("a:2", least=2, cooldown_s=(1, 1))
    job.begin()
    job.end(1)
    job.now += 2
    assert job.start() == [2]
    job.now += 10 * TIMEOUT_S
    assert job.members.late(job.now) == [], "worker 0 goes on without it"
    job.ask(0)
    job.now += TIMEOUT_S + 1
    assert [worker.number for worker in job.members.late(job.now)] == [2]


def test_a_worker_that_starts_while_the_job_ends_is_not_needed() -> None:
    job = Job("a:1", may_grow=True)
    job.begin()
    job.set_hosts("a:2")
    job.start()
    assert job.members.unneeded() == []
    job.end(0, is_good=True)
    assert [worker.number for worker in job.members.unneeded()] == [1]


def test_programs_without_worlds_may_end_one_after_the_other() -> None:
    job = Job("a:2")
    job.start()
    job.end(0, is_good=True)
    assert job.members.unneeded() == []


def test_a_worker_that_was_sent_away_and_does_not_go_is_late() -> None:
    job = Job("a:1 b:1", may_grow=True)
    job.begin()
    job.set_hosts("b:1")
    job.ask(0, 1)
    job.ranks()
    assert [worker.number for worker in job.members.to_dismiss(job.now)] == [0]
    job.now += LOST_S - 1
    assert job.members.late(job.now) == []
    job.now += 2
    assert [worker.number for worker in job.members.late(job.now)] == [0]
    job.end(0)
    assert job.members.late(job.now) == []


@pytest.mark.parametrize(
    ("unmet", "left", "cut"),
    [
        ({0: [2], 1: [2], 2: [0]}, [0, 1], [2]),
        ({0: [1, 2], 1: [0], 2: [0]}, [1, 2], [0]),
        ({0: [1], 1: [0]}, [0, 2], [1]),
        ({0: [1, 2], 1: [0, 2], 2: [0, 1]}, [0], [2, 1]),
        ({0: [], 1: [], 2: []}, [0, 1, 2], []),
    ],
)
def test_workers_that_cannot_meet_are_given_up(
    unmet: dict[int, list[int]], left: list[int], cut: list[int]
) -> None:
    """Their launcher reaches all of them, and they would try the same world for ever."""
    job = Job("a:1 b:1 c:1")
    job.begin()
    for number in range(3):
        assert job.world() is None
        job.members.ask(number, 20000, job.now, unmet=unmet.get(number, ()), has_state=True)
    assert job.ranks() == left
    assert [worker.number for worker in job.members.unreachable()] == cut
    assert job.members.unreachable() == []
    assert job.start() == [], "their slots are lost"
    for number in cut:
        job.end(number)
    job.ask(*left, has_state=True)
    assert job.ranks() == left


def test_the_last_worker_with_the_state_is_not_given_up() -> None:
    job = Job("a:1", may_grow=True)
    job.begin()
    job.set_hosts("a:1 b:1 c:1")
    job.ask(*job.start())
    job.ask(0, has_state=True)
    assert job.ranks() == [0, 1, 2]
    job.members.ask(0, 20000, job.now, unmet=[1, 2], has_state=True)
    for number in (1, 2):
        job.members.ask(number, 20000, job.now, unmet=[0])
    assert job.ranks() == [0]


def test_a_worker_that_could_not_be_met_and_does_not_ask_is_late() -> None:
    job = Job("a:2", least=1)
    job.begin()
    job.members.ask(0, 20000, job.now, unmet=[1])
    job.now += LOST_S + 1
    assert [worker.number for worker in job.members.late(job.now)] == [1]


def test_workers_beyond_the_most_end_no_world() -> None:
    """A host left, others were started in its place, and it came back."""
    job = Job("a:2", most=2, may_grow=True)
    job.begin()
    job.set_hosts("b:2")
    assert job.start() == [2, 3]
    job.set_hosts("a:2 b:2")
    job.ask(2, 3)
    assert job.members.world_to_end(job.now) == 0
    assert [worker.number for worker in job.members.to_dismiss(job.now)] == [2, 3]
    assert job.start() == []


def test_workers_that_fail_again_and_again_before_a_world_are_a_failure_after_the_timeout() -> None:
    """Each of them starts, so that there are enough workers for a while."""
    job = Job("a:2", least=2, cooldown_s=(1, 1))
    job.begin()
    job.end(1)
    job.ask(0, has_state=True)
    while job.now < TIMEOUT_S:
        job.now += 2
        (number,) = job.start()
        assert job.members.failure(job.now) == ""
        job.end(number)
        assert job.members.failure(job.now) == ""
    job.now += LOST_S + 2
    job.start()
    assert job.members.failure(job.now) == "--min-np is 2, and 1 worker has waited for others for 630 s"
    job.ask(max(job.members.workers))
    assert job.members.failure(job.now) == ""
    assert len(job.ranks()) == 2


def test_workers_that_all_take_long_to_start_are_no_failure() -> None:
    job = Job("a:2", least=2)
    job.start()
    job.now += 10 * TIMEOUT_S
    assert job.members.failure(job.now) == ""
    job.ask(0, 1)
    assert job.members.failure(job.now) == ""


def test_a_world_that_may_not_change_takes_in_nobody() -> None:
    """A host that comes would end the job otherwise."""
    job = Job("a:2", may_grow=True, resets=0)
    job.ask(*job.start()[:1])
    job.now = START_S + 1
    assert job.ranks() == [0]
    job.ask(1)
    assert job.members.world_to_end(job.now) == 0
    job.set_hosts("a:2 b:1")
    assert job.start() == []
    assert job.members.failure(job.now) == ""
    job.ask(0)
    assert job.members.failure(job.now) == "--reset-limit allows 0 changes of the world"
