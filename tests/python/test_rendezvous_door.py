"""What a start without MPI leaves behind where a rank's address will not do."""

from __future__ import annotations

import gc
import os
import socket

import pytest
from ranks import free_port

from rdmacoll.engine.errors import ConfigError
from rdmacoll.engine.launch import Launch
from rdmacoll.engine.log import Log
from rdmacoll.engine.rendezvous import TcpCarrier

SECRET = b"0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("rank", [0, 1])
def test_an_address_that_will_not_do_leaves_no_descriptor(rank):
    gc.collect()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        hosts = [f"127.0.0.1:{free_port()}"] * 2
        hosts[rank] = f"127.0.0.1:{taken.getsockname()[1]}"
        launch = Launch("a test", rank, 2, hosts[0], hosts=tuple(hosts))
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with pytest.raises(ConfigError, match="another program has port"):
                TcpCarrier(launch, SECRET, 1.0, Log())
        assert len(os.listdir("/proc/self/fd")) == before
