"""Signs of life, strangers, secrets and paths while ranks meet."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import time

import pytest
from ranks import Run, free_port
from test_rendezvous import SECRET, Meeting

from rdmacoll._start import listen_address, rendezvous, rendezvous_client, rendezvous_link, start_deadline
from rdmacoll._start.launch import Launch
from rdmacoll._start.rendezvous_client import ConnectAttempt, RetryError
from rdmacoll._start.rendezvous_listener import LocalProcess
from rdmacoll.benchmarks.hosts import Hosts, ip
from rdmacoll.errors import ConfigError, RankFailedError

DEADLINE_S = 5 * rendezvous.SILENCE_S_MIN
STRANGERS = 3000
STRANGERS_COST_S = 5.0  # five times the second by which they may delay a start
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def call(address: str, rank: int, size: int) -> ConnectAttempt:
    """Returns the call of a rank that comes, answers once, and then does nothing."""
    launch = Launch("a test", rank, size, address)
    end = time.monotonic() + 20
    while True:
        attempt = ConnectAttempt(launch, SECRET)
        try:
            assert attempt.send(LocalProcess(launch, "elsewhere", 7).hello()) == {"welcome": True}
            return attempt
        except RetryError:
            assert time.monotonic() < end
            time.sleep(0.02)


def test_a_rank_that_shows_no_sign_of_life_is_named_on_all(monkeypatch):
    monkeypatch.setattr(rendezvous, "SILENCE_S_MIN", 0.5)
    monkeypatch.setattr(rendezvous_link, "HEARTBEAT_EVERY_S", 0.1)
    meeting = Meeting()
    meeting.start(0, rank=0, size=4, silence_s=0.5)
    meeting.start(2, rank=2, size=4, silence_s=0.5)
    silent = call(meeting.address, 1, 4)
    end = time.monotonic() + 20
    while not meeting.results:
        assert time.monotonic() < end, "nobody misses it"
        silent.link.add(silent.link.receive())
        silent.link.take()  # it only confirms that large frames arrive
        time.sleep(0.02)
    for error in meeting.finish().values():
        assert isinstance(error, RankFailedError)
        assert (error.rank, error.host) == (1, "elsewhere")
        assert "no heartbeat for 0.5 s" in str(error)
    silent.close()


STOPPED = """
import os, time
import rdmacoll
from ranks import report
me = int(os.environ["RDMACOLL_RANK"])
report({"pid": os.getpid()}, rank=me)
try:
    rdmacoll.init()
except rdmacoll.RdmacollError as error:
    report([type(error).__name__, error.rank, str(error), time.time()], rank=me)
"""


def test_a_rank_that_is_stopped_before_all_have_come_is_named():
    """Two jobs run at once, to save time. The test stops rank 0 of one job and rank 1 of the other."""
    waits = ["sh", "-c", "sleep 1000"]
    with contextlib.ExitStack() as stack:
        jobs = [
            stack.enter_context(Run(STOPPED, 3, prefix_of={2: waits}, env={"RDMACOLL_START_TIMEOUT_S": ""}))
            for _ in (0, 1)
        ]
        for job in jobs:
            job.wait_for_reports([0, 1])
        time.sleep(1.5)  # rank 0 has rank 1, and both wait for rank 2
        at = time.time()
        for stopped, job in enumerate(jobs):
            os.kill(job.pid(stopped), signal.SIGSTOP)
        try:
            codes = [job.processes[1 - stopped].wait(DEADLINE_S) for stopped, job in enumerate(jobs)]
            reported = [job.reported(1 - stopped) for stopped, job in enumerate(jobs)]
        finally:
            for stopped, job in enumerate(jobs):
                os.kill(job.pid(stopped), signal.SIGCONT)
        for stopped, job in enumerate(jobs):
            job.processes[stopped].wait(20)
        kinds = [job.reported(place)[0] for job in jobs for place in (0, 1)]
    assert codes == [0, 0]
    assert kinds == ["RankFailedError"] * 4
    for stopped, (kind, rank, text, told_at) in enumerate(reported):
        assert (kind, rank) == ("RankFailedError", stopped), text
        assert "no heartbeat for 5 s" in text
        assert told_at - at < DEADLINE_S


def test_a_step_that_takes_long_does_not_look_like_death(monkeypatch):
    monkeypatch.setattr(rendezvous, "SILENCE_S_MIN", 0.5)
    monkeypatch.setattr(rendezvous_link, "HEARTBEAT_EVERY_S", 0.1)

    def slow(exchange):
        exchange.allgather("one")
        time.sleep(1.5)
        return exchange.allgather("two")

    meeting = Meeting()
    for rank in range(3):
        meeting.start(rank, rank=rank, size=3, silence_s=0.5, body=slow)
    assert list(meeting.finish().values()) == [["two"] * 3] * 3


# Opens `count` connections to a port as soon as a program listens there, and keeps them silent.
HOLD = """
import errno, select, socket, sys, time
port, count, word = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
held = []
print("ready", flush=True)
end = time.monotonic() + 60
while len(held) < count and time.monotonic() < end:
    one = socket.socket()
    one.settimeout(5)
    try:
        one.connect(("127.0.0.1", port))
        if word:
            one.sendall(word)
        held.append(one)
    except OSError:
        one.close()
        time.sleep(0.002)
