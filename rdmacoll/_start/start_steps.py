"""The steps of an engine's start. A step that fails on one rank fails on all, with the same message."""

from __future__ import annotations

import copy
import json
import time
from typing import Any, Callable, Protocol

from rdmacoll._abi.library import Library
from rdmacoll._start.bootstrap_exchange import BootstrapExchange, no_watch
from rdmacoll._start.launch import Launch
from rdmacoll._start.liveness_check import LivenessCheck
from rdmacoll.errors import RankFailedError, RdmacollError, error_from_json, error_to_fields

# A start returns from the library this often, so that Python's signal handlers (Ctrl-C) can run.
_SLICE_MS = 100
_CHECK_EVERY_S = 0.5
_GRACE_S = 1.2


class ServerMeeting(Protocol):
    """A part of the start that needs the engine: the asynchronous servers."""

    def meet(
        self,
        engine: int,
        exchange: BootstrapExchange,
        watch: Callable[[], None],
        job: tuple[str, bytes],
        arguments: str,
    ) -> None:
        """Connects the servers' ranks once the engines are connected. `watch` raises the loss of a rank."""

    def free(self) -> None:
        """Frees open resources after a failed start."""


def start_engine(
    library: Library,
    exchange: BootstrapExchange,
    launch: Launch,
    arguments: str,
    settings_error: RdmacollError | None,
    servers: ServerMeeting | None = None,
) -> tuple[int, bytes]:
    """Starts the engine of a world. Returns it, and the job's secret, when the world stands on all ranks.

    If the start fails, no engine is left, and the other ranks hear the error. settings_error: the error in
    this rank's settings. servers: asynchronous servers, which meet at the end of the start."""
    engine = 0

    def open_engine() -> str:
        nonlocal engine
        if settings_error is not None:
            raise settings_error
        engine, card = library.engine_open(
            rank=launch.rank, size=launch.size, job=job, secret=secret, arguments=arguments
        )
        exchange.share_address(lambda: library.engine_forward_rendezvous(engine))
        return card

    def find_node() -> str:
        return f"{library.engine_node(engine, cards)} {library.engine_profile(engine)}"

    def connect() -> str:
        while not library.engine_start(engine, leaders, _SLICE_MS):
            exchange.check()
            watch()
        return ""

    def check_ranks() -> None:
        library.engine_start(engine, leaders, 0)
        liveness.check()

    try:
        job, secret = exchange.job()
        cards = agree(exchange, open_engine)
        liveness = LivenessCheck(cards, launch.rank)
        found = [text.partition(" ") for text in agree(exchange, find_node, _LivenessWatch(liveness.check))]
        leaders = [int(leader) for leader, _, _ in found]
        library.engine_set_profiles(engine, [profile for _, _, profile in found])
        watch = _LivenessWatch(check_ranks)
        agree(exchange, connect, watch)
        if servers is not None:
            servers.meet(engine, exchange, watch, (job, secret), arguments)
    except BaseException as error:
        is_interrupt = not isinstance(error, Exception)
        cause = type(error).__name__ if is_interrupt else "the start failed"
        if is_interrupt:
            exchange.leave(cause)
        if servers is not None:
            servers.free()
        if engine:
            library.engine_close(engine, cause)
            library.engine_free(engine)
        raise
    return engine, secret


class _LivenessWatch:
    """Checks from time to time, while this rank waits, whether another rank is gone."""

    def __init__(self, check: Callable[[], object]) -> None:
        self._check = check
        self._check_at = time.monotonic() + _CHECK_EVERY_S
        self._lost: RankFailedError | None = None
        self._lost_at = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now < self._check_at:
            return
        self._check_at = now + _CHECK_EVERY_S
        try:
            self._check()
        except RankFailedError as error:
            if self._lost is None:
                self._lost, self._lost_at = error, now
        except RdmacollError:
            pass  # the step itself has failed here, and the other ranks hear that error
        # The grace time is for messages that are under way: the answer of a round that was complete before a
        # rank left, and the other ranks' own check, before this rank leaves.
        if self._lost is not None and now - self._lost_at > _GRACE_S:
            raise copy.copy(self._lost)


def agree(
    exchange: BootstrapExchange, step: Callable[[], str], watch: Callable[[], None] = no_watch
) -> list[str]:
    """Runs a step, and returns all ranks' results. Raises its error, or that of the first rank with one."""
    failure: BaseException | None = None
    try:
        own_result: dict[str, Any] = {"ok": step()}
    except Exception as error:
        failure = _first_cause(exchange, error)
        own_result = {"error": error_to_fields(failure)}
    try:
        answers = [json.loads(text) for text in exchange.allgather(json.dumps(own_result), watch)]
    except RdmacollError:
        if failure is None:
            raise
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None  # otherwise the error and this frame would keep each other alive
    for other, answer in enumerate(answers):
        if "error" in answer:
            raise _remote_error(other, answer["error"])
    return [answer["ok"] for answer in answers]


def _first_cause(exchange: BootstrapExchange, error: Exception) -> Exception:
    """The first cause of a failed step: a lost rank may be seen before the error that made it leave."""
    try:
        if isinstance(error, RankFailedError):
            exchange.check()
    except RdmacollError as first:
        return first
    return error


def _remote_error(other: int, fields: dict[str, Any]) -> RdmacollError:
    error = error_from_json(json.dumps(fields))
    error.args = (f"rank {other} could not start: {error}",)
    return error
