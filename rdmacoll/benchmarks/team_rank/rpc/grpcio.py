"""Plain gRPC in Python. A payload for one process is one message of bytes, which nobody parses."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ..job import Job, Work
from .routes import Here, Nothing, buffers_of, here_of, payload_of

_CONNECT_S = 60.0
_THREADS = 8
# The default limit is 4 MiB.
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Grpcio:
    """A rank. Ranks that are called run a server, which keeps the last payload of each rank."""

    def __init__(self, here: Here) -> None:
        import grpc

        self.here, self.rank, self.ranks = here, here.rank, here.ranks
        self.facts = {"version": f"grpcio {grpc.__version__}"}
        self._kept: dict[str, bytes] = {}
        if here.is_server or not here.servers:
            self._server = grpc.server(ThreadPoolExecutor(_THREADS), options=_OPTIONS)
            self._server.add_generic_rpc_handlers([self._handler(grpc)])
            self._server.add_insecure_port(here.addresses[here.rank])
            self._server.start()
        if not here.is_server:
            self.channels = {
                rank: grpc.insecure_channel(here.addresses[rank], options=_OPTIONS) for rank in here.called
            }
            for channel in self.channels.values():
                grpc.channel_ready_future(channel).result(_CONNECT_S)

    def _handler(self, grpc: Any) -> Any:
        def push(payload: bytes, name: str) -> bytes:
            self._kept[name] = payload
            return b""

        def pull(_: bytes, name: str) -> bytes:
            return self._kept[name]

        def echo(payload: bytes, _: str) -> bytes:
            return payload

        methods = {"push": push, "pull": pull, "round-trip": echo}

        def made(what: str, name: str) -> Any:
            return grpc.unary_unary_rpc_method_handler(lambda payload, _: methods[what](payload, name))

        handlers = {
            f"/{what}/{rank}": made(what, str(rank)) for what in methods for rank in range(self.ranks)
        }

        class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
            def service(self, call: Any) -> Any:
                return handlers.get(call.method)

        return Handler()

    def make(self, work: Work) -> Job:
        """The calls of one payload, or of several in flight at once."""
        return Nothing() if self.here.is_server else _Calls(self, work)


class _Calls:
    def __init__(self, library: Grpcio, work: Work) -> None:
        self._here, self._sizes, self._what = library.here, payload_of(work), work["what"]
        self.each = work["under_way"]
        self._routes = self._here.routes(self._sizes)
        self._calls = self._stubs(library, self._what)
        self._fetch, self._keep = self._stubs(library, "pull"), self._stubs(library, "push")
        self._payloads: list[bytes]  # set by `check`, which comes before any timed call
        self._answers: list[bytes] = []

    def _stubs(self, library: Grpcio, what: str) -> list[Any]:
        method = f"/{what}/{library.rank}"
        return [library.channels[rank].unary_unary(method) for rank, _ in self._routes]

    def call(self) -> None:
        """Sends the payloads and waits for all answers."""
        given = [b""] * len(self._calls) if self._what == "pull" else self._payloads
        if self.each == len(self._calls) == 1:
            self._answers = [self._calls[0](given[0])]
            return
        begun: list[Future[bytes]] = [
            call.future(payload) for _ in range(self.each) for call, payload in zip(self._calls, given)
        ]
        self._answers = [one.result() for one in begun][-len(self._calls) :]

    def check(self, turn: int) -> int:
        """Calls with the values of this turn, and counts wrong payloads."""
        buffers = buffers_of(self._here.rank, turn, self._sizes)
        self._payloads = [b"".join(buffers[number].tobytes() for number in part) for _, part in self._routes]
        if self._what == "pull":
            for keep, payload in zip(self._keep, self._payloads):
                keep(payload)
        self.call()
        return self.after()

    def clear(self) -> None:
        """Forgets the answers."""
        self._answers = []

    def after(self) -> int:
        """The number of wrong payloads in the last answers; after pushes, in the servers' memory."""
        if self._what == "push":
            self._answers = [fetch(b"") for fetch in self._fetch]
        return sum(answer != payload for answer, payload in zip(self._answers, self._payloads))


def join(told: dict[str, Any]) -> Grpcio:
    """Joins as a worker or a server."""
    return Grpcio(here_of(told))
