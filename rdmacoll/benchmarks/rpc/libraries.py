"""What can take part in these benchmarks: rows as in `rdmacoll.benchmarks.libraries`. Pure."""

from __future__ import annotations

from rdmacoll.benchmarks.libraries import PATIENT, QUIET_TENSORFLOW, Library

OURS = "rdmacoll"
# On one machine, where it would otherwise go through shared memory: as gRPC does.
OURS_BY_TCP = "rdmacoll-tcp"
# No library: what the kernel carries.
SOCKETS = "sockets"
PEERS = ("tf-grpc", "grpcio", SOCKETS)

# What one call of a peer to one process needs; ours are requests to a server.
_TENSORFLOW = {"module": "rpc.tensorflow_grpc"}
_BY_TCP = {**PATIENT, "RDMACOLL_TRANSPORT": "tcp"}


def libraries(*, everybody: bool) -> dict[str, Library]:
    """By name. everybody: every rank calls every other; else workers call servers."""
    ours = {"module": "rpc.ours_everybody" if everybody else "rpc.ours"}
    rows = (
        Library(OURS, "rdmacoll", ours, "rpc", "own", "hand", PATIENT),
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
            instead="tensorflow",
        ),
        Library(
            "grpcio",
            "grpcio",
            {"module": "rpc.grpcio"},
            "rpc",
            "grpcio",
            "hand",
            sleeps=True,
            instead="grpc",
        ),
        Library(SOCKETS, "plain sockets", {"module": "rpc.sockets"}, "rpc", "own", "hand", sleeps=True),
    )
    return {row.name: row for row in rows}
