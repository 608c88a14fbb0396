"""Callers that give up, failing threads, ports in use for a moment, and sockets that must not stay open."""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from test_rendezvous import SECRET, Meeting
from test_rendezvous_liveness import DEADLINE_S

from rdmacoll._base import threads
from rdmacoll._start import rendezvous, rendezvous_link
from rdmacoll._start.address_check import AddressCheck
from rdmacoll._start.forwarded_callers import ForwardedCallers
from rdmacoll._start.launch import Launch
from rdmacoll._start.rendezvous_client import ConnectAttempt, RendezvousClient, RetryError
from rdmacoll._start.rendezvous_link import Link
from rdmacoll._start.rendezvous_listener import LocalProcess
from rdmacoll._start.rendezvous_root import RendezvousRoot
from rdmacoll._world.running_engine import Engine
from rdmacoll.errors import ConfigError, RankFailedError, RdmacollError


def let_in(meeting: Meeting, process: str) -> ConnectAttempt:
    """Returns a call of rank 1 of 2 that rank 0 has accepted, and that then stays silent."""
    launch = Launch("a test", 1, 2, meeting.address)
    end = time.monotonic() + 20
    while True:
        attempt = ConnectAttempt(launch, SECRET)
        try:
            assert attempt.send(LocalProcess(launch, "elsewhere", 7, process).hello()) == {"welcome": True}
            return attempt
        except RetryError:
            assert time.monotonic() < end
            time.sleep(0.02)


@pytest.mark.parametrize("hangs_up", [True, False])
def test_a_caller_that_gave_up_before_it_knew_that_it_is_in_comes_again(hangs_up):
    meeting = Meeting()
    meeting.start(0, rank=0, size=2)
    earlier = let_in(meeting, "1")
    if hangs_up:
        earlier.close()
        time.sleep(0.5)
    meeting.start(1, rank=1, size=2)
    assert meeting.finish() == {0: ["text 0", "text 1"], 1: ["text 0", "text 1"]}
    earlier.close()


@pytest.mark.parametrize("resets", [False, True])
def test_a_caller_that_gave_up_and_does_not_come_again_is_named(monkeypatch, resets):
    monkeypatch.setattr(rendezvous, "SILENCE_S_MIN", 0.5)
    meeting = Meeting()
    meeting.start(0, rank=0, size=2, silence_s=0.5, timeout_s=60)
    attempt = let_in(meeting, "1")
    if resets:
        attempt.link.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        attempt.link.connection.close()
    attempt.close()
    begun = time.monotonic()
    error = meeting.finish()[0]
    assert isinstance(error, RankFailedError), error
    assert error.rank == 1
    assert "closed the connection" in str(error)
    assert time.monotonic() - begun < 5


def test_a_process_that_is_in_its_next_start_already_is_told_to_try_again():
    """Its world stands, and it has left that world. Rank 0 has not come so far."""
    meeting = Meeting()
    meeting.start(0, rank=0, size=2)
    earlier = let_in(meeting, "1")
    earlier.link.send_heartbeat(0)  # it knows of its admission
    launch = Launch("a test", 1, 2, meeting.address)
    time.sleep(0.5)
    again = ConnectAttempt(launch, SECRET)
    assert again.send(LocalProcess(launch, "elsewhere", 7, "1").hello()) == {"early": True}
    again.close()
    earlier.close()
    assert isinstance(meeting.finish()[0], RankFailedError)


def test_another_process_of_the_same_number_is_no_return():
    meeting = Meeting()
    meeting.start(0, rank=0, size=2)
    earlier = let_in(meeting, "one")
    meeting.start("another", rank=1, size=2)
    for error in meeting.finish().values():
        assert isinstance(error, ConfigError), error
        assert "two processes are rank 1" in str(error)
    earlier.close()


def _broken(*_: object) -> None:
    raise KeyError("planted")


@pytest.mark.parametrize(
    ("side", "step"), [(RendezvousRoot, "_complete_round"), (RendezvousClient, "_receive_once")]
)
def test_what_a_thread_does_not_expect_ends_the_start_on_all_ranks(monkeypatch, side, step):
    plain = getattr(side, step)

    def in_its_thread(self, *given):
        return _broken() if threading.current_thread().name == "rdmacoll-rendezvous" else plain(self, *given)

    monkeypatch.setattr(side, step, in_its_thread)
    meeting = Meeting()
    for rank in range(2):
        meeting.start(rank, rank=rank, size=2)
    begun = time.monotonic()
    results = meeting.finish()
    assert len(results) == 2
    for error in results.values():
        assert isinstance(error, RdmacollError), error
        assert "the thread rdmacoll-rendezvous failed: KeyError: 'planted'" in str(error)
        assert "please report it" in str(error)
    assert time.monotonic() - begun < DEADLINE_S


