"""The door of a rendezvous: listens at an address, and lets in whoever proves the job's secret."""

from __future__ import annotations

import errno
import ipaddress
import json
import selectors
import socket
import time
from typing import Any

from rdmacoll.engine import channel
from rdmacoll.engine.carrier import left
from rdmacoll.engine.errors import ConfigError, RdmacollError, error_from_json, error_to_fields
from rdmacoll.engine.launch import Launch, parse_address
from rdmacoll.engine.log import Log
from rdmacoll.engine.rendezvous_lookout import HERE

_FRAME_BYTES_MAX = 1 << 20
_PROOF_WITHIN_S = 10.0
_EVERYWHERE = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}
_STRANGERS_MAX = 128  # connections that have not proved the secret yet


class Guest:
    """One accepted connection, from greeting to goodbye."""

    def __init__(self, connection: socket.socket, origin: str, secret: bytes) -> None:
        self.connection = connection
        self.origin = origin
        self.since = time.monotonic()
        self.rank = -1
        self.who = ""
        self.name = ""  # what sentences call it, once its rank is known
        self._secret = secret
        self._greeting = channel.greeting()
        self._raw = bytearray()
        self._reader: channel.FrameReader | None = None
        self._writer: channel.FrameWriter | None = None
        connection.setblocking(False)
        self._push(self._greeting)

    def _push(self, data: bytes) -> None:
        # Everything that rank 0 says is small but the gathered cards; those may block for a moment.
        self.connection.settimeout(_PROOF_WITHIN_S)
        try:
            self.connection.sendall(data)
        finally:
            self.connection.setblocking(False)

    def say(self, value: Any) -> None:
        """Sends one frame. Raises OSError when the guest is gone."""
        if self._writer is not None:
            self._push(self._writer.frame(value))

    def absorb(self) -> None:
        """Reads what is there. Raises ConnectionError, ProtocolError."""
        try:
            data = self.connection.recv(65536)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError("it closed the connection")
        if self._reader is None:
            self._raw += data
            if len(self._raw) < channel.PROOF_BYTES:
                return
            proof = bytes(self._raw[: channel.PROOF_BYTES])
            data = bytes(self._raw[channel.PROOF_BYTES :])
            if not channel.is_caller_proof(self._secret, self._greeting, proof):
                self._push(channel.REFUSED)
                raise channel.ProtocolError("it does not know the job's secret")
            key = channel.session_key(self._secret, self._greeting, proof)
            self._reader = channel.FrameReader(key, b"up", _FRAME_BYTES_MAX)
            self._writer = channel.FrameWriter(key, b"down")
            self._push(channel.listener_proof(self._secret, self._greeting, proof))
        self._reader.add(data)

    def hear(self) -> Any:
        """The next frame, or None while there is none. Raises ConnectionError, ProtocolError."""
        self.absorb()
        return self._reader.take() if self._reader is not None else None

    def overhear(self) -> None:
        """Keeps what it says out of turn. Raises why it is gone."""
        try:
            self.absorb()
        except (OSError, channel.ProtocolError) as error:
            raise self.lost(error) from None

    def lost(self, error: Exception) -> RdmacollError:
        """Why this guest is gone: what it said last, or else how its connection ended."""
        try:
            while self._reader is not None and (last := self._reader.take()) is not None:
                if isinstance(last, dict) and isinstance(last.get("error"), dict):
                    return error_from_json(json.dumps(last["error"]))
        except channel.ProtocolError:
            pass  # it ended in the middle of a frame
        return left(self.rank, self.who.partition(",")[0], self.who, str(error), self.name)


def hello_of(launch: Launch, host: str, pid: int) -> dict[str, Any]:
    """What a rank says of itself when it comes."""
    return {"rank": launch.rank, "size": launch.size, "host": host, "pid": pid, "lists": launch.lists()}


def difference(launch: Launch, who: str, hello: dict[str, Any], caller: str) -> str | None:
    """The sentence on two processes that were given different lists of hosts, or None."""
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


def own_place(launch: Launch) -> tuple[socket.AddressFamily, Any]:
    """Where this rank listens for the others: family, and the socket's address. Raises ConfigError."""
    address = launch.hosts[launch.rank] if launch.hosts else launch.rendezvous
    found = parse_address(address)
    assert found is not None, address  # whoever made the launch has looked
    host, port = found
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            f"{launch.name(launch.rank)} cannot resolve {host} of its address {address}: {error.strerror}. "
            f"Give a name or an IP address of its host in {launch.address_source(launch.rank)}."
        ) from None
    family, _, _, _, where = resolved[0]
    # Some hosts resolve their own name to a loopback address: nobody else could come.
    named_loopback = host == "localhost" or host.startswith("127.") or host == "::1"
    if ipaddress.ip_address(str(where[0]).partition("%")[0]).is_loopback and not named_loopback:
        return family, (_EVERYWHERE[family], port)
    return family, where


def data_settings(launch: Launch) -> dict[str, object]:
    """Where the engine is to listen in place of the rendezvous, so that a firewall need let only addresses
    through that are in the lists. Raises ConfigError."""
    _, (host, port, *_rest) = own_place(launch)
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_unspecified:
        return {"port": port}
    if address.is_link_local or (address.is_loopback and host not in ("127.0.0.1", "::1")):
        return {}  # no address of an interface that the engine knows
    return {"port": port, "interface": host}


