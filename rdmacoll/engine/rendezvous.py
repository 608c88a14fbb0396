"""The start without MPI: rank 0 listens on one address, all others come to it."""

from __future__ import annotations

import copy
import hashlib
import hmac
import json
import os
import secrets
import socket
import struct
import time
from typing import Any, Callable

from rdmacoll.engine import channel
from rdmacoll.engine.carrier import left, no_watch
from rdmacoll.engine.errors import (
    ConfigError,
    RankFailedError,
    RdmacollError,
    error_from_json,
    error_to_fields,
)
from rdmacoll.engine.launch import Launch, split_address
from rdmacoll.engine.log import Log
from rdmacoll.engine.patience import Patience
from rdmacoll.engine.rendezvous_door import Porter, hello_of
from rdmacoll.engine.rendezvous_host import RendezvousHost

_RETRY_S = 0.05
_ANSWER_S = 5.0
_TELL_S = 2.0  # how long rank 0 is looked for by who only has to tell it of an error
# As an engine does, which expects callers to speak first.
_SILENCE = "who is there says nothing, so a run has begun without this process, or it is another program"
_ANSWER_BYTES_MAX = 64 << 20


class _EarlyError(Exception):
    """The connection ended before anybody proved anything: come again."""


class RendezvousGuest:
    """The side of every rank but 0."""

    def __init__(self, launch: Launch, secret: bytes, patience: Patience, who: str, log: Log) -> None:
        self._launch = launch
        self._secret = secret
        self._patience = patience
        # Lists give this rank an address, too: it holds that until the others are here.
        self._porter = Porter(launch, secret, who, log) if launch.hosts else None
        self._connection: socket.socket | None = None
        self._reader: channel.FrameReader | None = None
        self._writer: channel.FrameWriter | None = None
        self._end: RdmacollError | None = None  # why no further round will come
        # What this rank's own door has found before rank 0 was met, and how long it is kept for rank 0.
        self._found: ConfigError | None = None
        self._tell_until = 0.0

    def join(self, host: str, pid: int) -> None:
        """Comes to rank 0, however late rank 0 is, and says who this is."""
        where = split_address(self._launch.rendezvous)
        reason = "nobody answers"
        while self._writer is None:
            try:
                self._meet(where)
            except (_EarlyError, OSError) as error:
                self._hang_up()
                reason = str(getattr(error, "strerror", None) or error)
                self._look_at_the_door(_RETRY_S)
            if self._writer is None and self._found is not None and time.monotonic() > self._tell_until:
                raise self._found
            if self._writer is None:
                self._patience.report(f"waiting for {self._launch.place(0)}: {reason}")
            if self._writer is None and self._patience.is_over():
                raise ConfigError(
                    f"{self._launch.name(self._launch.rank)} cannot reach {self._launch.place(0)} "
                    f"{self._patience.limit()}: {reason}. Is {self._launch.name(0)} started there, and does "
                    "a firewall let the port through?"
                )
        self._say(hello_of(self._launch, host, pid))
        if self._found is not None:
            self._say({"error": error_to_fields(self._found)})
            raise self._found

    def _look_at_the_door(self, within_s: float) -> None:
        if self._porter is None:
            time.sleep(within_s)
            return
        try:
            self._porter.look(within_s)
        except ConfigError as error:
            if self._writer is not None:
                self._say({"error": error_to_fields(error)})
                raise
            # Rank 0, which would wait for this rank in vain, is to hear of it, too.
            if self._found is None:
                self._found, self._tell_until = error, time.monotonic() + _TELL_S

    def _meet(self, where: tuple[str, int]) -> None:
        connection = socket.create_connection(where, timeout=_ANSWER_S)
        self._connection = connection
        if connection.getsockname() == connection.getpeername():
            # While nobody listens there, the system may choose the very same port for a caller of that host,
            # who then has met itself, and keeps the port from rank 0: off at once, without TIME_WAIT.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise _EarlyError("nobody answers")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greeting = self._exactly(connection, channel.GREETING_BYTES)
        if not greeting.startswith(channel.MAGIC):
            raise ConfigError(
                f"{self._launch.rendezvous} is not {self._launch.name(0)} of an rdmacoll job: another "
                f"program listens there. Choose another port in {self._launch.address_source(0)}."
            )
        proof = channel.caller_proof(self._secret, greeting)
        connection.settimeout(_ANSWER_S)
        connection.sendall(proof)
        answer = self._exactly(connection, channel.MAC_BYTES)
        if not hmac.compare_digest(answer, channel.listener_proof(self._secret, greeting, proof)):
            refused = "refused our secret" if answer == channel.REFUSED else "does not know our secret"
            raise ConfigError(
                f"{self._launch.place(0)} {refused}: the file of RDMACOLL_SECRET_FILE must "
                "have the same content on every host. Copy rank 0's, or put it in a shared home."
            )
        key = channel.session_key(self._secret, greeting, proof)
        self._reader = channel.FrameReader(key, b"down", _ANSWER_BYTES_MAX)
        self._writer = channel.FrameWriter(key, b"up")

    def _exactly(self, connection: socket.socket, count: int) -> bytes:
        data = bytearray()
        deadline = time.monotonic() + _ANSWER_S
        while len(data) < count:
            connection.settimeout(_RETRY_S)
            try:
                more = connection.recv(count - len(data))
            except socket.timeout:  # TimeoutError itself only from Python 3.10 on
                if time.monotonic() > deadline:
                    raise _EarlyError(_SILENCE) from None
                self._look_at_the_door(0)  # two who were given different lists may call each other
                continue
            if not more:
                raise _EarlyError("it closed the connection")
            data += more
        return bytes(data)

    def _say(self, value: Any) -> None:
        assert self._connection is not None
        assert self._writer is not None
        try:
            self._connection.settimeout(None)
            self._connection.sendall(self._writer.frame(value))
        except OSError:
            pass  # what rank 0 said before it left is more telling: exchange() reads it

    def exchange(self, text: str, watch: Callable[[], None]) -> list[str]:
        """One round: everybody's text, by rank."""
        if self._end is not None:
            raise copy.copy(self._end)
        self._say({"text": text})
        answer = self._hear(self._patience.slice_s())
        while answer is None:
            watch()
            self._look_at_the_door(0)
            # Rank 0 gives up first and says who is missing.
            if self._patience.is_over() and self._patience.grace_is_over():
                raise ConfigError(
                    f"{self._launch.place(0)} did not go on with the start {self._patience.limit()}."
                )
            answer = self._hear(self._patience.slice_s())
        texts = answer.get("texts") if isinstance(answer, dict) else None
        if not isinstance(texts, list) or len(texts) != self._launch.size:
            raise ConfigError(f"{self._launch.name(0)} spoke out of turn.")
        self.free_address()
        return [str(item) for item in texts]

    def _hear(self, within_s: float) -> Any:
        """What rank 0 says next, or None. Raises what ends the start."""
        assert self._connection is not None
        assert self._reader is not None
        self._connection.settimeout(within_s)
        try:
            while (answer := self._reader.take()) is None:
                data = self._connection.recv(1 << 16)
                if not data:
                    raise ConnectionResetError("it closed the connection")
                self._reader.add(data)
        except (socket.timeout, BlockingIOError):  # TimeoutError itself only from Python 3.10 on
            return None
        except (OSError, channel.ProtocolError) as error:
            host = split_address(self._launch.rendezvous)[0]
            self._end = left(0, host, self._launch.rendezvous, str(error), self._launch.name(0))
            raise self._end from None
        if isinstance(answer, dict) and isinstance(answer.get("waiting"), str):
            self._patience.tell(answer["waiting"])
            return None
        if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
            self._end = error_from_json(json.dumps(answer["error"]))
            raise self._end
        return answer

    def check(self) -> None:
        """Raises what rank 0 has said meanwhile, or that it is gone."""
        if self._end is None and self._hear(0.0) is not None:
            raise ConfigError(f"{self._launch.name(0)} spoke out of turn.")

    def leave(self, error: RankFailedError) -> None:
        """Says so to rank 0, which tells the others."""
        if self._writer is not None:
            self._say({"error": error_to_fields(error)})

    def free_address(self) -> None:
        """All ranks are here: the engine may have the address that this one was listed with."""
        if self._porter is not None:
            self._porter.close()
            self._porter = None

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Closes every socket; idempotent."""
        self._hang_up()
        self.free_address()


class TcpCarrier:
    """Carries texts over the rendezvous, and agrees on the job's name and secret."""

    def __init__(self, launch: Launch, file_secret: bytes, timeout_s: float | None, log: Log) -> None:
        self._file_secret = file_secret
        self._patience = patience = Patience(timeout_s, log)
        self._launch, self._host = launch, socket.gethostname()
        self._who = who = f"{self._host}, pid {os.getpid()}"
        self._side: RendezvousHost | RendezvousGuest
        if launch.rank == 0:
            host = RendezvousHost(launch, file_secret, patience, log)
            self._side = host
            self._guarded(lambda: host.gather(who))
        else:
            guest = RendezvousGuest(launch, file_secret, patience, who, log)
            self._side = guest
            self._guarded(lambda: guest.join(self._host, os.getpid()))

    def _guarded(self, step: Any) -> None:
        try:
            step()
        except BaseException as error:
            if not isinstance(error, Exception):
                self.leave(type(error).__name__)
            self.close()
            raise

    def allgather(self, text: str, watch: Callable[[], None] = no_watch) -> list[str]:
        """Everybody's text, by rank."""
        return self._side.exchange(text, watch)

    def check(self) -> None:
        """Raises what ends the start for all, as rank 0 sees it."""
        self._side.check()

    def leave(self, cause: str) -> None:
        """Everybody's error names this rank and `cause`."""
        me = self._launch.rank
        self._side.leave(left(me, self._host, self._who, cause, self._launch.name(me)))

    def job(self) -> tuple[str, bytes]:
        """Rank 0's random name, and a secret derived from the file's: that one opens no job itself."""
        name = self.allgather(secrets.token_hex(8))[0]
        return name, hmac.new(self._file_secret, b"job " + name.encode(), hashlib.sha256).digest()

    def renew(self, timeout_s: float, source: str) -> None:
        """From now on `timeout_s` counts, which `source` sets."""
        self._patience.renew(timeout_s, source)

    def close(self) -> None:
        """Closes every socket; idempotent."""
        self._side.close()