print("all", flush=True)
sys.stdin.read()
"""


def hold(port: int, count: int, word: str = "") -> subprocess.Popen[str]:
    """Starts the program of the strangers, and returns once they try to connect."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard >= count + 100, "raise the limit of open files"
    holding = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(port), str(count), word],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard)),
    )
    assert holding.stdout is not None
    assert holding.stdout.readline() == "ready\n"
    return holding


@pytest.mark.parametrize("word", ["", "rdmacol?"], ids=["silent", "that begin as a rank does"])
def test_thousands_of_strangers_do_not_keep_a_rank_out(word):
    meeting = Meeting()
    with hold(int(meeting.address.rpartition(":")[2]), STRANGERS, word) as holding:
        assert holding.stdout is not None
        try:
            meeting.start(0, rank=0, size=3, timeout_s=60)
            assert holding.stdout.readline() == "all\n"
            begun = time.monotonic()
            for rank in (1, 2):
                meeting.start(rank, rank=rank, size=3, timeout_s=60)
            results = meeting.finish()
            seconds = time.monotonic() - begun
        finally:
            holding.kill()
    assert list(results.values()) == [["text 0", "text 1", "text 2"]] * 3
    assert seconds < STRANGERS_COST_S


def test_ranks_with_the_right_secret_do_not_wait_for_one_with_another(monkeypatch):
    monkeypatch.setattr(start_deadline, "_SHORTENED_S", 0.4)
    meeting = Meeting()
    meeting.start(0, rank=0, size=3)
    meeting.start(1, rank=1, size=3)
    meeting.start(2, rank=2, size=3, secret=b"another secret, also long enough")
    results = meeting.finish()
    assert "refused our secret: the file of RDMACOLL_SECRET_FILE" in str(results[2])
    for rank in (0, 1):
        assert "rank 2 of 3" in str(results[rank])
        assert "after a process at 127.0.0.1 had come with another secret" in str(results[rank])
        assert "RDMACOLL_SECRET_FILE must have the same content" in str(results[rank])


def test_a_stranger_with_another_secret_does_not_hurry_ranks_that_have_all_come(monkeypatch):
    monkeypatch.setattr(start_deadline, "_SHORTENED_S", 0.4)

    def slow(exchange):
        time.sleep(1.0)
        return exchange.allgather("text")

    meeting = Meeting()
    meeting.start(0, rank=0, size=2, body=slow)
    meeting.start("stranger", rank=1, size=2, secret=b"another secret, also long enough")
    meeting.threads[1].join(20)
    meeting.start(1, rank=1, size=2, body=slow)
    results = meeting.finish()
    assert results[0] == results[1] == ["text", "text"]


def test_an_address_keeps_its_interface():
    assert rendezvous_client._address(("fe80::1", 4000, 0, 2)) == "fe80::1%2"
    assert rendezvous_client._address(("10.0.0.1", 4000)) == "10.0.0.1"


def test_a_name_that_does_not_resolve_is_said_and_has_a_limit(monkeypatch, capfd):
    monkeypatch.setattr(start_deadline, "REPORT_EVERY_S", 0.2)
    meeting = Meeting()
    meeting.address = "no-such-host.invalid:4000"
    meeting.start(1, rank=1, size=2, timeout_s=0.5, log="warning")
    error = meeting.finish()[1]
    assert isinstance(error, ConfigError)
    assert "cannot resolve no-such-host.invalid" in str(error)
    assert "Give a name or an IP address of its host in RDMACOLL_RENDEZVOUS" in str(error)
    assert "waiting for rank 0 at no-such-host.invalid:4000: cannot resolve" in capfd.readouterr().err


