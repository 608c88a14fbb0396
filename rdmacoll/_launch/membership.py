"""The workers of an elastic job, and the worlds that they form one after the other. Pure.

A worker is a process, and has a number. A world gives ranks to some workers. Workers ask for a place in the
next world when they start, and when their world has ended for them. The next world begins when all workers of
the last one have asked or ended.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rdmacoll._base.text import counted
from rdmacoll._launch.hosts import Host, Slot, placed

# A worker that others have lost is ended if it does not ask for a place within so long.
LOST_S = 30.0
# A new worker waits so long for others that start at the same time, so that one change of the world does.
_TOGETHER_S = 10.0
_NEVER = float("inf")


@dataclass(frozen=True)
class Limits:
    """Sizes and times of an elastic job.

    - first: the size for which the first world waits
    - resets: the number of worlds after the first one. None: any
    - cooldown_s: the time until the slot of a failed worker is used again, which doubles with each failure on
      its host, and the longest such time. None: the slot is lost
    """

    least: int
    most: int
    first: int
    timeout_s: float
    resets: int | None = None
    cooldown_s: tuple[float, float] | None = None


@dataclass
class Worker:
    """A process. world: the last world that it was in, 0 before its first one. asked_at: None in a world."""

    number: int
    host: str
    world: int = 0
    rank: int = -1
    asked_at: float | None = None
    port: int = 0  # free on its host, when it asked
    lost_at: float | None = None  # when another worker said that it has lost this one
    unmet: Sequence[int] = ()  # ranks of its world that it could not meet
    has_state: bool = False  # beyond the first values of the job
    is_alive: bool = True
    told_to_go_at: float = _NEVER

    @property
    def is_told_to_go(self) -> bool:
        """Whether it is sent away."""
        return self.told_to_go_at < _NEVER


@dataclass(frozen=True)
class World:
    """The workers of a world by rank, and their places."""

    number: int
    workers: Sequence[Worker]
    places: Sequence[Slot]


class Membership:
    """The state of an elastic job. Times are those of one clock, in seconds."""

    def __init__(self, limits: Limits, *, may_grow: bool, now: float) -> None:
        """may_grow: whether hosts may come later."""
        self.limits = limits
        self.workers: dict[int, Worker] = {}
        self.world = 0
        self.finished = -1  # the first worker that has ended well
        self._hosts: dict[str, int] = {}
        self._failures: Counter[str] = Counter()  # by host
        self._failed_slots: dict[str, list[float]] = {}  # by host: when they may be used again
        self._lost_hosts: dict[str, float] = {}  # when they may be used again
        self._may_grow = may_grow
        self._short_since = now  # since when there is no world, and too few workers for one
        self._unreachable: list[Worker] = []
        self._told_world = 0  # the last world that was asked to end
        self._had_state = False  # a worker has told that it has a state

    @property
    def is_finishing(self) -> bool:
        """Whether a worker has ended well."""
        return self.finished >= 0

    def set_hosts(self, hosts: Sequence[Host]) -> None:
        """Makes these hosts the ones that the job may use."""
        self._hosts = {host.name: host.slots for host in hosts}

    def has_host(self, host: str) -> bool:
        """Whether the job may use a host."""
        return host in self._hosts

    def start(self, host: str) -> Worker:
        """Adds a worker that is being started on a host."""
        worker = Worker(len(self.workers), host)
        self.workers[worker.number] = worker
        return worker

    def to_start(self, now: float) -> list[str]:
        """The hosts on which workers are to be started now, one for each."""
        if self.is_finishing or self._is_last():
            return []
        left = self.limits.most - len(self._usable())
        found = [host for host in self._hosts for _ in range(self._free_slots(host, now))]
        return found[: max(0, left)]

    def ask(
        self,
        number: int,
        port: int,
        now: float,
        *,
        lost: int = -1,
        unmet: Sequence[int] = (),
        has_state: bool = False,
    ) -> None:
        """A worker asks for a place in the next world. lost: the rank of its world that it has lost. unmet:
        those that it could not meet at the start of that world."""
        worker = self.workers[number]
        worker.asked_at, worker.port, worker.lost_at, worker.has_state = now, port, None, has_state
        worker.unmet = unmet
        self._had_state = self._had_state or has_state
        for other in self._running():
            if other.world == worker.world and other.rank in (lost, *unmet) and other.lost_at is None:
                other.lost_at = now

    def end(self, number: int, *, is_good: bool, now: float) -> None:
        """A worker has ended. Its slot is lost if it has failed."""
        worker = self.workers[number]
        if not worker.is_alive:
            return
        worker.is_alive, worker.asked_at = False, None
        if is_good:
            if not worker.is_told_to_go and self.finished < 0:
                self.finished = number
        else:
            self._failed_slots.setdefault(worker.host, []).append(self._used_again(worker.host, now))

    def lose_host(self, host: str, now: float) -> None:
        """A host cannot be reached. Its workers are lost. This is one failure of the host, or none if the job
        has left it: then the host may have been switched off."""
        for worker in self.workers.values():
            if worker.host == host:
                worker.is_alive, worker.asked_at = False, None
        if self._hosts.get(host):
            self._lost_hosts[host] = self._used_again(host, now)

    def next_world(self, now: float, start_timeout_s: float) -> World | None:
        """The next world, if it can begin now. Its workers are in it then."""
        if self.is_finishing or self._running():
            return None
        self._cut_off(now)
        waiting = [one for one in self._usable() if one.asked_at is not None]
        if self.world and not any(self._holds(one) for one in waiting):
            return None
        if self.world == 0:
            starting = any(one.asked_at is None for one in self._usable())
            is_late = bool(waiting) and now - min(_asked_at(one) for one in waiting) > start_timeout_s
            if not is_late and (starting or len(waiting) < self.limits.first):
                return None
        if len(waiting) < self.limits.least:
            return None
        self.world += 1
        # Rank 0, whose state all get, is of the last world. A host's ranks follow one another.
        order = list(self._hosts)
        by_age = sorted(
            waiting,
            key=lambda one: (not one.has_state, -one.world, one.rank, order.index(one.host), one.number),
        )
        hosts = list(dict.fromkeys(one.host for one in by_age))
        ranks = sorted(by_age, key=lambda one: hosts.index(one.host))
        places = placed([(host, sum(one.host == host for one in ranks)) for host in hosts])
        for rank, worker in enumerate(ranks):
            worker.world, worker.rank, worker.asked_at, worker.lost_at = self.world, rank, None, None
            worker.unmet = ()
        self._short_since = now
        return World(self.world, ranks, places)

    def _cut_off(self, now: float) -> None:
        """Gives up workers until all others could meet in the last world: first the one that most others
        could not meet, of two the one with the higher rank. One worker with the state stays."""
        waiting = {one.rank: one for one in self._usable() if one.asked_at is not None and one.world}
        waiting = {rank: one for rank, one in waiting.items() if one.world == self.world}
        apart = {frozenset((rank, other)) for rank, one in waiting.items() for other in one.unmet}
        apart = {pair for pair in apart if pair <= waiting.keys()}
        while apart:
            holders = [rank for rank, one in waiting.items() if self._holds(one)]
            counts = Counter(rank for pair in apart for rank in pair if holders != [rank])
            rank = max(counts, key=lambda one: (counts[one], one))
            apart = {pair for pair in apart if rank not in pair}
            worker = waiting.pop(rank)
            self.end(worker.number, is_good=False, now=now)
            self._unreachable.append(worker)

    def unreachable(self) -> list[Worker]:
        """Workers that others could not meet, and that are to be ended. Each is named once."""
        found, self._unreachable = self._unreachable, []
        return found

    def world_to_end(self, now: float) -> int:
        """The number of the running world, if its workers are to form another one: since others wait, since
        some are on hosts that left, or since some have failed. Each world is named once. 0: none."""
        running = self._running()
        if not running or self.is_finishing or self._told_world == self.world:
            return 0
        usable = self._usable()
        is_starting = any(one.world == 0 and one.asked_at is None for one in usable)
        waited = [now - _asked_at(one) for one in usable if one.asked_at is not None]
        is_joined = bool(waited) and (not is_starting or max(waited) > _TOGETHER_S) and not self._is_last()
        is_broken = any(one.world == self.world and not one.is_alive for one in self.workers.values())
        if not is_joined and not is_broken and all(one in usable for one in running):
            return 0
        self._told_world = self.world
        return self.world

    def to_dismiss(self, now: float) -> list[Worker]:
        """Workers that wait, and that the job does not need: their hosts left, or others have ended well.

        Each is named once. A worker with the job's state stays until a world runs whose workers have it.
        """
        if not self.is_finishing and not any(self._holds(one) for one in self._running()):
            return []
        usable = self._usable()
        waiting = [one for one in self._alive() if one.asked_at is not None]
        found = [
            one for one in waiting if one not in usable or (self.is_finishing and one.world < self.world)
        ]
        for worker in found:
            worker.asked_at, worker.told_to_go_at = None, now
        return found

    def unneeded(self) -> list[Worker]:
        """Workers that start while the job ends."""
        is_over = self.is_finishing and self.world > 0
        return [one for one in self._alive() if is_over and one.world == 0 and one.asked_at is None]

    def late(self, now: float) -> list[Worker]:
        """Workers for which others have waited too long, and workers that were sent away and do not go.

        A worker that stopped answering may never ask. One that computes asks when its next collective fails.
        One that starts may never call `init`.
        """
        going = [one for one in self.workers.values() if one.is_alive and now - one.told_to_go_at > LOST_S]
        running = self._running()
        asked = [one for one in self._alive() if one.asked_at is not None and (one.world or not running)]
        if asked and now - min(map(_asked_at, asked)) > self.limits.timeout_s:
            return going + (running or [one for one in self._alive() if one.asked_at is None])
        return going + [one for one in running if one.lost_at is not None and now - one.lost_at > LOST_S]

    def failure(self, now: float) -> str:
        """Why no further world can begin, although one is needed. Empty: one may begin."""
        if self._running():
            self._short_since = now
            return ""
        alive, usable = self._alive(), len(self._usable())
        if self.is_finishing:
            waits = any(one.asked_at is not None for one in alive if one.world == self.world)
            text = f"worker {self.finished} has ended with exit code 0, so that no further world begins"
            return text if waits else ""
        if self._is_last():
            return f"--reset-limit allows {counted(self.limits.resets or 0, 'change')} of the world"
        has_failed = any(not one.is_alive and not one.is_told_to_go for one in self.workers.values())
        if has_failed and not alive:
            return "no worker is left"
        if self.world and not any(self._holds(one) for one in alive):
            return f"all workers of world {self.world} are lost, and its state with them"
        if self.world and not any(self._holds(one) for one in self._usable()):
            if now - self._short_since <= self.limits.timeout_s:
                return ""
            wait = f"{self.limits.timeout_s:g} s"
            return f"the hosts with the state of world {self.world} have not come back within {wait}"
        asked = [_asked_at(one) for one in self._usable() if one.asked_at is not None]
        limit_s = self.limits.timeout_s + LOST_S  # `late` ends others before
        if asked and len(asked) < self.limits.least and now - min(asked) > limit_s:
            have = f"{counted(len(asked), 'worker')} {'has' if len(asked) == 1 else 'have'}"
            return f"--min-np is {self.limits.least}, and {have} waited for others for {limit_s:g} s"
        if usable >= self.limits.least:
            self._short_since = now
            return ""
        is_early = now - self._short_since <= self.limits.timeout_s
        free = sum(self._free_slots(host, now) for host in self._hosts)
        times = [*self._lost_hosts.values(), *itertools.chain(*self._failed_slots.values())]
        may_grow = self._may_grow or any(again < _NEVER for again in times)
        if is_early and (may_grow or usable + free >= self.limits.least):
            return ""
        after = f" for {self.limits.timeout_s:g} s" if may_grow else ""
        return f"--min-np is {self.limits.least}, and there {_are(usable)}{after}"

    def _is_last(self) -> bool:
        """Whether no other world may follow this one."""
        return self.limits.resets is not None and self.world > self.limits.resets

    def _alive(self) -> list[Worker]:
        return [one for one in self.workers.values() if one.is_alive and not one.is_told_to_go]

    def _usable(self) -> list[Worker]:
        """The workers that are alive on hosts of the job, as many as these have slots, and no more than the
        most. Those of the last world come first."""
        used: dict[str, int] = {}
        found = []
        for worker in sorted(self._alive(), key=lambda one: (-one.world, one.number)):
            used[worker.host] = used.get(worker.host, 0) + 1
            if used[worker.host] <= self._hosts.get(worker.host, 0):
                found.append(worker)
        return found[: self.limits.most]

    def _holds(self, worker: Worker) -> bool:
        """Whether a worker has the job's state. If none tells of one, those do that were in a world."""
        return worker.has_state or (not self._had_state and worker.world > 0)

    def _running(self) -> list[Worker]:
        """The workers of the last world that have neither ended nor asked for another one."""
        return [one for one in self._alive() if one.world == self.world > 0 and one.asked_at is None]

    def _used_again(self, host: str, now: float) -> float:
        """The time from which a slot is used again whose worker fails now, or a host that is lost now."""
        if self.limits.cooldown_s is None:
            return _NEVER
        shortest, longest = self.limits.cooldown_s
        again = now + min(longest, shortest * 2.0 ** min(64, self._failures[host]))
        self._failures[host] += 1
        return again

    def _free_slots(self, host: str, now: float) -> int:
        if self._lost_hosts.get(host, 0.0) > now:
            return 0
        failed = sum(again > now for again in self._failed_slots.get(host, ()))
        used = sum(one.host == host for one in self._alive())
        return max(0, self._hosts[host] - failed - used)


def _asked_at(worker: Worker) -> float:
    return _NEVER if worker.asked_at is None else worker.asked_at


def _are(workers: int) -> str:
    return f"{'is' if workers == 1 else 'are'} {counted(workers, 'worker')}"
