"""The start without MPI from lists of addresses, equal on all processes or not."""

from __future__ import annotations

import socket
import threading

import pytest
from ranks import free_addresses
from test_rendezvous import Meeting

from rdmacoll.errors import ConfigError


def test_lists_that_differ_are_both_shown():
    first, second, third = free_addresses(3)
    meeting = Meeting()
    meeting.start(0, rank=0, size=2, lists=([first], [second]))
    meeting.start(1, rank=1, size=3, lists=([first], [second, third]))
    for error in meeting.finish().values():
        assert isinstance(error, ConfigError)
        assert f"was given worker_hosts={first}, ps_hosts={second};" in str(error)
        assert f"was given worker_hosts={first}, ps_hosts={second},{third}: give every" in str(error)


def test_a_rank_without_lists_is_told_from_one_with_lists():
    meeting = Meeting()
    (other,) = free_addresses(1)
    meeting.start(0, rank=0, size=2, lists=([meeting.address], [other]))
    meeting.start(1, rank=1, size=2)
    for error in meeting.finish().values():
        assert isinstance(error, ConfigError)
        assert "no lists of hosts: give every process the same lists" in str(error)


@pytest.mark.parametrize("has_worker_0", [False, True])
def test_who_comes_to_another_process_than_worker_0_hears_of_both_lists(has_worker_0):
    first, second, server = free_addresses(3)
    meeting = Meeting()
    if has_worker_0:
        meeting.start(0, rank=0, size=3, lists=([first, second], [server]))
    meeting.start(1, rank=1, size=3, lists=([first, second], [server]))
    meeting.start(2, rank=2, size=3, lists=([second, first], [server]))
    results = meeting.finish()
    assert len(results) == (3 if has_worker_0 else 2)
    for error in results.values():
        assert isinstance(error, ConfigError)
        assert f"worker_hosts={first},{second}, ps_hosts={server}" in str(error)
        assert f"worker_hosts={second},{first}, ps_hosts={server}" in str(error)
        assert str(error).endswith("give every process the same lists.")


def test_two_who_look_for_worker_0_at_each_others_place_hear_of_both_lists():
    first, second, third = free_addresses(3)
    meeting = Meeting()
    meeting.start("a", rank=1, size=3, lists=([first, second], [third]))
    meeting.start("b", rank=2, size=3, lists=([second, third], [first]))
    for error in meeting.finish().values():
        assert isinstance(error, ConfigError)
        assert f"worker_hosts={first},{second}, ps_hosts={third}" in str(error)
        assert f"worker_hosts={second},{third}, ps_hosts={first}" in str(error)


def test_an_address_that_leads_to_another_process_is_an_error():
    mine, server = free_addresses(2)
    port = mine.rpartition(":")[2]
    meeting = Meeting()
    meeting.start(1, rank=1, size=3, lists=([f"localhost:{port}", mine], [server]))  # worker 0 is itself
    error = meeting.finish()[1]
    assert isinstance(error, ConfigError)
    assert f"looked for worker 0 (localhost:{port}) and came to worker 1 ({mine})" in str(error)


def test_missing_processes_are_named_as_the_lists_name_them():
    hosts = free_addresses(4)
    meeting = Meeting()
    meeting.start(0, rank=0, size=4, timeout_s=0.5, lists=(hosts[:2], hosts[2:]))
    meeting.start(3, rank=3, size=4, timeout_s=0.5, lists=(hosts[:2], hosts[2:]))
    for error in meeting.finish().values():
        assert isinstance(error, ConfigError)
        assert str(error).startswith(f"worker 1 ({hosts[1]}), ps 0 ({hosts[2]}) did not come")


def test_worker_0_hears_of_what_another_has_found_before_they_met():
    first, second, server = free_addresses(3)
    meeting = Meeting()
    meeting.start(1, rank=1, size=3, lists=([first, second], [server]))
    meeting.start(2, rank=2, size=3, lists=([second, first], [server]))
    meeting.threads[1].join(20)  # it has reached worker 1
    meeting.start(0, rank=0, size=3, lists=([first, second], [server]))
    for error in meeting.finish().values():
        assert isinstance(error, ConfigError)
        assert f"worker_hosts={first},{second}, ps_hosts={server}" in str(error)
        assert f"worker_hosts={second},{first}, ps_hosts={server}" in str(error)


def test_a_resolver_that_does_not_answer_holds_up_nobody(monkeypatch):
    resolve, answers = socket.getaddrinfo, threading.Event()

    def slow(host, *arguments, **options):
        if host == "slow.invalid":
            answers.wait(60)
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    lists = free_addresses(2), ["slow.invalid:4000"]
    meeting = Meeting()
    meeting.start(0, rank=0, size=3, timeout_s=1.0, lists=lists)
    meeting.start(1, rank=1, size=3, timeout_s=1.0, lists=lists)
    try:
        for error in meeting.finish().values():
            assert isinstance(error, ConfigError)
            assert str(error).startswith("ps 0 (slow.invalid:4000) did not come")
    finally:
        answers.set()


@pytest.mark.parametrize(
    ("host", "message_part"),
    [
        ("no-such-host.invalid:4000", "ps 0 cannot resolve no-such-host.invalid of its address"),
        (
            "192.0.2.1:4000",
            "this machine does not have that address. Give an address of the host of ps 0 in ps_hosts",
        ),
    ],
)
def test_an_own_address_that_cannot_be_is_an_error(host, message_part):
    meeting = Meeting()
    meeting.start(1, rank=1, size=2, lists=(free_addresses(1), [host]))
    error = meeting.finish()[1]
    assert isinstance(error, ConfigError)
    assert message_part in str(error)


def test_an_own_address_that_is_taken_is_an_error():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        meeting = Meeting()
        meeting.start(1, rank=1, size=2, lists=(free_addresses(1), [taken]))
        error = meeting.finish()[1]
    assert isinstance(error, ConfigError)
    assert f"ps 0 cannot listen at {taken}: another program has port" in str(error)
    assert "Is ps 0 started twice? Otherwise choose another one in ps_hosts." in str(error)