def test_a_fault_of_the_thread_that_resolves_names_ends_the_start(monkeypatch):
    monkeypatch.setattr(AddressCheck, "_unresolved", _broken)
    meeting = Meeting()
    lists = (["127.0.0.1:1", "127.0.0.1:2"], [])
    lists[0][0] = meeting.address
    meeting.start(0, rank=0, size=2, lists=lists)
    assert "KeyError: 'planted'" in str(meeting.finish()[0])


def test_a_port_that_a_socket_has_for_a_moment_is_waited_for():
    meeting = Meeting()
    host, _, port = meeting.address.partition(":")
    with socket.socket() as taken:  # it is bound but does not listen, as while it opens or closes
        taken.bind((host, int(port)))
        for rank in range(2):
            meeting.start(rank, rank=rank, size=2)
        time.sleep(0.3)
    assert meeting.finish() == {0: ["text 0", "text 1"], 1: ["text 0", "text 1"]}


def test_a_port_of_another_program_is_an_error_soon():
    meeting = Meeting()
    host, _, port = meeting.address.partition(":")
    with socket.socket() as taken:
        taken.bind((host, int(port)))
        taken.listen()
        begun = time.monotonic()
        meeting.start(0, rank=0, size=2)
        error = meeting.finish()[0]
    assert "another program has port" in str(error)
    assert time.monotonic() - begun < DEADLINE_S


def test_callers_that_nobody_has_taken_are_hung_up_on():
    ours, engines = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    numbers = [os.dup(0) for _ in range(3)]
    for number in numbers:
        engines.send(struct.pack("=i", number))
    with selectors.DefaultSelector() as selector:
        forwarded = ForwardedCallers(ours.detach(), selector, object())
        forwarded.close()
        forwarded.close()
    engines.close()
    for number in numbers:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)


def test_an_engine_that_has_ended_passes_nobody_on_however_often_it_is_asked():
    selector = selectors.DefaultSelector()
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    forwarded = ForwardedCallers(ours.detach(), selector, "mark")
    theirs.close()
    assert [*forwarded.take(), *forwarded.take()] == []
    assert not selector.get_map()
    forwarded.close()
    forwarded.close()
    selector.close()


def test_whatever_comes_while_the_address_is_kept_its_keeper_is_known():
    exchange = SimpleNamespace(address_holder=lambda: "the keeper", hold_address=_broken)
    engine = SimpleNamespace(address_holder=None, _is_over=None, _blame=None)
    with pytest.raises(KeyError, match="planted"):
        Engine.hold_address(engine, exchange)
    assert engine.address_holder == "the keeper"


class OldKernel:
    """A connection whose kernel reports less of it. retransmits: replaces the number of timeouts."""

    def __init__(self, connection: socket.socket, retransmits: int | None = None) -> None:
        self._connection = connection
        self.retransmits = retransmits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def getsockopt(self, level: int, option: int, *size: int) -> Any:
        found = self._connection.getsockopt(level, option, *size)
        if option != socket.TCP_INFO:
            return found
        own = found[2] if self.retransmits is None else self.retransmits
        return found[:2] + bytes([own]) + found[3:104]


@pytest.mark.parametrize("kernel", [lambda connection: connection, OldKernel], ids=["new", "old"])
def test_a_stopped_process_is_not_blamed_on_the_path(monkeypatch, kernel):
    monkeypatch.setattr(rendezvous_link, "PROBE_S", 0.3)
    monkeypatch.setattr(rendezvous_link, "_ANSWER_S", 0.1)
    with socket.socket() as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as stopped:  # this peer reads nothing
            link = Link(kernel(listener.accept()[0]))
            link.begin(b"key", b"down", b"up", 1 << 16)
            link.probe_path()
            link.send_heartbeat(1)
            time.sleep(0.5)
            assert not link.is_path_open()
            assert link.path_fault("here", "there") == ""
            assert link.path_fault("here", "there", has_ended=True) == ""
            assert link.is_silent(0.3)
            assert stopped.fileno() >= 0
            if kernel is OldKernel:
                link.connection.retransmits = 3
                fault = link.path_fault("here", "there")
                assert "frames of 1388 bytes do not pass between here and there" in fault
            link.connection.close()


@pytest.mark.parametrize("limited", [0, 1])
def test_a_rank_that_may_start_no_thread_says_so_to_all(monkeypatch, limited):
    # Ranks that have not met rank 0 when it ends hear nothing of its reason.
    has_met, probe_path = threading.Event(), Link.probe_path

    def probe(link: Link) -> None:
        has_met.set()
        probe_path(link)

    def check() -> None:
        if threading.current_thread() is meeting.threads[0]:
            assert limited == 0 or has_met.wait(DEADLINE_S)
            raise ConfigError("cannot start the thread x: planted.")

    monkeypatch.setattr(threads, "check", check)
    monkeypatch.setattr(Link, "probe_path", probe)
    meeting = Meeting()
    begun = time.monotonic()
    for rank in (limited, 1 - limited, 2):
        meeting.start(rank, rank=rank, size=3)
    for error in meeting.finish().values():
        assert "planted" in str(error)
    assert len(meeting.results) == 3
    assert time.monotonic() - begun < DEADLINE_S