def test_by_hand_the_limit_counts_from_the_last_arrival():
    meeting = Meeting()
    options = {"size": 4, "timeout_s": 1.0, "is_by_hand": True}
    for rank in range(3):
        meeting.start(rank, rank=rank, **options)
        time.sleep(0.7)
    assert not meeting.results
    for error in meeting.finish().values():
        assert "rank 3 of 4" in str(error)
        assert "within 1 s of the last arrival (RDMACOLL_START_TIMEOUT_S)" in str(error)


def test_an_own_name_that_leads_to_a_bridge_is_listened_for_everywhere(monkeypatch):
    port = free_port()
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("172.17.0.1", port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    launch = Launch("a test", 0, 2, f"node1:{port}")
    assert listen_address.own_listen_address(launch) == (socket.AF_INET, ("172.17.0.1", port))
    monkeypatch.setattr(listen_address, "bridge_of", lambda address: "docker0")
    assert listen_address.own_listen_address(launch) == (socket.AF_INET, ("0.0.0.0", port))
    assert (
        listen_address.own_listen_address(Launch("a test", 0, 2, f"172.17.0.1:{port}"))[1][0] == "172.17.0.1"
    )


BRIDGED = """
import socket
from rdmacoll._start.listen_address import bridge_of
print(bridge_of("172.29.0.1"), bridge_of("10.77.0.1") or "-", bridge_of("127.0.0.1") or "-")
"""


@pytest.fixture
def hosts():
    with Hosts(2) as made:
        yield made


@needs_root
def test_a_loopback_interface_that_is_down_is_named_with_the_cure():
    unreachable, refused = OSError(errno.ENETUNREACH, ""), OSError(errno.ECONNREFUSED, "")
    for address in ("127.0.0.1", "::1"):
        assert '"ip link set lo up"' in listen_address.connect_remark(address, unreachable)
        assert listen_address.connect_remark(address, refused) == ""
    assert listen_address.connect_remark("192.0.2.1", unreachable) == ""


def test_a_bridge_is_told_from_other_interfaces(hosts):
    name = hosts.names[0]
    ip("-n", name, "link", "add", "docker9", "type", "bridge")
    ip("-n", name, "address", "add", "172.29.0.1/16", "dev", "docker9")
    prefix = hosts.prefixes([0])[0]
    said = subprocess.run(
        [*prefix, sys.executable, "-c", BRIDGED], capture_output=True, text=True, timeout=60
    )
    assert said.stdout.split() == ["docker9", "-", "-"], said.stderr


FAILING = """
import os, time
import rdmacoll
from ranks import report
try:
    rdmacoll.init()
except rdmacoll.RdmacollError as error:
    report([type(error).__name__, str(error)], rank=int(os.environ["RDMACOLL_RANK"]))
"""


@needs_root
def test_a_path_that_drops_large_frames_is_named_on_both_sides(hosts):
    for name in hosts.names:
        # The switch stays at 1500. It would pass large frames that the sender leaves to the device to cut.
        ip("-n", name, "link", "set", "eth0", "mtu", "9000", "gso_max_segs", "1")
    with Run(FAILING, 2, prefix_of=hosts.prefixes([0, 1]), rendezvous="10.77.0.1:5090") as started:
        outcome = started.finish(60)
    for kind, text in outcome.succeeded():
        assert kind == "ConfigError", text
        assert "frames of 8948 bytes do not pass between rank 0" in text
        assert "rank 1" in text
        assert "MTU" in text


REDUCING = """
import os, time
import numpy as np
import rdmacoll
from ranks import report
rdmacoll.init()
try:
    found = rdmacoll.engine.allreduce(np.full(1 << 20, rdmacoll.rank(), np.float32), op=rdmacoll.Sum)
    report(["sum", float(found[0])], rank=rdmacoll.rank())
except rdmacoll.RdmacollError as error:
    report([type(error).__name__, str(error)], rank=rdmacoll.rank())
"""


@needs_root
def test_a_path_between_two_other_ranks_that_drops_large_frames_is_named():
    """Rank 0 has the switch's MTU, so the start and the connections of rank 0 pass."""
    with Hosts(3) as made:
        for name in made.names[1:]:
            ip("-n", name, "link", "set", "eth0", "mtu", "9000", "gso_max_segs", "1")
        prefixes = made.prefixes([0, 1, 2])
        with Run(REDUCING, 3, prefix_of=prefixes, rendezvous="10.77.0.1:5091") as started:
            outcome = started.finish(90)
    for kind, text in outcome.succeeded():
        assert kind == "RankFailedError", text
        assert "frames of 8948 bytes do not reach it within 5 s, but small ones do" in text, text
        assert "ip link set dev NAME mtu 1500" in text, text
