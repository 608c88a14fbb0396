"""The worlds of an elastic job: who is in them, when they begin and end, and when there can be no other."""

from __future__ import annotations

from typing import Any

import pytest

from rdmacoll._launch.hosts import Host
from rdmacoll._launch.membership import LOST_S, Limits, Membership, World

START_S = 30.0
TIMEOUT_S = 600.0


class Job:
    """A membership with a clock, whose workers start at once."""

    def __init__(self, hosts: str, *, may_grow: bool = False, **limits: Any) -> None:
        given = {"least": 1, "most": 100, "first": 1, "timeout_s": TIMEOUT_S, **limits}
        self.members = Membership(Limits(**given), may_grow=may_grow, now=0.0)
        self.now = 0.0
        self.set_hosts(hosts)

    def set_hosts(self, text: str) -> None:
        pairs = [one.split(":") for one in text.split()]
        self.members.set_hosts([Host(name, int(slots)) for name, slots in pairs])

    def start(self) -> list[int]:
        return [self.members.start(host).number for host in self.members.to_start(self.now)]

    def ask(self, *numbers: int, lost: int = -1, has_state: bool = False) -> None:
        for number in numbers:
            self.members.ask(number, 20000 + number, self.now, lost=lost, has_state=has_state)

    def end(self, number: int, *, is_good: bool = False) -> None:
        self.members.end(number, is_good=is_good, now=self.now)

    def world(self) -> World | None:
        return self.members.next_world(self.now, START_S)

    def ranks(self) -> list[int]:
        """The workers of the next world, by rank."""
        world = self.world()
        assert world is not None
        return [worker.number for worker in world.workers]

    def begin(self) -> list[int]:
        """Starts workers in all slots, and their first world."""
        self.ask(*self.start())
        return self.ranks()


def test_the_first_world_waits_for_all_workers_that_start() -> None:
    job = Job("a:2 b:1")
    assert job.start() == [0, 1, 2]
    assert job.start() == []
    job.ask(0, 2)
    assert job.world() is None
    job.ask(1)
    world = job.world()
    assert world is not None
    assert [(place.rank, place.host, place.local_rank) for place in world.places] == [
        (0, "a", 0),
        (1, "a", 1),
        (2, "b", 0),
    ]
    assert [worker.port for worker in world.workers] == [20000, 20001, 20002]
    assert job.world() is None


def test_the_first_world_begins_without_a_worker_that_is_late() -> None:
    job = Job("a:3", least=2, first=3)
    job.start()
    job.ask(0, 1)
    job.now = START_S + 1
    assert job.ranks() == [0, 1]
    job.ask(2)
    assert job.members.world_to_end(job.now) == 1


def test_the_first_world_waits_for_so_many_slots() -> None:
    job = Job("a:2", least=1, first=3, may_grow=True)
    job.ask(*job.start())
    assert job.world() is None
    job.set_hosts("a:3")
    job.ask(*job.start())
    assert job.ranks() == [0, 1, 2]


def test_others_go_on_without_a_failed_worker_when_all_of_them_have_asked() -> None:
    job = Job("a:4", least=2)
    job.begin()
    job.end(0)
    job.ask(2, 3)
    assert job.world() is None, "worker 1 is in the old world yet"
    job.ask(1)
    assert job.ranks() == [1, 2, 3]
    assert job.start() == [], "the slot of the failed worker is lost"
    assert job.members.failure(job.now) == ""


def test_rank_0_is_a_worker_of_the_world_before_and_hosts_stay_together() -> None:
    job = Job("a:1 b:2", least=2)
    job.begin()
    job.end(0)
    job.set_hosts("a:3 b:2")
    job.ask(*job.start())
    job.ask(1, 2)
    world = job.world()
    assert world is not None
    assert [worker.number for worker in world.workers] == [1, 2, 3, 4]
    assert [place.host for place in world.places] == ["b", "b", "a", "a"]


