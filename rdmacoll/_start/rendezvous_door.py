"""The listener of a rendezvous: accepts callers that prove the job's secret."""

from __future__ import annotations

import json
import secrets
import selectors
import socket
import time
from typing import Any

from rdmacoll._base import channel
from rdmacoll._base.log import Log
from rdmacoll._start.carrier import left
from rdmacoll._start.launch import Launch
from rdmacoll._start.rendezvous_link import Link
from rdmacoll._start.rendezvous_lookout import HERE
from rdmacoll._start.rendezvous_place import listen
from rdmacoll.engine.errors import ConfigError, RdmacollError, error_from_json, error_to_fields

_FRAME_BYTES_MAX = 1 << 20
_PROOF_WITHIN_S = 10.0
_SPEAK_WITHIN_S = 3.0
_STRANGERS_MAX = 256  # connections that have not proved the secret yet
_DISMISSED_S = 2.0  # a refused caller has read the refusal after so long
_ACCEPTS = 64  # callers that are accepted at once, before accepted ones are read
# Identifies this process. A rank that starts again in its process has the same value.
PROCESS = secrets.token_hex(8)


class OtherSecret(channel.ProtocolError):
    """The caller proved another secret."""


class Guest(Link):
    """One accepted connection, from the greeting to the end."""

    def __init__(self, connection: socket.socket, origin: str, secret: bytes) -> None:
        super().__init__(connection)
        self.origin = origin
        self.since = time.monotonic()
        self.rank = -1
        self.who = ""
        self.name = ""  # its name in messages, once its rank is known
        self.process = ""
        self.text: str | None = None  # its text of the current round
        self._secret = secret
        self._greeting = channel.greeting()
        self._raw = bytearray()
        self.push(self._greeting)

    def has_confirmed(self) -> bool:
        """Whether it has sent a frame after its hello, which shows that it knows of its admission."""
        return self.frames > 1

    def has_spoken(self) -> bool:
        """Whether a byte has arrived, read or not."""
        if self._raw or self._reader is not None:
            return True
        try:
            return bool(self.connection.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def absorb(self) -> None:
        """Reads the available bytes. Raises OSError, ProtocolError."""
        data = self.receive()
        if self._reader is None:
            self._raw += data
            if not channel.CALL.startswith(self._raw[: len(channel.CALL)]):
                raise channel.ProtocolError("it does not speak as a rank does")
            end = len(channel.CALL) + channel.PROOF_BYTES
            if len(self._raw) < end:
                return
            proof = bytes(self._raw[len(channel.CALL) : end])
            data = bytes(self._raw[end:])
            if not channel.is_caller_proof(self._secret, self._greeting, proof):
                self.push(channel.REFUSED)
                raise OtherSecret("it does not know the job's secret")
            key = channel.session_key(self._secret, self._greeting, proof)
            self.begin(key, b"up", b"down", _FRAME_BYTES_MAX)
            self.push(channel.listener_proof(self._secret, self._greeting, proof))
        self.add(data)

    def hear(self) -> Any:
        """The next frame, or None. Raises OSError, ProtocolError."""
        self.absorb()
        return self.take()

    def lost(self, error: Exception) -> RdmacollError:
        """The error of a lost guest: its own last message, or else the end of its connection."""
        try:
            while (last := self.take()) is not None:
                if isinstance(last, dict) and isinstance(last.get("error"), dict):
                    return error_from_json(json.dumps(last["error"]))
        except channel.ProtocolError:
            pass  # its connection ended in the middle of a frame
        return left(self.rank, self.who.partition(",")[0], self.who, str(error), self.name)


class Self:
    """This process as it presents itself to another one."""

    def __init__(self, launch: Launch, host: str, pid: int, process: str = PROCESS) -> None:
        self.launch, self.host, self.pid, self.process = launch, host, pid, process
        self.who = f"{host}, pid {pid}"
        self._begin = time.monotonic()

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


def difference(launch: Launch, who: str, hello: dict[str, Any], caller: str) -> str | None:
    """The message about two processes with different lists of hosts, or None if the lists are equal."""
    mine, theirs = launch.lists(), hello.get("lists")
    if mine == theirs:
        return None
    told = [
        f"{name} was given {', '.join(f'{key}={value}' for key, value in lists.items())}"
        if isinstance(lists, dict)
        else f"{name} no lists of hosts"
        for name, lists in ((f"{launch.name(launch.rank)} ({who})", mine), (caller, theirs))
    ]
    return f"{told[0]}; {told[1]}: give every process the same lists."


class Door:
    """One listener, and the callers without a proved secret, in a `selector` that the owner polls.

    Raises ConfigError, and then leaves nothing open.
    """

    def __init__(self, launch: Launch, secret: bytes, log: Log) -> None:
        self._launch = launch
        self._secret = secret
        self._log = log
        self._strangers: dict[Guest, None] = {}  # callers without a proof, the oldest first
        self._dismissed: dict[Guest, float] = {}  # refused callers, and when to close each
        self._listener = listen(launch)
        self.place: tuple[str, int] = self._listener.getsockname()[:2]
        self.other_secret = ""  # the address of the last caller with another secret
        self.selector = selectors.DefaultSelector()
        self.selector.register(self._listener, selectors.EVENT_READ, None)

    def has_strangers(self) -> bool:
        """Whether there are connections that have not been admitted."""
        return bool(self._strangers or self._dismissed)

    def look(self, stranger: Guest | None) -> tuple[Guest, dict[str, Any]] | None:
        """Handles an event of the selector: a new connection (None), or bytes of a stranger.

        Returns a caller that has proved the secret, with its hello.
        """
        if stranger is None:
            self._accept_all()
            return None
        if stranger in self._dismissed:
            self._discard(stranger)
            return None
        try:
            hello = stranger.hear()
        except (OSError, channel.ProtocolError) as error:
            if isinstance(error, channel.ProtocolError):
                self._log.warning(f"refused a connection from {stranger.origin}: {error}.")
            if isinstance(error, OtherSecret):
                self.other_secret = stranger.origin
            self._forget(stranger)
            return None
        if hello is None:
            return None
        self._strangers.pop(stranger, None)
        said = hello if isinstance(hello, dict) else {}
        stranger.who = f"{said.get('host')}, pid {said.get('pid')}"
        stranger.process = str(said.get("process", ""))
        return stranger, said

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
                    f"{self._launch.name(self._launch.rank)} cannot let the other ranks in at "
                    f"{self._launch.rendezvous}: {error.strerror}. Where these are too many open files, "
                    "raise the limit (ulimit -n)."
                ) from None
            self.greet(connection, str(address[0]))

    def greet(self, connection: socket.socket, origin: str) -> None:
        """Greets a caller, which this listener or the engine's has accepted."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self._strangers) >= _STRANGERS_MAX:
            # A rank sends its call at once, so silent strangers are closed first. A rank whose connection is
            # closed calls again.
            silent = (one for one in self._strangers if not one.has_spoken())
            self._forget(next(silent, None) or next(iter(self._strangers)))
        guest = Guest(connection, origin, self._secret)
        self._strangers[guest] = None
        self.selector.register(connection, selectors.EVENT_READ, guest)

    def dismiss(self, guest: Guest, last: dict[str, Any]) -> None:
        """Tells a caller with the secret why it is refused, and lets it read that."""
        self._dismissed[guest] = time.monotonic() + _DISMISSED_S
        guest.say(last)

    def _discard(self, guest: Guest) -> None:
        try:
            guest.receive()
        except OSError:
            self._dismissed[guest] = 0.0

    def _forget(self, guest: Guest) -> None:
        self._strangers.pop(guest, None)
        self.selector.unregister(guest.connection)
        guest.connection.close()

    def drop_slow_strangers(self) -> None:
        """Closes strangers that have been too slow. Silent ones have less time."""
        now = time.monotonic()
        for guest in [one for one, until in self._dismissed.items() if now > until]:
            del self._dismissed[guest]
            self.selector.unregister(guest.connection)
            guest.close()
        for guest in list(self._strangers):
            if now - guest.since < _SPEAK_WITHIN_S:
                return
            if now - guest.since > _PROOF_WITHIN_S or not guest.has_spoken():
                self._forget(guest)

    def close(self) -> None:
        """Stops listening, and closes all strangers. Idempotent."""
        if self._listener.fileno() >= 0:
            self.selector.unregister(self._listener)
            self._listener.close()
        for stranger in list(self._strangers):
            self._forget(stranger)
        for guest in self._dismissed:
            self.selector.unregister(guest.connection)
            guest.close()
        self._dismissed = {}

    def forget_in_child(self) -> None:
        """Closes a forked child's copies of the sockets. The parent's stay open."""
        self._listener.close()
        for one in [*self._strangers, *self._dismissed]:
            one.connection.close()
        self.selector.close()


class Porter:
    """Listens at the address of a rank other than 0.

    A process that connects here has other lists of hosts.
    """

    def __init__(self, launch: Launch, secret: bytes, who: str, log: Log) -> None:
        self._launch = launch
        self._who = who
        self._callers: list[Guest] = []
        self._door = Door(launch, secret, log)
        self._selector = self._door.selector

    def look(self, within_s: float) -> None:
        """Answers every caller. Raises a ConfigError, which the caller hears, too."""
        for key, _ in self._selector.select(within_s):
            came = None if key.data in self._callers else self._door.look(key.data)
            if came is None:
                continue
            caller, hello = came
            self._callers.append(caller)
            self._selector.unregister(caller.connection)
            if hello.get("rank") == 0 and hello.get("lists") == self._launch.lists():
                caller.say(HERE)  # worker 0's address check, which then closes the connection
                continue
            different = difference(self._launch, self._who, hello, f"a process ({caller.who})")
            error = ConfigError(different or self._mistaken(caller.who))
            caller.say({"error": error_to_fields(error)})
            raise error
        self._door.drop_slow_strangers()

    def _mistaken(self, caller: str) -> str:
        return (
            f"a process ({caller}) looked for {self._launch.place(0)} and came to "
            f"{self._launch.place(self._launch.rank)}, {self._who}: give every process an address of its own."
        )

    def close(self) -> None:
        """Frees the address. Idempotent."""
        self._door.close()
        for caller in self._callers:
            caller.close()
        self._selector.close()
