"""Timeouts of the bootstrap channel between ranks, and its errors."""

from __future__ import annotations

import threading

import pytest
from ranks import free_port

from rdmacoll._base.log import Log
from rdmacoll._start.bootstrap_exchange import MpiExchange
from rdmacoll._start.launch import Launch
from rdmacoll._start.rendezvous import TcpExchange
from rdmacoll.errors import ConfigError, RdmacollError

SECRET = b"0123456789abcdef0123456789abcdef"


class NeverDone:
    """Stands for an MPI communicator and for its request. The other ranks never come."""

    def Get_size(self) -> int:
        return 2

    def Iallgather(self, *_: object) -> NeverDone:
        return self

    def Test(self) -> bool:
        return False


def test_a_late_rank_is_waited_for_as_long_as_was_said_last():
    exchange = MpiExchange(NeverDone(), "job", SECRET, 0.05)
    with pytest.raises(ConfigError, match=r"called init\(\) within 0.05 s \(RDMACOLL_START_TIMEOUT_S\)"):
        exchange.allgather("text")
    exchange.renew(0.1, "--timeout")
    with pytest.raises(ConfigError, match=r"went on within 0.1 s \(--timeout\)"):
        exchange.allgather("text")


def test_a_start_without_a_limit_has_one_once_it_is_set():
    address = f"127.0.0.1:{free_port()}"
    errors: list[RdmacollError] = []
    silent = threading.Event()

    def host() -> None:
        exchange = TcpExchange(Launch("a test", 0, 2, address), SECRET, None, Log("error"))
        try:
            exchange.renew(0.2, "--timeout")
            exchange.allgather("text")
        except RdmacollError as error:
            errors.append(error)
        finally:
            exchange.close()
            silent.set()

    thread = threading.Thread(target=host, daemon=True)
    thread.start()
    client = TcpExchange(Launch("a test", 1, 2, address), SECRET, None, Log("error"))
    assert silent.wait(20)
    client.close()
    thread.join(20)
    assert not thread.is_alive()
    assert "rank 1" in str(errors[0])
    assert "within 0.2 s (--timeout)" in str(errors[0])
