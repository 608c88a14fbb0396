"""Rank 0's side of the rendezvous. Its own thread serves every connection, also during long steps."""

from __future__ import annotations

import copy
import json
import selectors
import socket
import threading
import time
from typing import Any, Callable

from rdmacoll._base import channel, threads
from rdmacoll._base.log import Log
from rdmacoll._start.address_check import AddressCheck
from rdmacoll._start.forwarded_callers import ForwardedCallers
from rdmacoll._start.job_conflicts import Verdict, judge_caller, judge_late_caller
from rdmacoll._start.listen_address import unreachable_remark
from rdmacoll._start.rendezvous_listener import LocalProcess, PeerLink, RendezvousListener
from rdmacoll._start.start_deadline import StartDeadline
from rdmacoll.errors import (
    ConfigError,
    RankFailedError,
    RdmacollError,
    error_from_json,
    error_to_fields,
    unmet_error,
)

_TICK_S = 0.25
_WAKE = object()  # in the selector: `close` wakes the thread
_FORWARDED = object()  # in the selector: the engine listens at this address, and passes on a caller


class RendezvousRoot:
    """Gathers all other ranks, then a text from each per round. Raises AddressTakenError, ConfigError."""

    def __init__(
        self,
        local: LocalProcess,
        secret: bytes,
        deadline: StartDeadline,
        log: Log,
        silence_s: float,
        *,
        shares_port: bool = False,
    ) -> None:
        self._local, self._launch, self._log = local, local.launch, log
        self._deadline, self._silence_s, self._shares_port = deadline, silence_s, shares_port
        self._peers: dict[int, PeerLink] = {}
        # Ranks that gave up before they knew of their admission: the time to come again, and else the error.
        self._disconnected: dict[int, tuple[float, RdmacollError]] = {}
        self._changed = threading.Condition()  # guards all fields
        self._end: RdmacollError | None = None  # the error that ends the start
        self._text: str | None = None  # this rank's text of the current round
        self._answer: list[str] = []
        self._is_gathered = self._is_closed = False
        self._world_began_at: float | None = None
        self._members: dict[int, tuple[str, str]] = {}
        self._is_over: Callable[[], bool] = lambda: False
        self._blame: Callable[[str], None] = lambda _: None
        self._checked_at = time.monotonic()
        self._listener = RendezvousListener(self._launch, secret, log)
        self._selector = self._listener.selector
        self._address_check = AddressCheck(self._launch, secret, self._selector)
        self._forwarded: ForwardedCallers | None = None
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, _WAKE)
        self._thread = threading.Thread(target=self._run, name="rdmacoll-rendezvous", daemon=True)
        threads.start(self._thread)

    # Called on the thread that starts the engine.

    def gather(self) -> None:
        """Returns once every rank is here and has proved the secret."""
        unreachable = unreachable_remark(self._listener.address[0])

        def remark() -> str:
            other = self._listener.other_secret
            return unreachable + (f"; a process at {other} came with another secret" if other else "")

        self._wait(
            lambda: self._is_gathered,
            lambda: f"waiting for {self._late()}{remark()}",
            lambda: (
                f"{self._late()} did not come to the rendezvous {self._deadline.limit_text()}{remark()}. "
                "Are they started, and is the address reachable?"
            ),
        )
        with self._changed:
            self._address_check.close()
            if self._shares_port:  # the engine will listen there
                self._listener.close()

    def allgather(self, text: str, watch: Callable[[], None]) -> list[str]:
        """One round: returns all ranks' texts, by rank, and sends them to all ranks."""
        with self._changed:
            self._text = text
            self._answer.clear()
            self._complete_round()

        self._wait(
            lambda: bool(self._answer),
            lambda: f"waiting for {self._late()}",
            lambda: f"{self._late()} did not go on with the start {self._deadline.limit_text()}.",
            watch,
        )
        return list(self._answer)

    def _here(self) -> set[int]:
        """The ranks that have come, and later those whose text of the round has come."""
        with self._changed:
            return {
                rank for rank, one in self._peers.items() if one.text is not None or not self._is_gathered
            }

    def _late(self) -> str:
        return self._launch.missing(self._here())

    def _wait(
        self,
        is_done: Callable[[], bool],
        describe: Callable[[], str],
        expire: Callable[[], str],
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: is_done() or self._end is not None, _TICK_S)
                if is_done():
                    return
                self._raise_end()
            try:
                watch()
                if self._deadline.is_report_due():
                    self._send_waiting_line(self._deadline.log_now(describe()))
                if self._deadline.is_over():
                    raise unmet_error(expire(), set(range(1, self._launch.size)) - self._here())
            except RdmacollError as error:
                with self._changed:
                    self._end_start(error)
                raise

    def check(self) -> None:
        """Raises an error that ends the start, from a peer or about a lost one. All ranks have heard it."""
        with self._changed:
            self._raise_end()

    def _raise_end(self) -> None:
        if self._end is not None:
            raise copy.copy(self._end)

    def leave(self, error: RankFailedError) -> None:
        """Ends the start, and tells all connected ranks."""
        with self._changed:
            self._end_start(error)

    def hold_address(self, is_over: Callable[[], bool], blame: Callable[[str], None]) -> None:
        """Keeps the address for this job while the world stands, so that ranks of another job find it in use.

        is_over: whether the world is over. blame: ends it on all ranks. This object's thread calls both.
        """
        with self._changed:
            self._is_over, self._blame = is_over, blame
            self._members = self._present()
            self._world_began_at = time.monotonic()
            for peer in self._peers.values():
                self._drop(peer)
            self._peers = {}

    def share_address(self, callers: Callable[[], int]) -> None:
        """Like `BootstrapExchange.share_address`."""
        descriptor = callers() if self._shares_port else -1
        if descriptor < 0:
            return
        with self._changed:
            self._forwarded = ForwardedCallers(descriptor, self._selector, _FORWARDED)

    def close(self) -> None:
        """Closes every socket. Idempotent."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._wake_sender.send(b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._address_check.close()
        self._listener.close()
        for peer in self._peers.values():
            peer.close()
        if self._forwarded is not None:
            self._forwarded.close()
        for one in (self._selector, self._wake_receiver, self._wake_sender):
            one.close()

    def release_in_child(self) -> None:
        """Closes a forked child's copies of the sockets. Otherwise the address would outlive the parent."""
        self._is_closed = True
        self._listener.release_in_child()
        for peer in self._peers.values():
            peer.connection.close()
        if self._forwarded is not None:
            self._forwarded.release_in_child()
        self._wake_receiver.close()
        self._wake_sender.close()

    # Called on this object's thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                idle = self._world_began_at is not None and not self._listener.has_pending_callers()
            events = self._selector.select(None if idle else _TICK_S)
            with self._changed:
                if self._is_closed:
                    return
                try:
                    for key, mask in events:
                        self._handle_event(key.data, mask)
                    self._check_time_limits()
                except RdmacollError as error:
                    self._end_start(error)
                except Exception as error:
                    self._end_start(threads.fault(self._thread.name, error))
            if self._end is not None:  # a caller without a free descriptor is reported again and again
                time.sleep(_TICK_S / 5)

    def _handle_event(self, data: Any, mask: int) -> None:
        if data is _WAKE:
            self._wake_receiver.recv(64)
        elif data is _FORWARDED and self._forwarded is not None:
            for connection, origin in self._forwarded.take():
                self._listener.greet(connection, origin)
        elif data is self._address_check:
            self._address_check.handle_event()
        elif data is not None and data.connection.fileno() < 0:
            return  # closed since the selector reported it
        elif data is not None and data.rank >= 0:
            if mask & selectors.EVENT_WRITE:
                data.flush()
                self._watch_output(data)
            if mask & selectors.EVENT_READ:
                self._handle(data)
        else:
            admitted = self._listener.handle_event(data)
            if admitted is not None:
                self._admit(*admitted)

    def _handle(self, peer: PeerLink) -> None:
        try:
            peer.read_available()
            while (frame := peer.take()) is not None:
                if isinstance(frame, dict) and isinstance(frame.get("error"), dict):
                    raise error_from_json(json.dumps(frame["error"]))
                if isinstance(frame, dict) and frame.get("bye"):
                    self._drop(peer)
                    return
                is_text = isinstance(frame, dict) and isinstance(frame.get("text"), str)
                if not is_text or peer.text is not None:
                    raise ConfigError(f"{peer.name} ({peer.host_pid}) sent an unexpected message.")
                peer.text = frame["text"]
        except (OSError, channel.ProtocolError) as error:
            if self._is_watched(peer):
                self._selector.unregister(peer.connection)
            if fault := peer.path_fault(*self._ends(peer), has_ended=True):
                raise ConfigError(fault) from None
            if not peer.has_confirmed():
                self._await_reconnect(peer, error)
                return
            raise peer.lost(error) from None
        self._watch_output(peer)
        self._complete_round()

    def _await_reconnect(self, peer: PeerLink, error: Exception) -> None:
        """Waits for a peer to come again soon: it may have given up before it knew of its admission."""
        self._drop(peer)
        if self._peers.get(peer.rank) is peer:
            del self._peers[peer.rank]
            self._disconnected[peer.rank] = time.monotonic() + self._silence_s, peer.lost(error)

    def _complete_round(self) -> None:
        """Ends the round once all ranks' texts are here."""
        if not self._is_gathered:
            here = len(self._peers) == self._launch.size - 1
            self._is_gathered = here and all(peer.is_path_open() for peer in self._peers.values())
            if self._is_gathered:
                self._deadline.restore()
                self._changed.notify_all()
        texts = {rank: peer.text for rank, peer in self._peers.items()}
        if self._text is None or len(texts) < self._launch.size - 1:
            return
        texts[0] = self._text
        answer = [text for _, text in sorted(texts.items()) if text is not None]
        if len(answer) < self._launch.size:
            return
        self._text = None
        self._answer.extend(answer)
        for peer in self._peers.values():
            peer.text = None
            self._send(peer, {"texts": answer})
        self._changed.notify_all()

    def _present(self) -> dict[int, tuple[str, str]]:
        return {0: self._local.identity(), **{rank: one.identity() for rank, one in self._peers.items()}}

    def _admit(self, peer: PeerLink, hello: dict[str, Any]) -> None:
        if self._world_began_at is not None:
            age_s, is_over = time.monotonic() - self._world_began_at, self._is_over()
            verdict = judge_late_caller(
                self._local, self._members, hello, peer.host_pid, world_age_s=age_s, is_over=is_over
            )
        elif self._end is not None:
            self._listener.refuse(peer, {"error": error_to_fields(self._end)})
            return
        else:
            for one in [*self._peers.values()]:
                if (one.rank, one.process) == (hello.get("rank"), peer.process) and not one.has_confirmed():
                    self._await_reconnect(one, ConnectionResetError("it came again"))
            verdict = judge_caller(self._local, self._present(), hello, peer.host_pid, peer.origin)
        if verdict.error or verdict.must_retry:
            self._refuse(peer, verdict)
            return
        peer.rank, peer.name = hello["rank"], self._launch.name(hello["rank"])
        self._peers[peer.rank] = peer
        self._disconnected.pop(peer.rank, None)
        self._deadline.arrived()
        peer.send({"welcome": True})
        peer.probe_path()
        self._handle(peer)  # frames that came with the hello

    def _refuse(self, peer: PeerLink, verdict: Verdict) -> None:
        if verdict.must_retry:
            self._listener.refuse(peer, {"early": True})
            return
        error = ConfigError(verdict.error)
        self._listener.refuse(peer, {"error": error_to_fields(error)})
        if not verdict.ends_job:
            self._log.warning(f"refused {peer.host_pid}: {error}")
        elif self._world_began_at is None:
            raise error
        else:
            self._blame(str(error))  # the engine prints it

    def _check_time_limits(self) -> None:
        now = time.monotonic()
        suspended_s = max(0.0, now - self._checked_at - 4 * _TICK_S)  # this process did not run
        self._checked_at = now
        self._listener.drop_slow_callers()
        if self._world_began_at is not None or self._end is not None:
            return
        if self._listener.other_secret and not self._is_gathered:
            self._deadline.shorten(f"a process at {self._listener.other_secret} had come with another secret")
        if not self._is_gathered:
            self._address_check.advance(self._local.hello())
        for until, error in self._disconnected.values():
            if now > until:
                raise error
        for peer in [one for one in self._peers.values() if self._is_watched(one)]:
            peer.extend_limits(suspended_s)
            peer.send_heartbeat(self._deadline.arrivals)
            self._watch_output(peer)
            if fault := peer.path_fault(*self._ends(peer)):
                raise ConfigError(fault)
            if peer.is_silent(self._silence_s):
                raise peer.lost(TimeoutError(f"no heartbeat for {self._silence_s:g} s"))

    def _ends(self, peer: PeerLink) -> tuple[str, str]:
        return f"{self._launch.name(0)} ({self._local.host_pid})", f"{peer.name} ({peer.host_pid})"

    def _end_start(self, error: RdmacollError) -> None:
        if self._end is None:
            self._end = error
            for peer in self._peers.values():
                peer.send({"error": error_to_fields(error)})
            self._changed.notify_all()

    def _send(self, peer: PeerLink, value: Any) -> None:
        peer.send(value)
        self._watch_output(peer)

    def _watch_output(self, peer: PeerLink) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.has_output() else 0)
        if self._is_watched(peer) and self._selector.get_key(peer.connection).events != events:
            self._selector.modify(peer.connection, events, peer)

    def _is_watched(self, peer: PeerLink) -> bool:
        descriptor = peer.connection.fileno()
        return descriptor >= 0 and descriptor in self._selector.get_map()

    def _drop(self, peer: PeerLink) -> None:
        if self._is_watched(peer):
            self._selector.unregister(peer.connection)
        peer.close()

    def _send_waiting_line(self, text: str) -> None:
        """Sends the line to all ranks of a start by hand, since a person may watch any terminal."""
        with self._changed:
            for peer in self._peers.values() if self._deadline.is_by_hand else ():
                self._send(peer, {"waiting": text})
