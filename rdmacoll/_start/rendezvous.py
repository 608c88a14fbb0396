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
from rdmacoll._start.bootstrap_exchange import AddressHolder, left_during_start, no_watch
from rdmacoll._start.launch import Launch
from rdmacoll._start.listen_address import AddressTakenError
from rdmacoll._start.rendezvous_client import ConnectAttempt, RendezvousClient, RetryError
from rdmacoll._start.rendezvous_listener import LocalProcess
from rdmacoll._start.rendezvous_refusal import refuse_all
from rdmacoll._start.rendezvous_root import RendezvousRoot
from rdmacoll._start.start_deadline import StartDeadline
from rdmacoll.errors import ConfigError, error_from_json

# A thread sends heartbeats once a second, but Python may delay it.
SILENCE_S_MIN = 5.0
_PREVIOUS_S = 5.0  # a world that is about to end frees the address in this time
_RETRY_S = 0.1
_OWNER_S = 1.0  # rank 0 answers in this time, by a thread of its own; another program may never answer


class TcpExchange:
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
        process: str = "",
        called_off: Callable[[], str] = lambda: "",
    ) -> None:
        """Meets the other ranks.

        timeout_s: the limit of the whole start, by hand since the last arrival. silence_s: a rank without a
        heartbeat for so long is lost. shares_port: the engine will listen at rank 0's address. process:
        identifies this process, unless it is "". called_off: as in StartDeadline.
        """
        refused = self._without_threads(launch, file_secret, log)
        self._file_secret, self._launch = file_secret, launch
        self._deadline = StartDeadline(timeout_s, log, is_by_hand=is_by_hand, called_off=called_off)
        self._local = LocalProcess(launch, socket.gethostname(), os.getpid(), process)
        self._holds_address = False
        self._side: RendezvousRoot | RendezvousClient
        silence_s = max(SILENCE_S_MIN, silence_s)
        if launch.rank == 0:
            root = self._root(log, silence_s, shares_port)
            self._side = root
            self._guarded(root.gather)
        else:
            client = RendezvousClient(self._local, file_secret, self._deadline, log, silence_s, refused)
            self._side = client
            self._guarded(client.join)

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

    def _root(self, log: Log, silence_s: float, shares_port: bool) -> RendezvousRoot:
        begun = time.monotonic()
        while True:
            try:
                return RendezvousRoot(
                    self._local, self._file_secret, self._deadline, log, silence_s, shares_port=shares_port
                )
            except AddressTakenError as error:
                if time.monotonic() > begun + self._owner_leaves_within_s():
                    raise ConfigError(str(error)) from None
            time.sleep(_RETRY_S)

    def _owner_leaves_within_s(self) -> float:
        """The number of seconds within which the socket that has the address may free it.

        If that socket belongs to rank 0 of a job, that rank hears that there is a second one, and its answer
        is raised.
        """
        attempt = ConnectAttempt(self._launch, self._file_secret, answer_s=_OWNER_S)
        try:
            answer = attempt.send(self._local.hello())
        except RetryError:
            return _OWNER_S  # a socket that does not listen yet, is being closed, or never answers
        except ConfigError:
            return 0.0  # another program, or a job with another secret
        finally:
            attempt.close()
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
        return self._side.allgather(text, watch)

    def check(self) -> None:
        """Raises the error that ends the start on all ranks, as rank 0 has told it."""
        self._side.check()

    def leave(self, cause: str) -> None:
        """Ends the start on all ranks. Their error names this rank and `cause`."""
        me = self._launch.rank
        self._side.leave(
            left_during_start(me, self._local.host, self._local.host_pid, cause, self._launch.name(me))
        )

    def job(self) -> tuple[str, bytes]:
        """Rank 0's random name, and a secret that is derived from the file's.

        The engines use it in place of the file's secret.
        """
        name = self.allgather(secrets.token_hex(8))[0]
        return name, hmac.new(self._file_secret, b"job " + name.encode(), hashlib.sha256).digest()

    def renew(self, timeout_s: float, source: str) -> None:
        """Starts a new time limit of `timeout_s`, from the setting `source`."""
        self._deadline.renew(timeout_s, source)

    def share_address(self, callers: Callable[[], int]) -> None:
        """Lets rank 0 hear callers at its address, also if the engine listens there."""
        if isinstance(self._side, RendezvousRoot):
            self._side.share_address(callers)

    def address_holder(self) -> AddressHolder | None:
        """Rank 0's side; None on other ranks."""
        return self._side if isinstance(self._side, RendezvousRoot) else None

    def hold_address(self, is_over: Callable[[], bool], blame: Callable[[str], None]) -> None:
        """Like `RendezvousRoot.hold_address`. The owner of the `address_holder` closes the address at the end
        of the world."""
        if isinstance(self._side, RendezvousRoot):
            self._side.hold_address(is_over, blame)
            self._holds_address = True
        else:
            self._side.say_goodbye()

    def close(self) -> None:
        """Closes every socket, but not a kept address. Idempotent."""
        if not self._holds_address:
            self._side.close()
