"""The start without MPI: rank 0 listens on one address, all others come to it."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import socket
import time
from typing import Any, Callable

from rdmacoll._base import threads
from rdmacoll._base.log import Log
from rdmacoll._start.carrier import Keeper, left, no_watch
from rdmacoll._start.launch import Launch
from rdmacoll._start.patience import Patience
from rdmacoll._start.rendezvous_door import PROCESS, Self
from rdmacoll._start.rendezvous_guest import Call, EarlyError, RendezvousGuest
from rdmacoll._start.rendezvous_host import RendezvousHost
from rdmacoll._start.rendezvous_place import AddressTakenError
from rdmacoll._start.rendezvous_refusal import refuse_all
from rdmacoll.engine.errors import ConfigError, error_from_json

# Signs of life come once a second, by a thread that Python may keep waiting.
SILENCE_S_MIN = 5.0
_PREVIOUS_S = 5.0  # a world that is about to end frees the address within this time
_RETRY_S = 0.1
_OWNER_S = 1.0  # a rank 0 answers by a thread of its own, another program perhaps never


class TcpCarrier:
    """Carries texts over the rendezvous, and agrees on the job's name and secret. Raises ConfigError and
    RankFailedError."""

    def __init__(
        self,
        launch: Launch,
        file_secret: bytes,
        timeout_s: float | None,
        log: Log,
        *,
        is_by_hand: bool = False,
        silence_s: float = SILENCE_S_MIN,
        shares_port: bool = False,
        process: str = PROCESS,
    ) -> None:
        """timeout_s: of the whole start, by hand since the last rank has come. silence_s: a rank without a
        sign of life for so long is gone. shares_port: the engine will listen at rank 0's address. process:
        what tells this process from others."""
        refused = self._without_threads(launch, file_secret, log)
        self._file_secret, self._launch = file_secret, launch
        self._patience = Patience(timeout_s, log, is_by_hand=is_by_hand)
        self._me = Self(launch, socket.gethostname(), os.getpid(), process)
        self._is_kept = False
        self._side: RendezvousHost | RendezvousGuest
        silence_s = max(SILENCE_S_MIN, silence_s)
        if launch.rank == 0:
            host = self._host(log, silence_s, shares_port)
            self._side = host
            self._guarded(host.gather)
        else:
            guest = RendezvousGuest(self._me, file_secret, self._patience, log, silence_s, refused)
            self._side = guest
            self._guarded(guest.join)

    @staticmethod
    def _without_threads(launch: Launch, secret: bytes, log: Log) -> ConfigError | None:
        """Why this process can have no further thread, if so: what another rank is to tell rank 0. On rank 0
        the others hear it, and it is raised."""
        try:
            threads.check()
        except ConfigError as error:
            if launch.rank == 0:
                refuse_all(launch, secret, log, error)
                raise
            return error
        return None

    def _host(self, log: Log, silence_s: float, shares_port: bool) -> RendezvousHost:
        begun = time.monotonic()
        while True:
            try:
                return RendezvousHost(
                    self._me, self._file_secret, self._patience, log, silence_s, shares_port=shares_port
                )
            except AddressTakenError as error:
                if time.monotonic() > begun + self._owner_leaves_within():
                    raise ConfigError(str(error)) from None
            time.sleep(_RETRY_S)

    def _owner_leaves_within(self) -> float:
        """Another socket has the address. If that is rank 0 of a job, it hears that there is a second one,
        and its answer is raised. Seconds after which the address will not be free any more."""
        call = Call(self._launch, self._file_secret, answer_s=_OWNER_S)
        try:
            answer = call.say(self._me.hello())
        except EarlyError:
            return _OWNER_S  # a socket that does not listen yet, or that is being closed, or never answers
        except ConfigError:
            return 0.0  # another program, or a job with another secret
        finally:
            call.close()
        if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
            raise error_from_json(json.dumps(answer["error"]))
        return _PREVIOUS_S

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
        self._side.leave(left(me, self._me.host, self._me.who, cause, self._launch.name(me)))

    def job(self) -> tuple[str, bytes]:
        """Rank 0's random name, and a secret derived from the file's: that one opens no job itself."""
        name = self.allgather(secrets.token_hex(8))[0]
        return name, hmac.new(self._file_secret, b"job " + name.encode(), hashlib.sha256).digest()

    def renew(self, timeout_s: float, source: str) -> None:
        """From now on `timeout_s` counts, which `source` sets."""
        self._patience.renew(timeout_s, source)

    def share_address(self, callers: Callable[[], int]) -> None:
        """Rank 0 hears who calls at its address, also where the engine listens there."""
        if isinstance(self._side, RendezvousHost):
            self._side.share_address(callers)

    def keeper(self) -> Keeper | None:
        """Rank 0's side."""
        return self._side if isinstance(self._side, RendezvousHost) else None

    def keep(self, is_over: Callable[[], bool], blame: Callable[[str], None]) -> None:
        """As `RendezvousHost.keep`: who has the `keeper` closes the address at the end of the world."""
        if isinstance(self._side, RendezvousHost):
            self._side.keep(is_over, blame)
            self._is_kept = True
        else:
            self._side.part()

    def close(self) -> None:
        """Closes every socket, but for a kept address; idempotent."""
        if not self._is_kept:
            self._side.close()
