"""Objects that ranks send to each other.

Pickles run code when they are read. So only ranks that have proved the job's secret take part. Each object
also has a MAC, which is checked before anything is read. With RDMACOLL_OBJECTS=json objects are JSON and
nothing else.
"""

from __future__ import annotations

import importlib
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from rdmacoll import engine
from rdmacoll._base import sealed
from rdmacoll._world import world
from rdmacoll._world.running_engine import Engine
from rdmacoll.errors import ConfigError, RdmacollError
from rdmacoll.process_set import ProcessSet, global_process_set, number_of

_SETTING = "RDMACOLL_OBJECTS"
_REFUSED = -1  # the length of an object that its rank cannot send


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns rank `root_rank`'s object on every rank of the set. Every rank of the set calls it.

    obj: an object that cloudpickle takes (pickle, if cloudpickle is not installed); with
    RDMACOLL_OBJECTS=json one that JSON has. session: without effect, since no graph takes part.

    Raises ConfigError on all ranks for an object that cannot be sent, and RdmacollError for one without the
    job's signature.
    """
    call = _Call(name, process_set)
    is_root = world.rank() == root_rank
    payload, error = call.packed(obj) if is_root else (b"", None)
    length = np.array([len(payload) if error is None else _REFUSED], np.int64)
    count = int(engine.broadcast(length, root_rank, call.name("size"), process_set=process_set)[0])
    call.check([count], [root_rank], error)
    data = np.frombuffer(payload, np.uint8) if is_root else np.empty(count, np.uint8)
    received = engine.broadcast(data, root_rank, call.name("data"), process_set=process_set)
    return obj if is_root else call.unpacked(received.tobytes(), root_rank)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function of an object that calls `broadcast_object` with these arguments."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the objects of all ranks of the set, in rank order. Arguments and errors as
    `broadcast_object`."""
    call = _Call(name, process_set)
    payload, error = call.packed(obj)
    length = np.array([len(payload) if error is None else _REFUSED], np.int64)
    counts = engine.allgather(length, call.name("size"), process_set=process_set).tolist()
    call.check(counts, process_set.ranks, error)
    data = np.frombuffer(payload, np.uint8)
    gathered = engine.allgather(data, call.name("data"), process_set=process_set)
    ends = np.cumsum(counts)
    return [
        obj if rank == world.rank() else call.unpacked(gathered[end - count : end].tobytes(), rank)
        for rank, count, end in zip(process_set.ranks, counts, ends)
    ]


class _Call:
    """One exchange of objects: its set, its names, and the form of the objects.

    Each rank numbers the objects that it sends. Other ranks accept each number once, so an object cannot be
    sent to them again. They do not count calls, so a call that fails on one rank alone shifts nothing.
    """

    def __init__(self, name: str | None, process_set: ProcessSet) -> None:
        self._engine: Engine = world.current()
        self._name = name
        self._set = number_of(self._engine, process_set)
        self._is_json = self._engine.values.text(_SETTING) == "json"

    def name(self, part: str) -> str | None:
        """The name of an operation of this exchange."""
        return None if self._name is None else f"{self._name}.{part}"

    def packed(self, obj: Any) -> tuple[bytes, ConfigError | None]:
        """The object as sealed bytes, or the error that it cannot be sent."""
        try:
            payload = json.dumps(obj).encode() if self._is_json else _pickled(obj)
        except Exception as error:
            form = f"JSON ({_SETTING}=json)" if self._is_json else "a pickle"
            return b"", ConfigError(
                f"a {type(obj).__name__} cannot be sent as {form}: {type(error).__name__}: {error}"
            )
        return self._sealed(payload), None

    def check(self, counts: list[int], senders: list[int], error: ConfigError | None) -> None:
        """Raises ConfigError if a rank cannot send its object: `error` there, and its number elsewhere."""
        refused = [sender for sender, count in zip(senders, counts) if count == _REFUSED]
        if error is not None:
            raise error
        if refused:
            raise ConfigError(f"rank {refused[0]} cannot send its object: see the error there.")

    def unpacked(self, received: bytes, sender: int) -> Any:
        """The object of another rank. Nothing is read before its MAC is found right."""
        found = sealed.opened(
            self._engine.object_key, received, sender=sender, process_set=self._set, name=self._name
        )
        if found is None:
            raise RdmacollError(
                f"the object of rank {sender} is not signed by a rank of this job for this call: it was not "
                "read. Let all ranks exchange objects in the same order."
            )
        number, payload = found
        if not self._engine.objects_seen[self._set, sender].is_new(number):
            raise RdmacollError(
                f"object {number} of rank {sender} has come before: it was not read. A process between the "
                "ranks may have sent it again."
            )
        return json.loads(payload) if self._is_json else pickle.loads(payload)

    def _sealed(self, payload: bytes) -> bytes:
        return sealed.seal(
            self._engine.object_key,
            payload,
            sender=world.rank(),
            process_set=self._set,
            name=self._name,
            number=next(self._engine.object_numbers),
        )


def _pickled(obj: Any) -> bytes:
    try:
        pickler: Any = importlib.import_module("cloudpickle")
    except ImportError:
        pickler = pickle
    return bytes(pickler.dumps(obj))
