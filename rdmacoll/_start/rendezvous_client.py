"""The side of all ranks but 0. It connects to rank 0, and then sends heartbeats from a thread."""

from __future__ import annotations

import contextlib
import copy
import hmac
import json
import select
import socket
import struct
import threading
import time
from typing import Any, Callable

from rdmacoll._base import channel, threads
from rdmacoll._base.log import Log
from rdmacoll._start.bootstrap_exchange import left_during_start
from rdmacoll._start.launch import Launch, split_address
from rdmacoll._start.listen_address import connect_remark
from rdmacoll._start.rendezvous_link import Link
from rdmacoll._start.rendezvous_listener import LocalProcess, WorkerListener
from rdmacoll._start.start_deadline import StartDeadline
from rdmacoll.errors import (
    ConfigError,
    RankFailedError,
    RdmacollError,
    error_from_json,
    error_to_fields,
    unmet_error,
)

_NO_LOCK = contextlib.nullcontext()
_RETRY_S = 0.05
_ANSWER_S = 5.0
_TICK_S = 0.25
_REPORT_S = 2.0  # for so long a rank tries to reach rank 0 only to report an error
_REPORT_OWN_S = 10.0  # the same for an error that the rank has from the beginning: rank 0 may start later
_OLD_S = 2.0  # an error that was heard longer ago than this is raised with its age
# An engine's listener is silent, since it expects callers to speak first.
_SILENCE = "the listener is silent: a run has begun without this process, or another program has the port"
_ANSWER_BYTES_MAX = 64 << 20


class RetryError(Exception):
    """Rank 0 does not listen, or the connection ended before rank 0 has admitted this rank: try again."""


class UnresolvedError(RetryError):
    """The name of rank 0's host has no address."""


def _sleep(_within_s: float) -> None:
    time.sleep(_within_s)


class ConnectAttempt:
    """One attempt to reach the rank that listens at the rendezvous."""

    def __init__(
        self,
        launch: Launch,
        secret: bytes,
        while_waiting: Callable[[float], None] = _sleep,
        answer_s: float | None = None,
    ) -> None:
        """while_waiting: called during waits, and may take so many seconds. answer_s: the limit of each
        answer, in seconds."""
        self._launch, self._secret, self._while_waiting = launch, secret, while_waiting
        self._answer_s = _ANSWER_S if answer_s is None else answer_s
        self.link: Link | None = None

    def send(self, hello: dict[str, Any]) -> Any:
        """Connects, proves the secret, sends `hello`, returns the answer. Raises EarlyError, ConfigError."""
        try:
            return self._send(hello)
        except (RetryError, ConfigError):
            self.close()
            raise
        except (OSError, channel.ProtocolError) as error:
            self.close()
            raise RetryError(str(getattr(error, "strerror", None) or error)) from None

    def _send(self, hello: dict[str, Any]) -> Any:
        connection = self._connected()
        self.link = link = Link(connection)
        link.send_bytes(channel.CALL)
        greeting = self._exactly(link, channel.GREETING_BYTES)
        name, root = self._launch.name(0), self._launch.name_with_address(0)
        if not greeting.startswith(channel.MAGIC):
            raise ConfigError(
                f"{self._launch.rendezvous} is not {name} of an rdmacoll job: another program listens there. "
                f"Choose another port in {self._launch.address_source(0)}."
            )
        proof = channel.caller_proof(self._secret, greeting)
        link.send_bytes(proof)
        answer = self._exactly(link, channel.MAC_BYTES)
        if not hmac.compare_digest(answer, channel.listener_proof(self._secret, greeting, proof)):
            refused = "refused our secret" if answer == channel.REFUSED else "does not know our secret"
            raise ConfigError(
                f"{root} {refused}: the file of RDMACOLL_SECRET_FILE must "
                "have the same content on every host. Copy rank 0's, or put it in a shared home."
            )
        link.begin(channel.session_key(self._secret, greeting, proof), b"down", b"up", _ANSWER_BYTES_MAX)
        link.send(hello)
        return self._answer(link)

    def _connected(self) -> socket.socket:
        host, port = split_address(self._launch.rendezvous)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise UnresolvedError(f"cannot resolve {host}: {error.strerror}") from None
        last = RetryError("nobody answers")
        for address in dict.fromkeys(map(_address, (sockaddr for *_, sockaddr in found))):
            try:
                connection = socket.create_connection((address, port), timeout=self._answer_s)
            except OSError as error:
                reason = "no answer" if isinstance(error, socket.timeout) else error.strerror
                last = RetryError(f"{address}: {reason}{connect_remark(address, error)}")
                continue
            if connection.getsockname() == connection.getpeername():
                # Without a listener the system may give this very port to a caller on the same host. The
                # caller is then connected to itself and blocks rank 0's port: close it without TIME_WAIT.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        raise last

    def _exactly(self, link: Link, count: int) -> bytes:
        data = bytearray()
        deadline = time.monotonic() + self._answer_s
        while len(data) < count:
            if not _is_readable(link, _RETRY_S):
                if time.monotonic() > deadline:
                    raise RetryError(_SILENCE)
                self._while_waiting(0)  # two processes with different lists may have called each other
                continue
            data += link.receive(count - len(data))
        return bytes(data)

    def _answer(self, link: Link) -> Any:
        deadline = time.monotonic() + self._answer_s
        while (answer := link.take()) is None:
            if time.monotonic() > deadline:
                raise RetryError("it does not answer")
            if _is_readable(link, _RETRY_S):
                link.add(link.receive())
            self._while_waiting(0)
        return answer

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        if self.link is not None:
            self.link.connection.close()


