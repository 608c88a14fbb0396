"""The libraries of these benchmarks: rows as in `rdmacoll.benchmarks.libraries`. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rdmacoll.benchmarks.libraries import (
    NO_TIMEOUTS,
    QUIET_TENSORFLOW,
    Library,
    is_other_build,
    with_other_builds,
)

_OURS = {**NO_TIMEOUTS, **QUIET_TENSORFLOW}
_BY_TCP = {**_OURS, "RDMACOLL_TRANSPORT": "tcp"}


def _ours(name: str, title: str, updates: str, settings: dict[str, str]) -> Library:
    # The library uses the peer's TensorFlow, if that is installed.
    options = {"module": "training.ours", "updates": updates}
    return Library(
        name, title, options, "rpc", "tf-grpc", "hand", settings, sleeps=True, fallback_module="tensorflow"
    )


LIBRARIES = with_other_builds(
    (
        _ours("rdmacoll-sync", "rdmacoll", "sync", _OURS),
        _ours("rdmacoll-async", "rdmacoll", "async", _OURS),
        # These use TCP on one machine, as gRPC does. The others use shared memory there.
        _ours("rdmacoll-sync-tcp", "rdmacoll over TCP", "sync", _BY_TCP),
        _ours("rdmacoll-async-tcp", "rdmacoll over TCP", "async", _BY_TCP),
        Library(
            "tf-grpc",
            "TensorFlow's servers",
            {"module": "training.tensorflow_grpc"},
            "rpc",
            "tf-grpc",
            "hand",
            QUIET_TENSORFLOW,
            sleeps=True,
            fallback_module="tensorflow",
        ),
    )
)


@dataclass(frozen=True)
class Contestant:
    """One row of the comparison. updates: "sync", "async", or "none": each worker trains for itself."""

    name: str
    title: str
    library: str
    updates: str


CONTESTANTS = {
    row.name: row
    for row in (
        *(
            Contestant(
                name, f"{library.title}, {library.options['updates']}", name, library.options["updates"]
            )
            for name, library in LIBRARIES.items()
            if library.is_ours
        ),
        Contestant("tf-grpc", "TensorFlow's servers, async", "tf-grpc", "async"),
        Contestant("tf-grpc-sync", "TensorFlow's servers, sync", "tf-grpc", "sync"),
    )
}
_OF_RDMACOLL = [name for name, row in CONTESTANTS.items() if LIBRARIES[row.library].is_ours]
OURS = tuple(name for name in _OF_RDMACOLL if not is_other_build(name))
PEERS = tuple(name for name in CONTESTANTS if name not in _OF_RDMACOLL)
ALONE = "alone"


def takes_part_between_hosts(name: str) -> bool:
    """Whether this contestant takes part between hosts. There ours use TCP in any case."""
    return "-tcp" not in name
