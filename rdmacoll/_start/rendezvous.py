"""The start without MPI: rank 0 listens at one address, and all other ranks connect to it."""

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

# A thread sends signs of life once a second, but Python may delay it.
SILENCE_S_MIN = 5.0
_PREVIOUS_S = 5.0  # a world that is about to end frees the address in this time
_RETRY_S = 0.1
_OWNER_S = 1.0  # rank 0 answers in this time, by a thread of its own; another program may never answer


class TcpCarrier:
    """The out-of-band channel over the rendezvous. It also agrees on the job's name and secret.

    Raises ConfigError and RankFailedError.
    """

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
        """Meets the other ranks.

        timeout_s: the limit of the whole start, by hand since the last arrival. silence_s: a rank without a
        sign of life for so long is lost. shares_port: the engine will listen at rank 0's address. process:
        identifies this process.
        """
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
        """The error if this process can start no further thread, or None.

        Rank 0 tells it to the other ranks, and raises it. Another rank returns it, to tell it to rank 0.
        """
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
        """The number of seconds within which the socket that has the address may free it.

        If that socket belongs to rank 0 of a job, that rank hears that there is a second one, and its answer
        is raised.
        """
        call = Call(self._launch, self._file_secret, answer_s=_OWNER_S)
        try:
            answer = call.say(self._me.hello())
        except EarlyError:
            return _OWNER_S  # a socket that does not listen yet, is being closed, or never answers
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
        """All ranks' texts, by rank."""
        return self._side.exchange(text, watch)

    def check(self) -> None:
        """Raises the error that ends the start on all ranks, as rank 0 has told it."""
        self._side.check()

    def leave(self, cause: str) -> None:
        """Ends the start on all ranks. Their error names this rank and `cause`."""
        me = self._launch.rank
        self._side.leave(left(me, self._me.host, self._me.who, cause, self._launch.name(me)))

    def job(self) -> tuple[str, bytes]:
        """Rank 0's random name, and a secret that is derived from the file's.

        The engines use it in place of the file's secret.
        """
        name = self.allgather(secrets.token_hex(8))[0]
        return name, hmac.new(self._file_secret, b"job " + name.encode(), hashlib.sha256).digest()

    def renew(self, timeout_s: float, source: str) -> None:
        """Starts a new time limit of `timeout_s`, from the setting `source`."""
        self._patience.renew(timeout_s, source)

    def share_address(self, callers: Callable[[], int]) -> None:
        """Lets rank 0 hear callers at its address, also if the engine listens there."""
        if isinstance(self._side, RendezvousHost):
            self._side.share_address(callers)

    def keeper(self) -> Keeper | None:
        """Rank 0's side; None on other ranks."""
        return self._side if isinstance(self._side, RendezvousHost) else None

    def keep(self, is_over: Callable[[], bool], blame: Callable[[str], None]) -> None:
        """As `RendezvousHost.keep`. The owner of the `keeper` closes the address at the end of the world."""
        if isinstance(self._side, RendezvousHost):
            self._side.keep(is_over, blame)
            self._is_kept = True
        else:
            self._side.part()

    def close(self) -> None:
        """Closes every socket, but not a kept address. Idempotent."""
        if not self._is_kept:
            self._side.close()
