"""Two jobs at one address: their errors, and the job that goes on."""

from __future__ import annotations

import itertools
import re
import socket
import threading
import time

import pytest
from ranks import Run, free_addresses
from test_rendezvous import Meeting

from rdmacoll._start import job_conflicts
from rdmacoll.errors import ConfigError, RdmacollError

RANKS = ["A0", "A1", "B0", "B1"]
ORDERS = [order for order in itertools.permutations(RANKS) if order[0][0] == "A"]


class World:
    """A body for `Meeting`. It meets, keeps the address, and ends once `ends` is set."""

    def __init__(self) -> None:
        self.stands, self.ends = threading.Event(), threading.Event()
        self.is_over = False
        self.blamed: list[str] = []

    def __call__(self, exchange):
        texts = exchange.allgather("text")
        address_holder = exchange.address_holder()
        exchange.hold_address(lambda: self.is_over, self.blamed.append)
        exchange.close()
        if address_holder is not None:
            self.stands.set()
            self.ends.wait(30)
            address_holder.close()
        return texts


def wait_for(meeting: Meeting, key: str) -> RdmacollError:
    end = time.monotonic() + 20
    while key not in meeting.results:
        assert time.monotonic() < end, f"{key} hangs"
        time.sleep(0.01)
    return meeting.results[key]


def wait_for_listener(meeting: Meeting) -> None:
    host, port = meeting.address.split(":")
    end = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=5).close()
        except OSError:
            assert time.monotonic() < end, "no rank listens"
            time.sleep(0.01)


