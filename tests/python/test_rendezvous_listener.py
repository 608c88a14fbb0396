"""Listeners of a start without MPI: descriptors after a failure, and the checks that other workers make."""

from __future__ import annotations

import gc
import os
import socket
import time

import pytest
from ranks import free_addresses, free_port
from test_rendezvous import Meeting

from rdmacoll._base.log import Log
from rdmacoll._start import rendezvous
from rdmacoll._start.launch import Launch
from rdmacoll._start.rendezvous import TcpExchange
from rdmacoll.errors import ConfigError

SECRET = b"0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("rank", [0, 1])
def test_an_address_that_will_not_do_leaves_no_descriptor(monkeypatch, rank):
    monkeypatch.setattr(rendezvous, "_OWNER_S", 0.1)
    gc.collect()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        hosts = [f"127.0.0.1:{free_port()}"] * 2
        hosts[rank] = f"127.0.0.1:{taken.getsockname()[1]}"
        launch = Launch("a test", rank, 2, hosts[0], hosts=tuple(hosts))
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with pytest.raises(ConfigError, match="another program has port"):
                TcpExchange(launch, SECRET, 1.0, Log())
        assert len(os.listdir("/proc/self/fd")) == before


def test_two_workers_0_at_swapped_addresses_name_each_other_before_anybody_else_comes():
    first, second, server = free_addresses(3)
    meeting = Meeting()
    meeting.start(0, rank=0, size=3, lists=([first, second], [server]))
    meeting.start(1, rank=0, size=3, lists=([second, first], [server]))
    for error in meeting.finish().values():
        assert isinstance(error, ConfigError)
        assert f"was given worker_hosts={first},{second}, ps_hosts={server}" in str(error)
        assert f"was given worker_hosts={second},{first}, ps_hosts={server}" in str(error)


def test_worker_0_looks_at_those_who_wait_and_they_do_not_mind():
    first, second, third, server = free_addresses(4)
    lists = ([first, second, third], [server])
    meeting = Meeting()
    meeting.start(1, rank=1, size=4, lists=lists)
    meeting.start(0, rank=0, size=4, lists=lists)
    time.sleep(1.5)  # it checks all workers, and repeats this for missing ones
    meeting.start(2, rank=2, size=4, lists=lists)
    meeting.start(3, rank=3, size=4, lists=lists)
    assert sorted(meeting.finish()) == [0, 1, 2, 3]
    assert not any(isinstance(result, Exception) for result in meeting.finish().values())