def test_a_world_ends_for_a_new_worker_that_is_ready() -> None:
    job = Job("a:2", may_grow=True)
    job.begin()
    job.set_hosts("a:3")
    assert job.members.world_to_end(job.now) == 0
    assert job.start() == [2]
    assert job.members.world_to_end(job.now) == 0, "it is still starting, and the others go on"
    job.ask(2)
    assert job.members.world_to_end(job.now) == 1
    assert job.members.world_to_end(job.now) == 0, "once is enough"
    job.ask(0)
    assert job.world() is None
    job.ask(1)
    assert job.ranks() == [0, 1, 2]


def test_workers_of_a_host_that_leaves_are_sent_away() -> None:
    job = Job("a:1 b:1", may_grow=True)
    job.begin()
    job.set_hosts("b:1")
    assert job.members.world_to_end(job.now) == 1
    job.ask(0, 1)
    assert job.ranks() == [1]
    assert [worker.number for worker in job.members.to_dismiss(job.now)] == [0]
    assert job.members.to_dismiss(job.now) == []
    job.end(0, is_good=True)
    assert not job.members.is_finishing


def test_workers_with_the_state_wait_until_others_have_it() -> None:
    """All hosts are replaced, or the script prints none for a while. New workers would begin anew."""
    job = Job("a:2", may_grow=True)
    job.begin()
    job.set_hosts("")
    assert job.members.world_to_end(job.now) == 1
    job.ask(0, 1, has_state=True)
    assert job.members.to_dismiss(job.now) == []
    job.set_hosts("b:2")
    job.ask(*job.start())
    assert job.world() is None
    assert job.members.to_dismiss(job.now) == []
    assert job.members.failure(job.now) == ""
    job.now += TIMEOUT_S + 1
    assert "the hosts with the state of world 1 have not come back" in job.members.failure(job.now)
    job.set_hosts("b:2 a:1")
    assert job.ranks() == [0, 2, 3]
    assert [worker.number for worker in job.members.to_dismiss(job.now)] == [1]


def test_ranks_of_the_first_world_follow_the_hosts() -> None:
    job = Job("a:1 b:2")
    numbers = [job.members.start(host).number for host in ("b", "a", "b")]
    job.ask(*numbers)
    assert job.ranks() == [1, 0, 2]


def test_a_ready_worker_does_not_wait_for_ever_for_others_that_start() -> None:
    job = Job("a:1", may_grow=True)
    job.begin()
    job.set_hosts("a:3")
    ready, _ = job.start()
    job.ask(ready)
    assert job.members.world_to_end(job.now) == 0
    job.now += 11
    assert job.members.world_to_end(job.now) == 1


def test_no_world_has_more_ranks_than_the_most() -> None:
    job = Job("a:5", most=2)
    assert job.start() == [0, 1]
    job.ask(0, 1)
    assert job.ranks() == [0, 1]


def test_a_slot_is_used_again_after_its_cooldown_which_doubles() -> None:
    job = Job("a:2", least=1, cooldown_s=(10, 25))
    job.begin()
    for cooldown in (10, 20, 25, 25):
        job.end(max(job.members.workers))
        job.now += cooldown - 1
        assert job.start() == []
        job.now += 2
        assert len(job.start()) == 1


def test_the_slots_of_a_lost_host_are_lost() -> None:
    job = Job("a:2 b:2", least=2)
    job.begin()
    job.members.lose_host("b", job.now)
    job.ask(0, 1)
    assert job.start() == []
    assert job.ranks() == [0, 1]


@pytest.mark.parametrize("may_grow", [False, True])
def test_too_few_workers_are_a_failure_at_once_or_after_the_timeout(may_grow: bool) -> None:
    job = Job("a:2", least=2, first=2, may_grow=may_grow)
    job.begin()
    job.end(1)
    assert job.members.failure(job.now) == "", "worker 0 is in the old world yet"
    job.ask(0)
    if may_grow:
        assert job.members.failure(job.now) == ""
        job.now += TIMEOUT_S + 1
    after = " for 600 s" if may_grow else ""
    assert job.members.failure(job.now) == f"--min-np is 2, and there is 1 worker{after}"


