"""Judges a caller at rank 0's address: a rank of this job, a rank of another job, or undecidable. Pure.

Two jobs with one address would exchange ranks, and finish with wrong sums. Launchers name their jobs. Without
names, two jobs show only when a second process has the same rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdmacoll._start.rendezvous_door import Self, difference

# For so long after the world stands, a second process of one rank may mean that jobs have exchanged ranks.
AMBIGUOUS_S = 60.0


@dataclass(frozen=True)
class Verdict:
    """The judgement of a caller.

    error: the message for the caller, or "". is_for_all: it ends this job, too. is_early: the caller comes
    again, since this world is about to end.
    """

    error: str = ""
    is_for_all: bool = False
    is_early: bool = False


def _job(name: str) -> str:
    return f"job {name!r}" if name else "a job without a name"


def _served(me: Self) -> str:
    launch = me.launch
    return (
        f"{launch.rendezvous} serves {_job(launch.job)} of {launch.size} ranks, started {me.age_s():.0f} s "
        f"ago on {me.host} by pid {me.pid}"
    )


def _with_age(who: str, hello: dict[str, Any]) -> str:
    age = hello.get("age_s")
    return f"{who}, started {age:.0f} s ago" if isinstance(age, (int, float)) else who


def _refused(me: Self, rank: str, who: str, theirs: str) -> Verdict:
    source = me.launch.address_source(0)
    return Verdict(
        f"{_served(me)}, and {rank} ({who}) belongs to {_job(theirs)}: give each job an address of its own "
        f"in {source}."
    )


def twice(me: Self, rank: str, first: str, second: str) -> str:
    """The message about two processes with the same rank."""
    return (
        f"two processes are {rank}: {first}, and {second}. Either it was started twice, or two jobs have met "
        f"at {me.launch.rendezvous}, and each may have ranks of the other. End both, and give each an "
        "address of its own, or an own RDMACOLL_JOB_ID on all of its ranks."
    )


def judge(me: Self, present: dict[int, str], hello: dict[str, Any], who: str, origin: str) -> Verdict:
    """Judges a caller while ranks are gathered. present: the process that has each rank, as text."""
    rank, size, theirs = hello.get("rank"), hello.get("size"), str(hello.get("job") or "")
    launch = me.launch
    if type(rank) is not int or type(size) is not int:
        return Verdict(f"a rank at {origin} ({who}) gave no rank or size.", is_for_all=True)
    name = launch.name(rank)
    if launch.job and theirs and launch.job != theirs:
        return _refused(me, name, _with_age(who, hello), theirs)
    error = difference(launch, me.who, hello, f"a process ({who})")
    if error is not None:
        return Verdict(error, is_for_all=True)
    if launch.job != theirs:
        return Verdict(
            f"rank 0 ({me.who}) belongs to {_job(launch.job)}, {name} ({who}) to {_job(theirs)}: give every "
            "rank of a job the same RDMACOLL_JOB_ID, or none.",
            is_for_all=True,
        )
    if size != launch.size:
        return Verdict(
            f"rank 0 ({me.who}) was told a size of {launch.size}, rank {rank} ({who}) {size}: start all "
            "ranks with the same size.",
            is_for_all=True,
        )
    if not 0 <= rank < size:
        return Verdict(f"{who} says it is rank {rank} of {size}; ranks are 0 to {size - 1}.", is_for_all=True)
    if rank in present:
        return Verdict(twice(me, name, present[rank], _with_age(who, hello)), is_for_all=True)
    return Verdict()


def judge_late(
    me: Self,
    members: dict[int, tuple[str, str]],
    hello: dict[str, Any],
    who: str,
    *,
    stood_s: float,
    is_over: bool,
) -> Verdict:
    """Judges a caller after the world stands, since `stood_s` seconds.

    members: for each rank its host and pid as text, and its process. is_over: the world has failed or ended.
    """
    rank, theirs = hello.get("rank"), str(hello.get("job") or "")
    who_has, process = members.get(rank, ("", "")) if type(rank) is int else ("", "")
    if is_over or (who_has and process == hello.get("process")):
        return Verdict(is_early=True)
    launch = me.launch
    name = launch.name(rank) if type(rank) is int else "a process"
    is_same = (
        launch.job == theirs and hello.get("size") == launch.size and hello.get("lists") == launch.lists()
    )
    if is_same and who_has and stood_s <= AMBIGUOUS_S:
        return Verdict(twice(me, name, who_has, _with_age(who, hello)), is_for_all=True)
    return _refused(me, name, _with_age(who, hello), theirs)
