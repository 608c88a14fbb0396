"""The registry of a job that prepares data: the dispatchers and workers of tf.data's service that are ready.

A message is a line: a MAC by the service's key, and JSON. The MAC covers the challenge that the server has
sent for this connection, so a message counts once.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod.runner.common.util.secret import check_digest, compute_digest

Addresses = Mapping[str, Sequence[tuple[str, int]]]
_LINE_MAX = 1 << 16
_FIRST_LINE_S = 30.0  # a connection that says nothing for so long is closed
_REQUEST, _REPLY = b"request", b"reply"
_ERRORS: dict[str, type[Exception]] = {one.__name__: one for one in (IndexError, TimeoutError, ValueError)}


class ComputeService:
    """The server. It listens from the start, at a free port of all interfaces."""

    def __init__(self, dispatchers: int, workers_per_dispatcher: int, key: bytes, nics: Any = None) -> None:
        """nics: without effect. Raises ValueError for counts below 1."""
        if dispatchers < 1 or workers_per_dispatcher < 1:
            raise ValueError(
                f"{dispatchers} dispatchers, {workers_per_dispatcher} workers for each: give at least 1."
            )
        self._dispatchers: list[str | None] = [None] * dispatchers
        self._workers: list[set[int]] = [set() for _ in range(dispatchers)]
        self._workers_per_dispatcher = workers_per_dispatcher
        self._is_shut_down = False
        self._changed = threading.Condition()
        self._server = _Server(self._answer, key)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def addresses(self) -> dict[str, list[tuple[str, int]]]:
        """The addresses of the server, for `ComputeClient`."""
        port = self._server.server_address[1]
        found = {own_address(), "127.0.0.1"}
        return {"all": [(host, port) for host in sorted(found, key=lambda one: one.startswith("127."))]}

    def shutdown(self) -> None:
        """Answers those that wait for the shutdown, and stops the server."""
        self._note_shutdown()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, call: str, arguments: list[Any]) -> Any:
        calls: dict[str, Callable[..., Any]] = {
            "register_dispatcher": self._register_dispatcher,
            "wait_for_dispatcher_registration": self._wait_for_dispatcher,
            "register_worker_for_dispatcher": self._register_worker,
            "wait_for_dispatcher_worker_registration": self._wait_for_workers,
            "shutdown": self._note_shutdown,
            "wait_for_shutdown": self._wait_for_shutdown,
        }
        with self._changed:
            return calls[call](*arguments)

    def _register_dispatcher(self, dispatcher: int, address: str) -> None:
        known = self._dispatchers[self._checked(dispatcher)]
        if known not in (None, address):
            raise ValueError(f"dispatcher {dispatcher} is at {known} already, and now at {address}, too.")
        self._dispatchers[dispatcher] = address
        self._changed.notify_all()

    def _wait_for_dispatcher(self, dispatcher: int, timeout_s: float) -> str:
        self._wait(
            lambda: self._dispatchers[self._checked(dispatcher)] is not None,
            timeout_s,
            f"dispatcher {dispatcher} has not started",
        )
        return str(self._dispatchers[dispatcher])

    def _register_worker(self, dispatcher: int, worker: int) -> None:
        self._workers[self._checked(dispatcher)].add(worker)
        self._changed.notify_all()

    def _wait_for_workers(self, dispatcher: int, timeout_s: float) -> None:
        one = self._checked(dispatcher if len(self._dispatchers) > 1 else 0)
        self._wait(
            lambda: len(self._workers[one]) >= self._workers_per_dispatcher,
            timeout_s,
            f"not all {self._workers_per_dispatcher} workers of dispatcher {one} have started",
        )

    def _note_shutdown(self) -> None:
        with self._changed:
            self._is_shut_down = True
            self._changed.notify_all()

    def _wait_for_shutdown(self) -> None:
        self._changed.wait_for(lambda: self._is_shut_down)

    def _wait(self, condition: Callable[[], bool], timeout_s: float, text: str) -> None:
        if not self._changed.wait_for(lambda: condition() or self._is_shut_down, timeout_s):
            raise TimeoutError(f"{text} within {timeout_s:g} s: see the output of the compute job.")
        if not condition():
            raise ValueError(f"{text}, and the compute job ends.")

    def _checked(self, dispatcher: int) -> int:
        if not 0 <= dispatcher < len(self._dispatchers):
            raise IndexError(f"dispatcher {dispatcher}: there are {len(self._dispatchers)}, from 0.")
        return dispatcher


class ComputeClient:
    """The calls of other processes. Raises IndexError for an unknown dispatcher, TimeoutError for one that
    does not come, ValueError, and ConnectionError."""

    def __init__(self, compute_addresses: Addresses, key: bytes, verbose: int = 1) -> None:
        """verbose: without effect."""
        self._addresses = [(host, port) for one in compute_addresses.values() for host, port in one]
        self._key = key

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        """Says where this dispatcher is."""
        self._call("register_dispatcher", dispatcher_id, dispatcher_address)

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """Waits for this dispatcher, for `timeout` seconds. Returns its address."""
        return str(self._call("wait_for_dispatcher_registration", dispatcher_id, timeout))

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        """Says that this worker has started."""
        self._call("register_worker_for_dispatcher", dispatcher_id, worker_id)

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Waits for all workers of this dispatcher, for `timeout` seconds."""
        self._call("wait_for_dispatcher_worker_registration", dispatcher_id, timeout)

    def shutdown(self) -> None:
        """Ends the compute job."""
        self._call("shutdown")

    def wait_for_shutdown(self) -> None:
        """Waits until somebody calls `shutdown`."""
        self._call("wait_for_shutdown")

    def _call(self, call: str, *arguments: Any) -> Any:
        error: Exception = ConnectionError("the compute service has no address.")
        for address in self._addresses:
            try:
                connection = socket.create_connection(address, _FIRST_LINE_S)
            except OSError as refused:
                error = ConnectionError(f"the compute service at {address[0]}:{address[1]}: {refused}")
                continue
            with connection, connection.makefile("rwb") as file:
                challenge = file.readline(_LINE_MAX)
                file.write(_sealed(self._key, _REQUEST, challenge, {"call": call, "arguments": arguments}))
                file.flush()
                connection.settimeout(None)
                reply = _opened(self._key, _REPLY, challenge, file.readline(_LINE_MAX))
            if reply is None:
                error = ConnectionError(f"{address[0]}:{address[1]} does not know the service's key.")
            elif reply["error"]:
                kind, text = reply["error"]
                raise _ERRORS.get(kind, ValueError)(text)
            else:
                return reply["value"]
        raise error


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True

    def __init__(self, answer: Callable[[str, list[Any]], Any], key: bytes) -> None:
        self.answer, self.key = answer, key
        super().__init__(("", 0), _Handler)


