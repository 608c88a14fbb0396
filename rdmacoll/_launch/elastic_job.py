"""An elastic job: its workers form a new world when some are lost, and when others come."""

from __future__ import annotations

import dataclasses
import json
import signal
import time
from collections import Counter

from rdmacoll._base.text import counted
from rdmacoll._launch import agent
from rdmacoll._launch.discovery import HostDiscovery
from rdmacoll._launch.failure import Ended, first_failure, with_last_lines
from rdmacoll._launch.host_link import Frame, HostLink
from rdmacoll._launch.job import Job, JobOptions, rendezvous_of, say, variables_of
from rdmacoll._launch.membership import LOST_S, Membership, World
from rdmacoll.errors import ConfigError

_LOOK_EVERY_S = 0.2
# An agent that has not ended a worker within so long does not answer.
_END_S = agent.GRACE_S + 10.0
_DROP_S = 2.0


class ElasticJob(Job):
    """Runs an elastic job once. Call from one thread; an exception of a signal handler ends all workers.

    Frames and output have the numbers of workers in place of ranks.
    """

    def __init__(self, options: JobOptions) -> None:
        super().__init__(options)
        assert options.elastic is not None
        self._elastic = options.elastic
        self._discovery: HostDiscovery | None = None
        if self._elastic.discovery:
            self._discovery = HostDiscovery(self._elastic.discovery, self._elastic.slots_per_host)
        self._members = Membership(
            self._elastic.limits, may_grow=self._discovery is not None, now=time.monotonic()
        )
        self._linked_at: dict[str, float] = {}  # by host: when its agent was started
        self._told_to_end: dict[int, float] = {}  # since when, by worker
        self._losses: list[str] = []  # sentences about hosts and workers that the job has given up
        self._failure = ""
        self._has_hosts = False  # the script has named hosts, or none, at least once

    def _lead(self) -> None:
        self._is_started = True
        self._members.set_hosts(self._elastic.hosts)
        try:
            while not self._is_over():
                self._discover()
                self._start_workers()
                self._change_world()
                self._end_late_workers()
                self._leave_hosts()
                self._pump(_LOOK_EVERY_S)
        finally:
            if self._discovery is not None:
                self._discovery.close()
        if self._failure:
            self._end_all()
        self._first = self._first_failed()

    def _end_all(self) -> None:
        left = self._host_of.keys() - self._ended.keys()
        self._told_to_end.update(dict.fromkeys(left, time.monotonic()))
        super()._end_all()

    def _is_over(self) -> bool:
        now = time.monotonic()
        self._failure = self._members.failure(now)
        is_done = self._members.is_finishing and len(self._ended) == len(self._host_of)
        return bool(self._failure) or is_done

    def _discover(self) -> None:
        if self._discovery is None:
            return
        hosts, fault = self._discovery.poll(time.monotonic())
        if fault and not self._has_hosts:
            raise ConfigError(fault)
        if fault:
            say(fault)
        if hosts is not None:
            self._has_hosts = True
            self._members.set_hosts(hosts)
            say(f"hosts: {', '.join(f'{host.name}:{host.slots}' for host in hosts) or 'none'}.")

    def _start_workers(self) -> None:
        now = time.monotonic()
        for host, count in Counter(self._members.to_start(now)).items():
            link = self._links.get(host)
            if link is None:
                self._linked_at[host] = now
                try:
                    self._link(host)
                except ConfigError as error:
                    self._give_up(host, str(error).partition(": ")[2].rstrip("."))
            elif link.hello:
                for _ in range(count):
                    self._start_worker(host, link)
            elif now - self._linked_at[host] > self._options.start_timeout_s:
                self._lose(link, f"no answer within {self._options.start_timeout_s:g} s")

    def _start_worker(self, host: str, link: HostLink) -> None:
        number = self._members.start(host).number
        self._host_of[number] = host
        self._output.add(number)
        order = self._order(link, {number: {agent.WORKER_VARIABLE: str(number)}})
        link.send(agent.START, {**order, "is_elastic": True})

    def _change_world(self) -> None:
        now = time.monotonic()
        world = self._members.next_world(now, self._options.start_timeout_s)
        if world is not None:
            self._begin(world)
        for worker in self._members.unreachable():
            self._note_loss(f"worker {worker.number} ({worker.host}) is ended: others cannot reach it.")
            self._end_worker(worker.number)
        why = "the job ends" if self._members.is_finishing else "its host has no slot for it"
        for worker in self._members.to_dismiss(now):
            say(f"worker {worker.number} ({worker.host}) is sent away: {why}.")
            self._links[worker.host].send(agent.PLACE, {}, worker.number)
        for worker in self._members.unneeded():
            if worker.number not in self._told_to_end:
                say(f"worker {worker.number} ({worker.host}) is sent away: {why}.")
                self._end_worker(worker.number)
        ending = self._members.world_to_end(now)
        for link in self._links.values() if ending else ():
            if link.hello:
                link.send(agent.RENEW, ending)

    def _begin(self, world: World) -> None:
        links = {host: self._links[host] for host in dict.fromkeys(place.host for place in world.places)}
        first = world.workers[0]
        address = rendezvous_of(links[first.host], first.port, list(links.values()))
        for worker, place in zip(world.workers, world.places):
            variables = variables_of(place, address, f"{self._name}-{world.number}")
            links[worker.host].send(
                agent.PLACE, {"world": world.number, "variables": variables}, worker.number
            )
        counts = Counter(place.host for place in world.places)
        hosts = ", ".join(f"{count} on {host}" for host, count in counts.items())
        say(f"world {world.number} has {counted(len(world.places), 'rank')} ({hosts}).")

    def _end_late_workers(self) -> None:
        now = time.monotonic()
        for worker in self._members.late(now):
            if worker.number not in self._told_to_end:
                why = f"others have lost it {LOST_S:g} s ago, and it does not come"
                if worker.is_told_to_go:
                    why = f"it was sent away {LOST_S:g} s ago, and it does not go"
                elif worker.lost_at is None or now - worker.lost_at <= LOST_S:
                    why = f"others wait for it for {self._elastic.limits.timeout_s:g} s (--elastic-timeout)"
                    why += ", and it does not come" if worker.world else ", and it does not call init()"
                self._note_loss(f"worker {worker.number} ({worker.host}) is ended: {why}.")
                self._end_worker(worker.number)
        for number, since in self._told_to_end.items():
            link = self._links.get(self._host_of[number])
            if link and number not in self._ended and now - since > _END_S:
                self._lose(link, f"its agent has not ended worker {number} within {_END_S:g} s")

    def _end_worker(self, number: int) -> None:
        self._told_to_end[number] = time.monotonic()
        self._links[self._host_of[number]].send(agent.END, rank=number)

    def _leave_hosts(self) -> None:
        """Ends the agents of hosts that have left, and have no workers any more."""
        used = {host for number, host in self._host_of.items() if number not in self._ended}
        for link in list(self._links.values()):
            if link.hello and link.host not in used and not self._members.has_host(link.host):
                self._drop(link, _DROP_S)

    def _note_loss(self, sentence: str) -> None:
        """Prints a sentence, and keeps it for the end of the job."""
        say(sentence)
        self._losses.append(sentence)

    def _handle(self, link: HostLink, frame: Frame) -> None:
        was_alive = frame.rank not in self._ended
        super()._handle(link, frame)
        if self._host_of.get(frame.rank) != link.host:
            return
        if frame.kind == agent.INIT and was_alive:
            facts = json.loads(frame.payload)
            self._members.ask(
                frame.rank,
                int(facts["port"]),
                time.monotonic(),
                lost=int(facts["lost"]),
                unmet=[int(rank) for rank in facts.get("unmet", [])],
                has_state=bool(facts["has_state"]),
            )
        elif frame.kind == agent.EXIT and was_alive:
            self._note_end(self._ended[frame.rank])

    def _note_end(self, end: Ended) -> None:
        self._members.end(end.rank, is_good=end.code == 0, now=time.monotonic())
        if end.code != 0 and end.rank not in self._told_to_end:
            say(f"worker {end.rank} ({end.place()}) failed: {end.reason()}.")
        if end.has_processes and end.code != 0:
            self._end_worker(end.rank)

    def _lose(self, link: HostLink, reason: str = "") -> None:
        """Handles the end of an agent: its workers are lost, and its host gets no further ones."""
        host = link.host
        reason = reason or link.last_words()
        self._give_up(host, reason, "" if link.hello else self._cure_of_ssh(link))
        self._drop(link, 0.0)

    def _give_up(self, host: str, reason: str, cure: str = "") -> None:
        self._note_loss(f"{host} is lost: {reason}.{cure}")
        self._lose_ranks(host, reason)
        self._members.lose_host(host, time.monotonic())

    def _drop(self, link: HostLink, within_s: float) -> None:
        """Ends the connection to an agent, so that it ends. Kills the connection if that takes longer."""
        for fd in (link.input(), *link.streams()):
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
        del self._links[link.host]
        link.hang_up()
        link.close(within_s)

    def _first_failed(self) -> Ended | None:
        """The worker that failed first in the last world. None if none has."""
        workers, last = self._members.workers, self._members.world
        ended = {
            workers[end.rank].rank if last else end.rank: end
            for end in self._ended.values()
            if workers[end.rank].world == last
            and not (end.rank in self._told_to_end and -end.code in (signal.SIGTERM, signal.SIGKILL))
        }
        errors = {rank: self._output.tail(end.rank, agent.STDERR) for rank, end in ended.items()}
        ranks = {rank: dataclasses.replace(end, rank=rank) for rank, end in ended.items()}
        first, _ = first_failure(ranks, errors)
        return None if first is None else ended[first.rank]

    def _message(self) -> str:
        first = self._first
        why = f"the job has ended: {self._failure}." if self._failure else "the job has failed."
        if first is None:
            last = f" {self._losses[-1]}" if self._losses else ""
            return f"rdmacoll run: {why}{last}" if self._failure else ""
        head = f"rdmacoll run: {why} Worker {first.rank} ({first.place()}) failed: {first.reason()}."
        return with_last_lines(head, self._last_lines(first.rank))

    def _numbers(self) -> list[int]:
        members = self._members
        last = [
            one for one in members.workers.values() if one.world == members.world and not one.is_told_to_go
        ]
        return [one.number for one in sorted(last, key=lambda one: one.rank)]

    def _exit_code(self) -> int:
        return super()._exit_code() or int(bool(self._failure))
