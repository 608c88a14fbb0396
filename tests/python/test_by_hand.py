"""Runs with parameter servers that are started by hand, one command a process, in any order."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from marks import slow
from ranks import ROOT, Outcome, Run, free_addresses, run

from rdmacoll.benchmarks.hosts import Hosts

PROGRAM = ROOT / "tests" / "multiprocess" / "by_hand.py"
# Starts a program once its file exists.
HELD = 'while [ ! -e "$0" ]; do sleep 0.02; done; exec "$@"'


class ByHand:
    """A run of workers and servers that are started by hand. A process's place is its rank."""

    def __init__(self, workers: int = 2, servers: int = 2, hosts: Sequence[str] = ()) -> None:
        self.hosts = list(hosts) or free_addresses(workers + servers)
        self.workers, self.servers = self.hosts[:workers], self.hosts[workers:]

    def flags(self, place: int, *more: str) -> list[str]:
        workers = len(self.workers)
        job, task = ("worker", place) if place < workers else ("ps", place - workers)
        lists = [f"--worker_hosts={','.join(self.workers)}", f"--ps_hosts={','.join(self.servers)}"]
        return [f"--job_name={job}", f"--task_index={task}", *lists, *more]

    def run(
        self,
        folder: Path,
        *,
        held: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        env_of: Mapping[int, Mapping[str, str]] | None = None,
        arguments_of: Mapping[int, Sequence[str]] | None = None,
        prefix_of: Mapping[int, Sequence[str]] | None = None,
        preloaded: bool = False,
    ) -> Run:
        """Starts the run. A held process starts once `folder` has a file with its number."""
        count = len(self.hosts)
        return Run(
            PROGRAM,
            count,
            launcher="hand",
            env={"RDMACOLL_START_TIMEOUT_S": "", **(env or {})},
            env_of={
                place: {"RANKS_PLACE": str(place), **(env_of or {}).get(place, {})} for place in range(count)
            },
            prefix_of={
                **(prefix_of or {}),
                **{place: ["sh", "-c", HELD, str(folder / str(place))] for place in held},
            },
            arguments_of={
                place: (arguments_of or {}).get(place, self.flags(place)) for place in range(count)
            },
            preloaded=preloaded,
        )


def wait_for_line(started: Run, place: int, words: str) -> None:
    """Waits until the process at `place` has printed `words`."""
    end = time.monotonic() + 180
    while words not in started.so_far().ranks[place].output:
        assert time.monotonic() < end, f"{words!r}:\n{started.so_far().text()}"
        time.sleep(0.02)


def served(outcome: Outcome) -> None:
    """Checks that 2 workers got the sum, and that 2 servers ended with 0, without TensorFlow and MPI."""
    reports = outcome.succeeded()
    assert reports[2:] == [[], []], outcome.text()
    for place in range(2):
        values = {name: reports[place][name] for name in ("rank", "size", "ends")}
        assert values == {"rank": place, "size": 2, "ends": [3.0, 3.0]}


@pytest.mark.parametrize(
    ("late", "waits_for"),
    [([3], [3]), ([0], [0]), slow([0, 1], [0]), slow([1, 2, 3], [1, 2, 3]), slow([2, 3], [2, 3])],
)
def test_processes_come_in_any_order_and_say_who_is_missing(tmp_path, late, waits_for):
    hand = ByHand()
    with hand.run(tmp_path, held=late) as started:
        names = ["worker 0", "worker 1", "ps 0", "ps 1"]
        missing = ", ".join(f"{names[place]} ({hand.hosts[place]})" for place in waits_for)
        for place in {0, 1, 2, 3} - set(late):
            wait_for_line(started, place, f"warning: waiting for {missing}")
        for place in late:
            (tmp_path / str(place)).touch()
        outcome = started.finish(240)
    served(outcome)
    described = (
        f"started by the command line: worker 0 at {hand.hosts[0]}, rank 0 of 4 with 2 parameter servers"
    )
    assert described in outcome.ranks[0].output
    assert outcome.reports[1]["argv"] == hand.flags(1)  # sys.argv is unchanged
    assert [outcome.reports[place]["listening"] for place in range(2)] == [[host] for host in hand.workers]