def _address(sockaddr: Any) -> str:
    """The address from a result of getaddrinfo, with the interface if the address needs one."""
    return f"{sockaddr[0]}%{sockaddr[3]}" if len(sockaddr) > 3 and sockaddr[3] else str(sockaddr[0])


def _is_readable(
    link: Link, within_s: float, lock: contextlib.AbstractContextManager[Any] = _NO_LOCK
) -> bool:
    """Whether there are bytes to read. Sends queued output meanwhile. lock: guards output of two threads."""
    poll = select.poll()
    poll.register(link.connection, select.POLLIN | (select.POLLOUT if link.has_output() else 0))
    events = poll.poll(within_s * 1000)
    if events and events[0][1] & select.POLLOUT:
        with lock:
            link.flush()
    return bool(events) and bool(events[0][1] & ~select.POLLOUT)


class RendezvousClient:
    """The rendezvous side of all ranks but 0. Raises ConfigError."""

    def __init__(
        self,
        local: LocalProcess,
        secret: bytes,
        deadline: StartDeadline,
        log: Log,
        silence_s: float,
        own_error: ConfigError | None = None,
    ) -> None:
        """own_error: an error of this rank that rank 0 shall hear."""
        self._local, self._launch, self._secret = local, local.launch, secret
        self._deadline, self._silence_s = deadline, silence_s
        # With lists this rank has an address, too. It listens there until all ranks are here.
        self._worker_listener = (
            WorkerListener(local.launch, secret, local.host_pid, log) if local.launch.hosts else None
        )
        self._link: Link | None = None
        self._changed = threading.Condition()  # guards the link, and the messages from it
        self._end: RdmacollError | None = None  # the error that ends the start
        self._end_at = 0.0
        self._answer: list[str] = []
        self._is_closed = False
        self._thread: threading.Thread | None = None
        # An error that this rank or its own listener found before it met rank 0, and the time to keep it.
        self._own_error = own_error
        self._report_until = time.monotonic() + _REPORT_OWN_S

    def join(self) -> None:
        """Connects to rank 0, however late rank 0 starts, and presents this rank."""
        me, root = self._launch.name(self._launch.rank), self._launch.name_with_address(0)
        while self._link is None:
            attempt = ConnectAttempt(self._launch, self._secret, self._answer_callers)
            try:
                reason = self._check_admission(attempt.send(self._local.hello()))
                self._link = attempt.link
                continue
            except RetryError as error:
                attempt.close()
                # The traceback's frames would form a cycle with it, and keep all objects of init()'s callers.
                reason = error.with_traceback(None)
            self._answer_callers(_RETRY_S)
            if self._own_error is not None and time.monotonic() > self._report_until:
                raise self._own_error
            self._deadline.report(f"waiting for {root}: {reason}")
            if self._deadline.is_over():
                text = (
                    f"{me} cannot reach {root} {self._deadline.limit_text()}: {reason}. {self._cure(reason)}"
                )
                raise unmet_error(text, [0])
        if self._own_error is not None:
            self._link.send({"error": error_to_fields(self._own_error)})
            raise self._own_error
        self._link.probe_path()
        self._thread = threading.Thread(target=self._receive_loop, name="rdmacoll-rendezvous", daemon=True)
        threads.start(self._thread)

    def _check_admission(self, answer: Any) -> RetryError:
        """Raises an EarlyError, or the error that ends the start, unless rank 0 has admitted this rank."""
        if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
            raise error_from_json(json.dumps(answer["error"]))
        if isinstance(answer, dict) and answer.get("early"):
            raise RetryError("it is still in its previous world, or in one that has failed")
        if not isinstance(answer, dict) or not answer.get("welcome"):
            raise ConfigError(f"{self._launch.name(0)} sent an unexpected message.")
        return RetryError("")

    def _cure(self, reason: RetryError) -> str:
        if isinstance(reason, UnresolvedError):
            return f"Give a name or an IP address of its host in {self._launch.address_source(0)}."
        return (
            f"No process listens at this address: see that {self._launch.name(0)} is started there and has "
            "not failed, and that no firewall blocks the port."
        )

    def _answer_callers(self, within_s: float) -> None:
        if self._worker_listener is None:
            time.sleep(within_s)
            return
        try:
            self._worker_listener.answer_callers(within_s)
        except ConfigError as error:
            if self._thread is not None:
                self._send({"error": error_to_fields(error)})
                raise
            # Rank 0 would wait for this rank in vain, so it shall hear the error, too.
            if self._own_error is None:
                self._own_error, self._report_until = error, time.monotonic() + _REPORT_S

    def _send(self, value: Any) -> None:
        with self._changed:
            if self._link is not None:
                self._link.send(value)

    def allgather(self, text: str, watch: Callable[[], None]) -> list[str]:
        """One round: returns all ranks' texts, by rank."""
        self._answer.clear()
        self._send({"text": text})
        while True:
            with self._changed:
                self._changed.wait_for(self._has_message, _TICK_S)
                if self._answer:
                    break
                self._raise_end()
            watch()
            self._answer_callers(0)
            # Rank 0 gives up first, and names the missing ranks.
            if self._deadline.is_over() and self._deadline.grace_is_over():
                root = self._launch.name_with_address(0)
                text = f"{root} did not go on with the start {self._deadline.limit_text()}."
                raise unmet_error(text, [0])
        self.free_address()
        return list(self._answer)

    def _has_message(self) -> bool:
        return bool(self._answer) or self._end is not None

    def _raise_end(self) -> None:
        if self._end is None:
            return
        error, age = copy.copy(self._end), time.monotonic() - self._end_at
        if age > _OLD_S:
            error.args = (f"{error} ({age:.0f} s ago)",)
        raise error

    def check(self) -> None:
        """Raises an error that rank 0 has sent meanwhile, or the loss of rank 0."""
        with self._changed:
            self._raise_end()

    def leave(self, error: RankFailedError) -> None:
        """Sends the error to rank 0, which tells the other ranks."""
        self._send({"error": error_to_fields(error)})

    def say_goodbye(self) -> None:
        """Says goodbye once the world stands, so that the end of this connection is no failure for rank 0."""
        self._send({"bye": True})

    def free_address(self) -> None:
        """Closes the listener at this rank's own address once all ranks are here. The engine may use it."""
        if self._worker_listener is not None:
            self._worker_listener.close()
            self._worker_listener = None

    def close(self) -> None:
        """Closes every socket. Idempotent."""
        with self._changed:
            self._is_closed = True
        if self._link is not None:
            self._link.close()
        self.free_address()

    # The thread.

    def _receive_loop(self) -> None:
        link = self._link
        assert link is not None
        checked_at = time.monotonic()
        while True:
            try:
                is_readable = _is_readable(link, _TICK_S, self._changed)
            except (OSError, ValueError):
                return  # closed
            with self._changed:
                if self._is_closed or self._end is not None:
                    return
                now = time.monotonic()
                link.extend_limits(max(0.0, now - checked_at - 4 * _TICK_S))
                checked_at = now
                try:
                    self._receive_once(link, is_readable)
                except Exception as error:
                    if not isinstance(error, RdmacollError):
                        error = threads.fault("rdmacoll-rendezvous", error)
                        # Otherwise rank 0 would only miss this rank's heartbeats, without a reason.
                        link.send({"error": error_to_fields(error)})
                    self._end, self._end_at = error, now
                    self._changed.notify_all()

    def _receive_once(self, link: Link, is_readable: bool) -> None:
        own_name = self._launch.name(self._launch.rank)
        ends = self._launch.name_with_address(0), f"{own_name} ({self._local.host_pid})"
        try:
            try:
                if is_readable:
                    link.add(link.receive())
            finally:  # also at the end of the connection: its reason may have come with the welcome
                while (frame := link.take()) is not None:
                    self._handle(frame)
        except (OSError, channel.ProtocolError) as error:
            if fault := link.path_fault(*ends, has_ended=True):
                raise ConfigError(fault) from None
            raise self._lost(str(error)) from None
        link.send_heartbeat(0)
        self._deadline.arrived(link.heartbeat)
        if fault := link.path_fault(*ends):
            raise ConfigError(fault)
        if link.is_silent(self._silence_s):
            lost = self._lost(f"no heartbeat for {self._silence_s:g} s")
            link.send({"error": error_to_fields(lost)})
            raise lost

    def _lost(self, cause: str) -> RankFailedError:
        host = split_address(self._launch.rendezvous)[0]
        return left_during_start(0, host, self._launch.rendezvous, cause, self._launch.name(0))

    def _handle(self, frame: Any) -> None:
        if isinstance(frame, dict) and isinstance(frame.get("waiting"), str):
            self._deadline.log_now(frame["waiting"])
        elif isinstance(frame, dict) and isinstance(frame.get("error"), dict):
            raise error_from_json(json.dumps(frame["error"]))
        elif isinstance(frame, dict) and isinstance(frame.get("texts"), list):
            texts = [str(item) for item in frame["texts"]]
            if len(texts) != self._launch.size or self._answer:
                raise ConfigError(f"{self._launch.name(0)} sent an unexpected message.")
            self._answer.extend(texts)
            self._changed.notify_all()
        else:
            raise ConfigError(f"{self._launch.name(0)} sent an unexpected message.")
