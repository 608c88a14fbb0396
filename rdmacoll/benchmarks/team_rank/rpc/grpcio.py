"""Plain gRPC in Python. A payload for one process is one message of bytes, which nobody parses."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ..job import Job, Work
from .routes import NoWork, RankContext, buffers_of, payload_of, rank_context

_CONNECT_S = 60.0
_THREADS = 8
# The default limit is 4 MiB.
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Grpcio:
    """A rank. Ranks that are called run a server, which keeps the last payload of each rank."""

    def __init__(self, context: RankContext) -> None:
        import grpc

        self.context, self.rank, self.ranks = context, context.rank, context.ranks
        self.facts = {"version": f"grpcio {grpc.__version__}"}
        self._stored: dict[str, bytes] = {}
        if context.is_server or not context.servers:
            self._server = grpc.server(ThreadPoolExecutor(_THREADS), options=_OPTIONS)
            self._server.add_generic_rpc_handlers([self._handler(grpc)])
            self._server.add_insecure_port(context.addresses[context.rank])
            self._server.start()
        if not context.is_server:
            self.channels = {
                rank: grpc.insecure_channel(context.addresses[rank], options=_OPTIONS)
                for rank in context.called
            }
            for channel in self.channels.values():
                grpc.channel_ready_future(channel).result(_CONNECT_S)

    def _handler(self, grpc: Any) -> Any:
        def push(payload: bytes, name: str) -> bytes:
            self._stored[name] = payload
            return b""

        def pull(_: bytes, name: str) -> bytes:
            return self._stored[name]

        def echo(payload: bytes, _: str) -> bytes:
            return payload

        methods = {"push": push, "pull": pull, "round-trip": echo}

        def made(method_name: str, name: str) -> Any:
            return grpc.unary_unary_rpc_method_handler(lambda payload, _: methods[method_name](payload, name))

        handlers = {
            f"/{method_name}/{rank}": made(method_name, str(rank))
            for method_name in methods
            for rank in range(self.ranks)
        }

        class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
            def service(self, call: Any) -> Any:
                return handlers.get(call.method)

        return Handler()

    def make(self, work: Work) -> Job:
        """The calls of one payload, or of several in flight at once."""
        return NoWork() if self.context.is_server else _Calls(self, work)


class _Calls:
    def __init__(self, library: Grpcio, work: Work) -> None:
        self._context, self._sizes, self._exchange_kind = library.context, payload_of(work), work["what"]
        self.each = work["under_way"]
        self._routes = self._context.routes(self._sizes)
        self._calls = self._stubs(library, self._exchange_kind)
        self._pull_stubs, self._push_stubs = self._stubs(library, "pull"), self._stubs(library, "push")
        self._payloads: list[bytes]  # set by `check`, which comes before any timed call
        self._answers: list[bytes] = []

    def _stubs(self, library: Grpcio, method_name: str) -> list[Any]:
        method = f"/{method_name}/{library.rank}"
        return [library.channels[rank].unary_unary(method) for rank, _ in self._routes]

    def call(self) -> None:
        """Sends the payloads and waits for all answers."""
        requests = [b""] * len(self._calls) if self._exchange_kind == "pull" else self._payloads
        if self.each == len(self._calls) == 1:
            self._answers = [self._calls[0](requests[0])]
            return
        begun: list[Future[bytes]] = [
            call.future(payload) for _ in range(self.each) for call, payload in zip(self._calls, requests)
        ]
        self._answers = [one.result() for one in begun][-len(self._calls) :]

    def check(self, turn: int) -> int:
        """Calls with the values of this turn, and counts wrong payloads."""
        buffers = buffers_of(self._context.rank, turn, self._sizes)
        self._payloads = [b"".join(buffers[number].tobytes() for number in part) for _, part in self._routes]
        if self._exchange_kind == "pull":
            for push_stub, payload in zip(self._push_stubs, self._payloads):
                push_stub(payload)
        self.call()
        return self.after()

    def clear(self) -> None:
        """Forgets the answers."""
        self._answers = []

    def after(self) -> int:
        """The number of wrong payloads in the last answers; after pushes, in the servers' memory."""
        if self._exchange_kind == "push":
            self._answers = [fetch(b"") for fetch in self._pull_stubs]
        return sum(answer != payload for answer, payload in zip(self._answers, self._payloads))


def join(options: dict[str, Any]) -> Grpcio:
    """Joins as a worker or a server."""
    return Grpcio(rank_context(options))