def listen(launch: Launch) -> socket.socket:
    """A listening socket at this rank's address. Raises ConfigError."""
    family, where = own_place(launch)
    address = launch.hosts[launch.rank] if launch.hosts else launch.rendezvous
    me, source = launch.name(launch.rank), launch.address_source(launch.rank)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(512)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            twice = f"Is {me} started twice? Otherwise choose" if launch.hosts else "Choose"
            raise ConfigError(
                f"{me} cannot listen at {address}: another program has port {where[1]}. {twice} another one "
                f"in {source}."
            ) from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(
                f"{me} cannot listen at {address}: this machine does not have that address. {source} names "
                f"the host of {me}."
            ) from None
        raise ConfigError(f"{me} cannot listen at {address}: {error.strerror}.") from None
    listener.setblocking(False)
    return listener


class Door:
    """One listener and the strangers before it, in a `selector` that whoever has the door uses and closes.
    Raises ConfigError, and leaves nothing open then."""

    def __init__(self, launch: Launch, secret: bytes, log: Log) -> None:
        self._launch = launch
        self._secret = secret
        self._log = log
        self._strangers: set[Guest] = set()
        self._listener = listen(launch)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self._listener, selectors.EVENT_READ, None)

    def look(self, stranger: Guest | None) -> tuple[Guest, dict[str, Any]] | None:
        """What the selector has seen: a call (None), or something of a stranger. Gives who has proved the
        secret, with what it said of itself."""
        if stranger is None:
            self._accept()
            return None
        try:
            hello = stranger.hear()
        except (OSError, channel.ProtocolError) as error:
            if isinstance(error, channel.ProtocolError):
                self._log.warning(f"refused a connection from {stranger.origin}: {error}.")
            self._forget(stranger)
            return None
        if hello is None:
            return None
        self._strangers.discard(stranger)
        said = hello if isinstance(hello, dict) else {}
        stranger.who = f"{said.get('host')}, pid {said.get('pid')}"
        return stranger, said

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            raise ConfigError(
                f"{self._launch.name(self._launch.rank)} cannot let the other ranks in at "
                f"{self._launch.rendezvous}: {error.strerror}. Where these are too many open files, raise "
                "the limit (ulimit -n)."
            ) from None
        if len(self._strangers) >= _STRANGERS_MAX:
            connection.close()
            return
        try:
            guest = Guest(connection, str(address[0]), self._secret)
        except OSError:
            connection.close()
            return
        self._strangers.add(guest)
        self.selector.register(connection, selectors.EVENT_READ, guest)

    def _forget(self, guest: Guest) -> None:
        self._strangers.discard(guest)
        self.selector.unregister(guest.connection)
        guest.connection.close()

    def drop_slow_strangers(self) -> None:
        """Hangs up on those who have had their time."""
        late = time.monotonic() - _PROOF_WITHIN_S
        for stranger in [guest for guest in self._strangers if guest.since < late]:
            self._forget(stranger)

    def close(self) -> None:
        """Nobody is let in any more; idempotent."""
        if self._listener.fileno() >= 0:
            self.selector.unregister(self._listener)
            self._listener.close()
        for stranger in list(self._strangers):
            self._forget(stranger)


class Porter:
    """Waits at the address of a rank that is not the one to be met: who comes here was given other lists."""

    def __init__(self, launch: Launch, secret: bytes, who: str, log: Log) -> None:
        self._launch = launch
        self._who = who
        self._callers: list[Guest] = []
        self._door = Door(launch, secret, log)
        self._selector = self._door.selector

    def look(self, within_s: float) -> None:
        """Answers whoever calls. Raises ConfigError, which the caller hears too."""
        for key, _ in self._selector.select(within_s):
            came = self._door.look(key.data)
            if came is None:
                continue
            caller, hello = came
            self._callers.append(caller)
            if hello.get("rank") == 0 and hello.get("lists") == self._launch.lists():
                self._greet(caller)
                continue
            different = difference(self._launch, self._who, hello, f"a process ({caller.who})")
            raise self._refuse(caller, ConfigError(different or self._mistaken(caller.who)))
        self._door.drop_slow_strangers()

    def _mistaken(self, caller: str) -> str:
        return (
            f"a process ({caller}) looked for {self._launch.place(0)} and came to "
            f"{self._launch.place(self._launch.rank)}, {self._who}: give every process an address of its own."
        )

    @staticmethod
    def _greet(caller: Guest) -> None:
        """Worker 0 looks who waits where. It hangs up: the address is to be free for the engine."""
        try:
            caller.say(HERE)
        except OSError:
            pass  # it looks again

    @staticmethod
    def _refuse(caller: Guest, error: ConfigError) -> ConfigError:
        try:
            caller.say({"error": error_to_fields(error)})
        except OSError:
            pass  # it has hung up, and sees so itself
        return error

    def close(self) -> None:
        """Frees the address; idempotent."""
        self._door.close()
        for caller in self._callers:
            caller.connection.close()
        self._selector.close()