class _Handler(socketserver.StreamRequestHandler):
    """One connection with one call. Strangers get no answer."""

    timeout = _FIRST_LINE_S
    server: _Server

    def handle(self) -> None:
        challenge = f"{secrets.token_hex(16)}\n".encode()
        self.wfile.write(challenge)
        with contextlib.suppress(OSError):
            request = _opened(self.server.key, _REQUEST, challenge, self.rfile.readline(_LINE_MAX))
            if request is None:
                return
            reply: dict[str, Any] = {"value": None, "error": None}
            try:
                reply["value"] = self.server.answer(request["call"], request["arguments"])
            except Exception as error:
                reply["error"] = [type(error).__name__, str(error)]
            self.wfile.write(_sealed(self.server.key, _REPLY, challenge, reply))


def _sealed(key: bytes, kind: bytes, challenge: bytes, message: Any) -> bytes:
    text = json.dumps(message).encode()
    return compute_digest(key, kind + challenge + text).hex().encode() + b" " + text + b"\n"


def _opened(key: bytes, kind: bytes, challenge: bytes, line: bytes) -> Any:
    """The message, or None if its MAC is wrong."""
    digest, _, text = line.rstrip(b"\n").partition(b" ")
    try:
        found = bytes.fromhex(digest.decode())
    except ValueError:
        return None
    return json.loads(text) if check_digest(key, kind + challenge + text, found) else None


def own_address() -> str:
    """An address of this host that others can use, as far as its name tells."""
    try:
        return socket.gethostbyname(socket.getfqdn())
    except OSError:
        return "127.0.0.1"
