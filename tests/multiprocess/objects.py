"""Tests objects that ranks send to each other. The argument is the value of RDMACOLL_OBJECTS."""

from __future__ import annotations

import sys
from typing import Any, Callable

from tf_common import raised, run_all

import rdmacoll
import rdmacoll.tensorflow as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
IS_JSON = sys.argv[1] == "json"


class Traced:
    """An object whose pickle says when it is read."""

    def __reduce__(self) -> Any:
        return exec, ("import sys; sys.has_read_pickle = True",)


def has_read() -> bool:
    """Returns whether this process has read such a pickle since the last call."""
    return bool(vars(sys).pop("has_read_pickle", False))


def check_objects_of_the_root_come_to_every_rank() -> None:
    for obj in ({"epoch": 3, "names": ["a", "b"]}, None, "x" * 100_000, [1.5, True]):
        for root in range(SIZE):
            assert hvd.broadcast_object(obj if root == RANK else "own", root) == obj
    send = hvd.broadcast_object_fn(SIZE - 1, name="state")
    assert [send([RANK, step]) for step in range(3)] == [[SIZE - 1, step] for step in range(3)]
    assert hvd.broadcast_object(RANK, 0, None, "named") == 0


def check_objects_of_all_ranks_come_in_their_order() -> None:
    assert hvd.allgather_object([RANK] * RANK) == [[rank] * rank for rank in range(SIZE)]
    assert hvd.allgather_object(RANK, None, "named") == list(range(SIZE))


def check_process_sets_have_objects_of_their_own() -> None:
    if SIZE < 3:
        return
    one = hvd.add_process_set(range(1, SIZE))
    if RANK > 0:
        assert hvd.allgather_object(RANK, process_set=one) == list(range(1, SIZE))
        assert hvd.broadcast_object(RANK, SIZE - 1, process_set=one) == SIZE - 1
    assert hvd.broadcast_object(RANK) == 0
    hvd.remove_process_set(one)


def check_an_object_that_cannot_be_sent_is_an_error_on_every_rank() -> None:
    wrong: Any = {1, 2} if IS_JSON else _unpicklable()
    for call in (hvd.broadcast_object, hvd.allgather_object):
        error = raised(rdmacoll.ConfigError, lambda: call(wrong if RANK == 0 else 1))  # noqa: B023
        assert ("RDMACOLL_OBJECTS=json" in str(error)) == (IS_JSON and RANK == 0), error
    assert hvd.broadcast_object(RANK) == 0


def _unpicklable() -> Callable[[], int]:
    import threading

    return threading.Lock()  # type: ignore[return-value]


def check_json_reads_no_code() -> None:
    if not IS_JSON:
        hvd.broadcast_object(Traced() if RANK == 0 else None)
        assert has_read() == (RANK > 0)
        return
    raised(rdmacoll.ConfigError, lambda: hvd.broadcast_object(Traced() if RANK == 0 else None))
    assert not has_read()


def check_an_object_without_the_jobs_signature_is_not_read() -> None:
    if SIZE == 1 or IS_JSON:
        return
    from rdmacoll._world import world

    engine = world.current()
    own_key = engine.object_key
    engine.object_key = own_key if RANK else b"another key"
    if RANK == 0:
        hvd.broadcast_object(Traced())
    else:
        error = raised(rdmacoll.RdmacollError, lambda: hvd.broadcast_object(None))
        assert "rank 0 is not signed" in str(error)
    assert not has_read()
    engine.object_key = own_key
    assert hvd.broadcast_object(RANK) == 0


def check_an_object_that_has_come_before_is_not_read() -> None:
    if SIZE == 1 or IS_JSON:
        return
    from rdmacoll._world import world

    engine = world.current()
    numbers = engine.object_numbers
    engine.object_numbers = iter([0]) if RANK == 0 else numbers
    if RANK == 0:
        hvd.broadcast_object(Traced())
    else:
        error = raised(rdmacoll.RdmacollError, lambda: hvd.broadcast_object(None))
        assert "object 0 of rank 0 has come before" in str(error)
    assert not has_read()
    engine.object_numbers = numbers
    assert hvd.broadcast_object(RANK) == 0


def check_a_call_that_fails_on_one_rank_alone_shifts_nothing() -> None:
    if SIZE == 1:
        return
    # Calls with a wrong process set fail before they are announced. A root that does not exist fails the call
    # on all ranks.
    for call in (hvd.broadcast_object, hvd.allgather_object):
        if RANK == 0:
            raised(Exception, lambda: call(RANK, process_set="no set"))  # noqa: B023
    raised(rdmacoll.RdmacollError, lambda: hvd.broadcast_object(RANK, SIZE if RANK == 0 else 0))
    assert hvd.broadcast_object(RANK) == 0
    assert hvd.broadcast_object(RANK, SIZE - 1, name="named") == SIZE - 1
    assert hvd.allgather_object(RANK) == list(range(SIZE))


run_all(globals())