def test_no_slot_at_all_is_a_failure_after_the_timeout() -> None:
    job = Job("", may_grow=True)
    assert job.members.failure(job.now) == ""
    job.now += TIMEOUT_S + 1
    assert job.members.failure(job.now) == "--min-np is 1, and there are 0 workers for 600 s"


def test_a_job_whose_workers_have_all_failed_has_failed_whatever_may_come() -> None:
    job = Job("a:2", may_grow=True, cooldown_s=(1, 1))
    job.begin()
    job.end(0)
    job.end(1)
    assert job.members.failure(job.now) == "no worker is left"


def test_a_job_whose_workers_fail_before_a_world_has_failed() -> None:
    job = Job("a:2", may_grow=True, cooldown_s=(1, 1))
    job.start()
    job.end(0)
    assert job.members.failure(job.now) == ""
    job.end(1)
    assert job.members.failure(job.now) == "no worker is left"


def test_new_workers_alone_never_begin_anew() -> None:
    """The state is gone with the old ones, and training would begin at its start without a word."""
    job = Job("a:2", may_grow=True)
    job.begin()
    job.set_hosts("a:4")
    job.ask(*job.start())
    job.end(0)
    job.end(1)
    assert job.members.failure(job.now) == "all workers of world 1 are lost, and its state with them"


def test_a_worker_with_the_state_is_rank_0_and_the_last_one_ends_the_job() -> None:
    """Worker 2 was in a world whose ranks never met."""
    job = Job("a:3", may_grow=True)
    job.set_hosts("a:2")
    job.begin()
    job.set_hosts("a:3")
    job.ask(*job.start())
    job.ask(0, has_state=True)
    job.ask(1, has_state=True)
    assert job.ranks() == [0, 1, 2]
    job.end(0)
    job.ask(2)
    job.ask(1, has_state=True)
    assert job.ranks() == [1, 2]
    job.end(1)
    job.ask(2)
    assert job.members.failure(job.now) == "all workers of world 3 are lost, and its state with them"


def test_the_limit_of_resets() -> None:
    job = Job("a:4", resets=1)
    job.begin()
    job.end(3)
    job.ask(0, 1, 2)
    assert job.members.failure(job.now) == ""
    assert job.ranks() == [0, 1, 2]
    job.end(2)
    job.ask(0, 1)
    assert job.members.failure(job.now) == "--reset-limit allows 1 change of the world"


def test_no_world_begins_after_a_worker_has_ended_well() -> None:
    job = Job("a:3", may_grow=True)
    job.begin()
    job.set_hosts("a:4")
    job.ask(*job.start())
    job.end(0, is_good=True)
    assert job.start() == []
    assert [worker.number for worker in job.members.to_dismiss(job.now)] == [3]
    assert job.members.failure(job.now) == ""
    job.end(1)
    assert job.members.failure(job.now) == ""
    job.ask(2)
    assert job.world() is None
    assert "worker 0 has ended with exit code 0" in job.members.failure(job.now)


def test_a_worker_that_does_not_come_is_late_sooner_if_others_have_lost_it() -> None:
    job = Job("a:3", least=2)
    job.begin()
    job.ask(0, lost=2)
    job.now += LOST_S - 1
    job.ask(1, lost=2)
    assert job.members.late(job.now) == []
    job.now += 2
    assert [worker.number for worker in job.members.late(job.now)] == [2]
    job.end(2)
    assert job.ranks() == [0, 1]


def test_a_worker_that_computes_is_late_after_the_timeout() -> None:
    job = Job("a:3", least=2)
    job.begin()
    job.end(2)
    job.ask(0, lost=2)
    job.now += TIMEOUT_S - 1
    assert job.members.late(job.now) == []
    job.now += 2
    assert [worker.number for worker in job.members.late(job.now)] == [1]


def test_a_lost_worker_that_asks_is_in_the_next_world() -> None:
    """Ranks may lose each other by their network. Each of them is alive."""
    job = Job("a:2")
    job.begin()
    job.ask(0, lost=1)
    job.ask(1, lost=0)
    assert job.ranks() == [0, 1]
    job.now += TIMEOUT_S
    assert job.members.late(job.now) == []
