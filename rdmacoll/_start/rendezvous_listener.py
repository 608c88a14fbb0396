"""The listener of a rendezvous: accepts callers that prove the job's secret."""

from __future__ import annotations

import functools
import json
import os
import secrets
import selectors
import socket
import time
from typing import Any

from rdmacoll._base import channel
from rdmacoll._base.log import Log
from rdmacoll._start.address_check import PRESENT
from rdmacoll._start.bootstrap_exchange import left_during_start
from rdmacoll._start.launch import Launch
from rdmacoll._start.listen_address import listen
from rdmacoll._start.rendezvous_link import Link
from rdmacoll.errors import ConfigError, RdmacollError, error_from_json, error_to_fields

_FRAME_BYTES_MAX = 1 << 20
_PROOF_WITHIN_S = 10.0
_FIRST_BYTE_WITHIN_S = 3.0
_UNPROVEN_MAX = 256  # connections that have not proved the secret yet
_REFUSAL_READ_S = 2.0  # a refused caller has read the refusal after so long
_ACCEPTS = 64  # callers that are accepted at once, before accepted ones are read


@functools.lru_cache(maxsize=1)
def _identity_of(pid: int) -> str:
    del pid  # forked children have the cache of their parent, and another pid
    return secrets.token_hex(8)


def process_id() -> str:
    """Identifies this process. A rank that starts again in its process has the same value."""
    return _identity_of(os.getpid())


class WrongSecretError(channel.ProtocolError):
    """The caller proved another secret."""


