"""Judges a caller at rank 0's address: a rank of this job, a rank of another job, or undecidable. Pure.

Two jobs with one address would exchange ranks, and finish with wrong sums. Launchers name their jobs. Without
names, two jobs show only when a second process has the same rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdmacoll._start.rendezvous_listener import LocalProcess, list_difference

# A second process of one rank in this time after the start may mean that two jobs have exchanged ranks.
AMBIGUOUS_S = 60.0


@dataclass(frozen=True)
class Verdict:
    """The judgement of a caller.

    error: the message for the caller, or "". ends_job: it ends this job, too. must_retry: the caller tries
    again, since this world is about to end.
    """

    error: str = ""
    ends_job: bool = False
    must_retry: bool = False


def _job(name: str) -> str:
    return f"job {name!r}" if name else "a job without a name"


def _address_in_use(local: LocalProcess) -> str:
    launch = local.launch
    return (
        f"{launch.rendezvous} serves {_job(launch.job)} of {launch.size} ranks, started {local.age_s():.0f} "
        f"s ago on {local.host} by pid {local.pid}"
    )


def _with_age(host_pid: str, hello: dict[str, Any]) -> str:
    age = hello.get("age_s")
    return f"{host_pid}, started {age:.0f} s ago" if isinstance(age, (int, float)) else host_pid


def _other_job(local: LocalProcess, rank: str, host_pid: str, other_job: str) -> Verdict:
    source = local.launch.address_source(0)
    return Verdict(
        f"{_address_in_use(local)}, and {rank} ({host_pid}) belongs to {_job(other_job)}: give each job an "
        f"address of its own in {source}."
    )


def duplicate_rank(local: LocalProcess, rank: str, first: str, second: str) -> str:
    """The message about two processes with the same rank."""
    return (
        f"two processes are {rank}: {first}, and {second}. Either the rank was started twice, or two jobs "
        f"use {local.launch.rendezvous} and may have exchanged ranks. End both jobs, and give each an "
        "address of its own, or its own RDMACOLL_JOB_ID on all of its ranks."
    )


def judge_caller(
    local: LocalProcess,
    present: dict[int, tuple[str, str]],
    hello: dict[str, Any],
    host_pid: str,
    origin: str,
) -> Verdict:
    """Judges a caller while ranks are gathered. present: as `members` of `judge_late_caller`, for the ranks
    that know of their admission."""
    rank, size, other_job = hello.get("rank"), hello.get("size"), str(hello.get("job") or "")
    launch = local.launch
    if type(rank) is not int or type(size) is not int:
        return Verdict(f"a rank at {origin} ({host_pid}) gave no rank or size.", ends_job=True)
    name = launch.name(rank)
    if launch.job and other_job and launch.job != other_job:
        return _other_job(local, name, _with_age(host_pid, hello), other_job)
    error = list_difference(launch, local.host_pid, hello, f"a process ({host_pid})")
    if error is not None:
        return Verdict(error, ends_job=True)
    if launch.job != other_job:
        return Verdict(
            f"rank 0 ({local.host_pid}) belongs to {_job(launch.job)}, {name} ({host_pid}) to "
            f"{_job(other_job)}: give every rank of a job the same RDMACOLL_JOB_ID, or none.",
            ends_job=True,
        )
    if size != launch.size:
        return Verdict(
            f"rank 0 ({local.host_pid}) has size {launch.size}, but rank {rank} ({host_pid}) has size "
            f"{size}: start all ranks with the same size.",
            ends_job=True,
        )
    if not 0 <= rank < size:
        return Verdict(
            f"{host_pid} says it is rank {rank} of {size}; ranks are 0 to {size - 1}.", ends_job=True
        )
    if rank not in present:
        return Verdict()
    holder, process = present[rank]
    if process == hello.get("process"):  # it has left the world of this start, and begins its next start
        return Verdict(must_retry=True)
    return Verdict(duplicate_rank(local, name, holder, _with_age(host_pid, hello)), ends_job=True)


def judge_late_caller(
    local: LocalProcess,
    members: dict[int, tuple[str, str]],
    hello: dict[str, Any],
    host_pid: str,
    *,
    world_age_s: float,
    is_over: bool,
) -> Verdict:
    """Judges a caller after the world stands, since `world_age_s` seconds.

    members: for each rank its host and pid as text, and its process. is_over: the world has failed or ended.
    """
    rank, other_job = hello.get("rank"), str(hello.get("job") or "")
    holder, process = members.get(rank, ("", "")) if type(rank) is int else ("", "")
    if is_over or (holder and process == hello.get("process")):
        return Verdict(must_retry=True)
    launch = local.launch
    name = launch.name(rank) if type(rank) is int else "a process"
    is_same_job = (
        launch.job == other_job and hello.get("size") == launch.size and hello.get("lists") == launch.lists()
    )
    if is_same_job and holder and world_age_s <= AMBIGUOUS_S:
        return Verdict(duplicate_rank(local, name, holder, _with_age(host_pid, hello)), ends_job=True)
    return _other_job(local, name, _with_age(host_pid, hello), other_job)