@pytest.fixture
def pair():
    """Gives a function that starts ranks 0 and 1 of job A, and waits until their world is complete."""
    made = []

    def make(job: str = "") -> tuple[Meeting, World]:
        meeting, world = Meeting(), World()
        made.append((meeting, world))
        meeting.start("A0", rank=0, size=2, body=world, job=job)
        meeting.start("A1", rank=1, size=2, body=world, job=job)
        assert world.stands.wait(20)
        return meeting, world

    yield make
    for meeting, world in made:
        world.ends.set()
        results = meeting.finish()
        assert results["A0"] == results["A1"] == ["text", "text"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_of_a_job_with_another_name_is_refused_and_the_first_job_goes_on(rank):
    meeting = Meeting()
    begin = time.monotonic()
    meeting.start("A0", rank=0, size=3, job="A")
    meeting.start("A1", rank=1, size=3, job="A")
    wait_for_listener(meeting)
    meeting.start("B", rank=rank, size=3, job="B")
    error = wait_for(meeting, "B")
    seconds_max = time.monotonic() - begin
    meeting.start("A2", rank=2, size=3, job="A")
    results = meeting.finish()
    assert results["A0"] == results["A1"] == results["A2"] == ["text 0", "text 1", "text 2"]
    assert isinstance(error, ConfigError)
    told = re.search(rf"{meeting.address} serves job 'A' of 3 ranks, started (\d+) s ago on ", str(error))
    assert told, str(error)
    assert int(told[1]) <= seconds_max + 1
    assert "belongs to job 'B'" in str(error)
    assert "RDMACOLL_RENDEZVOUS" in str(error)


def test_a_name_on_some_ranks_only_is_an_error_of_all():
    meeting = Meeting()
    meeting.start("A0", rank=0, size=2, job="A")
    meeting.start("A1", rank=1, size=2)
    for error in meeting.finish().values():
        assert isinstance(error, ConfigError)
        assert "give every rank of a job the same RDMACOLL_JOB_ID, or none" in str(error)


@pytest.mark.parametrize("order", ORDERS)
def test_two_jobs_without_names_never_finish_mixed(order):
    """Four processes start one by one. The one before has then met a peer, or has found none."""
    meeting = Meeting()
    worlds = {"A": World(), "B": World()}
    for key in order:
        meeting.start(key, rank=int(key[1]), size=2, body=worlds[key[0]], timeout_s=2.0)
        time.sleep(0.15)
    try:
        end = time.monotonic() + 20
        while not any(world.blamed for world in worlds.values()):
            reported = [result for result in meeting.results.values() if isinstance(result, RdmacollError)]
            if len(reported) == 4 or time.monotonic() > end:
                break
            time.sleep(0.02)
    finally:
        for world in worlds.values():
            world.ends.set()
    results = meeting.finish()
    blamed = [sentence for world in worlds.values() for sentence in world.blamed]
    errors = [str(result) for result in results.values() if isinstance(result, RdmacollError)]
    assert [text for text in [*blamed, *errors] if "two processes are rank" in text], results
    # If a mixed world was complete, its rank 0 must have ended it.
    for key in ("A0", "B0"):
        if not isinstance(results[key], RdmacollError):
            assert worlds[key[0]].blamed, results
    for text in blamed:
        assert "RDMACOLL_JOB_ID" in text


@pytest.mark.parametrize("rank", [0, 1])
def test_a_second_claimant_soon_after_the_world_stands_ends_both(pair, rank):
    meeting, world = pair()
    meeting.start("B", rank=rank, size=2)
    error = wait_for(meeting, "B")
    assert f"two processes are rank {rank}: " in str(error)
    assert world.blamed == [str(error)]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_second_claimant_of_an_old_world_is_refused_alone(pair, rank, monkeypatch):
    monkeypatch.setattr(job_conflicts, "AMBIGUOUS_S", 0.0)
    meeting, world = pair()
    meeting.start("B", rank=rank, size=2)
    error = wait_for(meeting, "B")
    assert f"{meeting.address} serves a job without a name of 2 ranks" in str(error)
    assert not world.blamed


@pytest.mark.parametrize(("job", "size"), [("B", 2), ("", 3)], ids=["with another name", "of another size"])
def test_a_rank_that_cannot_be_of_this_job_is_refused_alone(pair, job, size):
    meeting, world = pair("A" if job else "")
    meeting.start("B", rank=1, size=size, job=job)
    assert "give each job an address of its own" in str(wait_for(meeting, "B"))
    assert not world.blamed


def test_a_rank_that_starts_again_waits_for_the_end_of_its_last_world(pair):
    meeting, world = pair()
    meeting.results["first"] = wait_for(meeting, "A1")
    del meeting.results["A1"]
    meeting.start("A1", rank=1, size=2)  # the same process
    time.sleep(0.3)
    assert "A1" not in meeting.results
    assert not world.blamed
    world.ends.set()
    wait_for(meeting, "A0")
    meeting.start("again", rank=0, size=2)
    assert wait_for(meeting, "again") == wait_for(meeting, "A1") == ["text 0", "text 1"]
    meeting.results["A1"] = ["text", "text"]


def test_a_rank_comes_again_while_a_world_that_has_failed_is_still_there(pair):
    meeting, world = pair()
    world.is_over = True
    meeting.start("B1", rank=1, size=2, timeout_s=0.6)
    assert "still in its previous world, or in one that has failed" in str(wait_for(meeting, "B1"))
    assert not world.blamed


FORKS = """
import os, time
import rdmacoll
from ranks import report
rdmacoll.init()
me = rdmacoll.rank()
if me == 0 and os.fork() == 0:
    time.sleep(60)
    os._exit(0)
report("forked")
"""


def test_a_forked_child_does_not_keep_the_address():
    (address,) = free_addresses(1)
    host, port = address.split(":")
    with Run(FORKS, 2, rendezvous=address) as started:
        for process in started.processes:
            assert process.wait(60) == 0
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind((host, int(port)))
            again.listen()


MIXED = """
import os, time
import numpy as np, rdmacoll
from ranks import report
place = int(os.environ["PLACE"])
try:
    rdmacoll.init()
    report(["in", ""], rank=place)
    while True:
        rdmacoll.engine.allreduce(np.ones(4))
        time.sleep(0.01)
except rdmacoll.RdmacollError as error:
    report([type(error).__name__, str(error)], rank=place)
"""


@pytest.mark.parametrize("lists", [False, True])
def test_a_world_with_a_rank_of_another_job_ends_on_all_of_its_ranks(tmp_path, lists):
    """A0 and B1 have met. Then B0 comes."""
    first, second = free_addresses(2)
    held = ["sh", "-c", 'while [ ! -e "$0" ]; do sleep 0.02; done; exec "$@"', str(tmp_path / "go")]
    env_of = {place: {"PLACE": str(place), "RDMACOLL_RANK": str(place % 2)} for place in range(3)}
    program, options = MIXED, {"rendezvous": first}
    if lists:
        flags = [f"--worker_hosts={first},{second}", "--job_name=worker"]
        program = MIXED.replace("init()", "init(argv=True, server_placement='colocated')")
        options = {
            "launcher": "hand",
            "arguments_of": {place: [*flags, f"--task_index={place % 2}"] for place in range(3)},
        }
        for environ in env_of.values():
            del environ["RDMACOLL_RANK"]
    else:
        for environ in env_of.values():
            environ["RDMACOLL_SIZE"] = "2"
    with Run(program, 3, env_of=env_of, prefix_of={2: held}, **options) as started:
        started.wait_for_reports([0, 1])
        assert [started.reported(rank) for rank in (0, 1)] == [["in", ""]] * 2
        (tmp_path / "go").touch()
        outcome = started.finish(60)
    name = "worker 0" if lists else "rank 0"
    for kind, text in outcome.succeeded():
        assert kind in ("RankFailedError", "ConfigError")
        assert f"two processes are {name}: " in text
        assert "RDMACOLL_JOB_ID" in text
    assert outcome.ranks[0].output.count("error: two processes are") == 1, outcome.text()


FORKED = """
import multiprocessing, sys
import rdmacoll
from ranks import report

def start(rank, outcomes):
    try:
        rdmacoll.init(rank=rank, size=3, rendezvous=sys.argv[1])
    except rdmacoll.RdmacollError as error:
        outcomes.put([type(error).__name__, str(error)])

context = multiprocessing.get_context("fork")
outcomes = context.Queue()
for rank in (0, 1, 1):
    context.Process(target=start, args=(rank, outcomes)).start()
report([outcomes.get() for _ in range(3)], rank=0)
"""


def test_two_processes_with_one_rank_are_told_though_one_program_has_forked_both():
    (address,) = free_addresses(1)
    env = {"RDMACOLL_START_TIMEOUT_S": "15"}
    with Run(FORKED, 1, launcher="hand", arguments=[address], env=env) as started:
        (errors,) = started.finish(60).succeeded()
    for kind, text in errors:
        assert kind == "ConfigError"
        assert "two processes are rank 1: " in text