class PeerLink(Link):
    """One accepted connection, from the greeting to the end."""

    def __init__(self, connection: socket.socket, origin: str, secret: bytes) -> None:
        super().__init__(connection)
        self.origin = origin
        self.accepted_at = time.monotonic()
        self.rank = -1
        self.host_pid = ""
        self.name = ""  # its name in messages, once its rank is known
        self.process = ""
        self.text: str | None = None  # its text of the current round
        self._secret = secret
        self._greeting = channel.greeting()
        self._raw = bytearray()
        self.send_bytes(self._greeting)

    def identity(self) -> tuple[str, str]:
        """Its host and pid as text, and its process."""
        return self.host_pid, self.process

    def has_confirmed(self) -> bool:
        """Whether it has sent a frame after its hello, which shows that it knows of its admission."""
        return self.frames > 1

    def has_sent_bytes(self) -> bool:
        """Whether a byte has arrived, read or not."""
        if self._raw or self._reader is not None:
            return True
        try:
            return bool(self.connection.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def read_available(self) -> None:
        """Reads the available bytes. Raises OSError, ProtocolError."""
        data = self.receive()
        if self._reader is None:
            self._raw += data
            if not channel.CALL.startswith(self._raw[: len(channel.CALL)]):
                raise channel.ProtocolError("it does not speak the protocol of ranks")
            end = len(channel.CALL) + channel.PROOF_BYTES
            if len(self._raw) < end:
                return
            proof = bytes(self._raw[len(channel.CALL) : end])
            data = bytes(self._raw[end:])
            if not channel.is_caller_proof(self._secret, self._greeting, proof):
                self.send_bytes(channel.REFUSED)
                raise WrongSecretError("it does not know the job's secret")
            key = channel.session_key(self._secret, self._greeting, proof)
            self.begin(key, b"up", b"down", _FRAME_BYTES_MAX)
            self.send_bytes(channel.listener_proof(self._secret, self._greeting, proof))
        self.add(data)

    def read_frame(self) -> Any:
        """The next frame, or None. Raises OSError, ProtocolError."""
        self.read_available()
        return self.take()

    def lost(self, error: Exception) -> RdmacollError:
        """The error of a lost peer: its own last message, or else the end of its connection."""
        try:
            while (last := self.take()) is not None:
                if isinstance(last, dict) and isinstance(last.get("error"), dict):
                    return error_from_json(json.dumps(last["error"]))
        except channel.ProtocolError:
            pass  # its connection ended in the middle of a frame
        return left_during_start(
            self.rank, self.host_pid.partition(",")[0], self.host_pid, str(error), self.name
        )


class LocalProcess:
    """This process as it presents itself to another one."""

    def __init__(self, launch: Launch, host: str, pid: int, process: str = "") -> None:
        """process: identifies the process; "": as `process_id` does."""
        self.launch, self.host, self.pid, self.process = launch, host, pid, process or process_id()
        self.host_pid = f"{host}, pid {pid}"
        self._begin = time.monotonic()

    def identity(self) -> tuple[str, str]:
        """Its host and pid as text, and its process."""
        return self.host_pid, self.process

    def age_s(self) -> float:
        """Seconds since this start began."""
        return time.monotonic() - self._begin

    def hello(self) -> dict[str, Any]:
        """The content of the first frame."""
        launch = self.launch
        return {
            "rank": launch.rank,
            "size": launch.size,
            "host": self.host,
            "pid": self.pid,
            "lists": launch.lists(),
            "job": launch.job,
            "process": self.process,
            "age_s": round(self.age_s(), 3),
        }


def list_difference(launch: Launch, host_pid: str, hello: dict[str, Any], caller: str) -> str | None:
    """The message about two processes with different lists of hosts, or None if the lists are equal."""
    own_lists, peer_lists = launch.lists(), hello.get("lists")
    if own_lists == peer_lists:
        return None
    descriptions = [
        f"{name} was given {', '.join(f'{key}={value}' for key, value in lists.items())}"
        if isinstance(lists, dict)
        else f"{name} no lists of hosts"
        for name, lists in ((f"{launch.name(launch.rank)} ({host_pid})", own_lists), (caller, peer_lists))
    ]
    return f"{descriptions[0]}; {descriptions[1]}: give every process the same lists."


class RendezvousListener:
    """One listener, and the callers without a proved secret, in a `selector` that the owner polls.

    Raises ConfigError, and then leaves nothing open.
    """

    def __init__(self, launch: Launch, secret: bytes, log: Log) -> None:
        self._launch = launch
        self._secret = secret
        self._log = log
        self._unproven: dict[PeerLink, None] = {}  # callers without a proof, the oldest first
        self._refused: dict[PeerLink, float] = {}  # refused callers, and when to close each
        self._listener = listen(launch)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self.other_secret = ""  # the address of the last caller with another secret
        self.selector = selectors.DefaultSelector()
        self.selector.register(self._listener, selectors.EVENT_READ, None)

    def has_pending_callers(self) -> bool:
        """Whether there are connections that have not been admitted."""
        return bool(self._unproven or self._refused)

    def handle_event(self, caller: PeerLink | None) -> tuple[PeerLink, dict[str, Any]] | None:
        """Handles an event of the selector: a new connection (None), or bytes of an unproven caller.

        Returns a caller that has proved the secret, with its hello.
        """
        if caller is None:
            self._accept_all()
            return None
        if caller in self._refused:
            self._drain(caller)
            return None
        try:
            hello = caller.read_frame()
        except (OSError, channel.ProtocolError) as error:
            if isinstance(error, channel.ProtocolError):
                self._log.warning(f"refused a connection from {caller.origin}: {error}.")
            if isinstance(error, WrongSecretError):
                self.other_secret = caller.origin
            self._close_unproven(caller)
            return None
        if hello is None:
            return None
        self._unproven.pop(caller, None)
        fields = hello if isinstance(hello, dict) else {}
        caller.host_pid = f"{fields.get('host')}, pid {fields.get('pid')}"
        caller.process = str(fields.get("process", ""))
        return caller, fields

    def _accept_all(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue
            except OSError as error:
                raise ConfigError(
                    f"{self._launch.name(self._launch.rank)} cannot accept the other ranks at "
                    f"{self._launch.rendezvous}: {error.strerror}. If too many files are open, raise the "
                    "limit (ulimit -n)."
                ) from None
            self.greet(connection, str(address[0]))

    def greet(self, connection: socket.socket, origin: str) -> None:
        """Greets a caller, which this listener or the engine's has accepted."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self._unproven) >= _UNPROVEN_MAX:
            # A rank sends its call at once, so silent callers are closed first. A rank whose connection is
            # closed calls again.
            silent = (one for one in self._unproven if not one.has_sent_bytes())
            self._close_unproven(next(silent, None) or next(iter(self._unproven)))
        peer = PeerLink(connection, origin, self._secret)
        self._unproven[peer] = None
        self.selector.register(connection, selectors.EVENT_READ, peer)

    def refuse(self, peer: PeerLink, last: dict[str, Any]) -> None:
        """Tells a caller with the secret why it is refused, and lets it read that."""
        self._refused[peer] = time.monotonic() + _REFUSAL_READ_S
        peer.send(last)

    def _drain(self, peer: PeerLink) -> None:
        try:
            peer.receive()
        except OSError:
            self._refused[peer] = 0.0

    def _close_unproven(self, peer: PeerLink) -> None:
        self._unproven.pop(peer, None)
        self.selector.unregister(peer.connection)
        peer.connection.close()

    def drop_slow_callers(self) -> None:
        """Closes callers that have been too slow. Silent ones have less time."""
        now = time.monotonic()
        for peer in [one for one, until in self._refused.items() if now > until]:
            del self._refused[peer]
            self.selector.unregister(peer.connection)
            peer.close()
        for peer in list(self._unproven):
            if now - peer.accepted_at < _FIRST_BYTE_WITHIN_S:
                return
            if now - peer.accepted_at > _PROOF_WITHIN_S or not peer.has_sent_bytes():
                self._close_unproven(peer)

    def close(self) -> None:
        """Stops listening, and closes all callers. Idempotent."""
        if self._listener.fileno() >= 0:
            self.selector.unregister(self._listener)
            self._listener.close()
        for caller in list(self._unproven):
            self._close_unproven(caller)
        for peer in self._refused:
            self.selector.unregister(peer.connection)
            peer.close()
        self._refused = {}

    def release_in_child(self) -> None:
        """Closes a forked child's copies of the sockets. The parent's stay open."""
        self._listener.close()
        for one in [*self._unproven, *self._refused]:
            one.connection.close()
        self.selector.close()


class WorkerListener:
    """Listens at the address of a rank other than 0.

    A process that connects here has other lists of hosts.
    """

    def __init__(self, launch: Launch, secret: bytes, host_pid: str, log: Log) -> None:
        self._launch = launch
        self._who = host_pid
        self._callers: list[PeerLink] = []
        self._rendezvous_listener = RendezvousListener(launch, secret, log)
        self._selector = self._rendezvous_listener.selector

    def answer_callers(self, within_s: float) -> None:
        """Answers every caller. Raises a ConfigError, which the caller hears, too."""
        for key, _ in self._selector.select(within_s):
            admitted = None if key.data in self._callers else self._rendezvous_listener.handle_event(key.data)
            if admitted is None:
                continue
            caller, hello = admitted
            self._callers.append(caller)
            self._selector.unregister(caller.connection)
            if hello.get("rank") == 0 and hello.get("lists") == self._launch.lists():
                caller.send(PRESENT)  # worker 0's address check, which then closes the connection
                continue
            different = list_difference(self._launch, self._who, hello, f"a process ({caller.host_pid})")
            error = ConfigError(different or self._wrong_address(caller.host_pid))
            caller.send({"error": error_to_fields(error)})
            raise error
        self._rendezvous_listener.drop_slow_callers()

    def _wrong_address(self, caller: str) -> str:
        return (
            f"a process ({caller}) looked for {self._launch.name_with_address(0)} and came to "
            f"{self._launch.name_with_address(self._launch.rank)}, {self._who}: give every process an "
            "address of its own."
        )

    def close(self) -> None:
        """Frees the address. Idempotent."""
        self._rendezvous_listener.close()
        for caller in self._callers:
            caller.close()
        self._selector.close()