def test_arguments_variables_and_flags_may_differ_and_the_protocol_is_said_once(tmp_path):
    hand = ByHand()
    lists = {"ps_hosts": hand.servers, "worker_hosts": ",".join(hand.workers)}
    cluster = {"ps": hand.servers, "chief": hand.workers[:1], "worker": hand.workers[1:]}
    tf_config = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    outcome = hand.run(
        tmp_path,
        arguments_of={
            0: hand.flags(0, "--server_protocol=grpc+mpi", "--variable_update", "parameter_server"),
            1: [],
            2: ["--batch_size=64"],
        },
        env_of={
            1: {"TF_CONFIG": json.dumps(tf_config), "RDMACOLL_MODE": "ps"},
            2: {"ARGUMENTS": json.dumps({"job_name": "ps", "task_index": 0, **lists})},
        },
    )
    with outcome as started:
        done = started.finish(240)
    served(done)
    message = "server_protocol=grpc+mpi: MPI carries no data here"
    assert [message in rank.output for rank in done.ranks] == [True, False, False, False]


def test_rdma_that_the_protocol_asks_for_and_nobody_has_is_said_with_the_flag(tmp_path):
    hand = ByHand(1, 1)
    asking = "--server_protocol=grpc+verbs"
    program = "import rdmacoll\nrdmacoll.init(argv=True)\n"
    arguments = {place: hand.flags(place, asking) for place in range(2)}
    env = {"RDMACOLL_SECRET_FILE": str(tmp_path / "secret")}
    outcome = run(program, 2, launcher="hand", arguments_of=arguments, env=env, deadline_s=60)
    for one in outcome.ranks:
        if "RDMA is requested" in one.output and one.code == 0:
            pytest.skip("needs no RDMA device")
        assert one.code == 1, outcome.text()
        last = one.output.splitlines()[-1]
        assert "RDMA was requested (server_protocol=grpc+verbs: RDMACOLL_RDMA=true at rank " in last
        assert last.endswith("To go without, give server_protocol=grpc.")


@pytest.mark.parametrize(("ended", "by", "cause"), [(1, "SIGKILL", ""), (0, "SIGINT", "KeyboardInterrupt")])
def test_a_process_that_ends_before_all_are_here_is_named(tmp_path, ended, by, cause):
    hand = ByHand()
    with hand.run(tmp_path, held=[2]) as started:
        for place in (0, 1, 3):
            wait_for_line(started, place, f"waiting for ps 0 ({hand.hosts[2]})")
        os.kill(started.pid(ended), signal.Signals[by])
        started.wait_for_reports([1 - ended, 3])
        os.kill(started.pid(2), signal.SIGKILL)
        outcome = started.finish(240)
    for place in (1 - ended, 3):
        kind, text = outcome.reports[place]
        assert (outcome.ranks[place].code, kind) == (1, "RankFailedError"), outcome.text()
        who = f"worker {ended} ({socket.gethostname()}, pid {started.pid(ended)})"
        assert f"{who} left during the start: {cause}" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("is_bound", [False, True])
def test_across_hosts_every_process_listens_where_the_lists_say(tmp_path, is_bound):
    env = {"RDMACOLL_INTERFACE": "lo,eth0"} if is_bound else {}
    with Hosts(3) as hosts:
        first, second, third = hosts.addresses
        hand = ByHand(hosts=[f"{first}:5077", f"{second}:5077", f"{second}:5078", f"{third}:5077"])
        with hand.run(tmp_path, prefix_of=hosts.prefixes([0, 1, 1, 2]), env=env) as started:
            outcome = started.finish(240)
    served(outcome)
    for place, host in ((0, first), (1, second)):
        listens = set(outcome.reports[place]["listening"])
        assert listens == ({f"{host}:5077", "127.0.0.1:5077"} if is_bound else {f"{host}:5077"})
