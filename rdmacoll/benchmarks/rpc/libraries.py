"""The libraries of these benchmarks: rows as in `rdmacoll.benchmarks.libraries`. Pure."""

from __future__ import annotations

from rdmacoll.benchmarks.libraries import NO_TIMEOUTS, QUIET_TENSORFLOW, Library

OURS = "rdmacoll"
# Uses TCP on one machine, as gRPC does. Otherwise rdmacoll would use shared memory there.
OURS_BY_TCP = "rdmacoll-tcp"
# This is no library. It shows the rate of the kernel.
SOCKETS = "sockets"
PEERS = ("tf-grpc", "grpcio", SOCKETS)

# A peer's call goes to one process; a request of rdmacoll goes to a server.
_TENSORFLOW = {"module": "rpc.tensorflow_grpc"}
_BY_TCP = {**NO_TIMEOUTS, "RDMACOLL_TRANSPORT": "tcp"}


def libraries(*, everybody: bool) -> dict[str, Library]:
    """The libraries by name. everybody: every rank calls every other rank; otherwise workers call servers."""
    ours = {"module": "rpc.ours_everybody" if everybody else "rpc.ours"}
    rows = (
        Library(OURS, "rdmacoll", ours, "rpc", "own", "hand", NO_TIMEOUTS),
        Library(OURS_BY_TCP, "rdmacoll over TCP", ours, "rpc", "own", "hand", _BY_TCP),
        Library(
            "tf-grpc",
            "TensorFlow's gRPC",
            _TENSORFLOW,
            "rpc",
            "tf-grpc",
            "hand",
            QUIET_TENSORFLOW,
            sleeps=True,
            fallback_module="tensorflow",
        ),
        Library(
            "grpcio",
            "grpcio",
            {"module": "rpc.grpcio"},
            "rpc",
            "grpcio",
            "hand",
            sleeps=True,
            fallback_module="grpc",
        ),
        Library(SOCKETS, "plain sockets", {"module": "rpc.sockets"}, "rpc", "own", "hand", sleeps=True),
    )
    return {row.name: row for row in rows}
