"""The refusal of a start on rank 0 if it can have no thread to serve the other ranks."""

from __future__ import annotations

import time

from rdmacoll._base.log import Log
from rdmacoll._start.launch import Launch
from rdmacoll._start.rendezvous_listener import RendezvousListener
from rdmacoll.errors import RdmacollError, error_to_fields

_COME_WITHIN_S = 10.0  # limit for the arrival of ranks that one launcher starts
_READ_WITHIN_S = 1.0
_TICK_S = 0.1


def refuse_all(launch: Launch, secret: bytes, log: Log, error: RdmacollError) -> None:
    """Tells `error` to every rank that comes, until all have heard it, or for some seconds.

    Raises ConfigError if rank 0 cannot listen.
    """
    listener = RendezvousListener(launch, secret, log)
    log.warning(f"{error} This rank waits for the other ranks, so that they get this error too.")
    reached: set[object] = set()
    until = time.monotonic() + _COME_WITHIN_S
    try:
        while time.monotonic() < until:
            for key, _ in listener.selector.select(_TICK_S):
                admitted = listener.handle_event(key.data)
                if admitted is not None:
                    peer, hello = admitted
                    listener.refuse(peer, {"error": error_to_fields(error)})
                    reached.add(hello.get("rank"))
            listener.drop_slow_callers()
            if reached >= set(range(1, launch.size)):
                until = min(
                    until, time.monotonic() + (_READ_WITHIN_S if listener.has_pending_callers() else 0.0)
                )
    finally:
        listener.close()
        listener.selector.close()
