"""Tests refusals in turn under one name, names in flight, and groups that differ. Every rank gets the errors,
and later operations still match."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

import numpy as np
from tf_common import close, expected, raised, run_all, value

import rdmacoll
from rdmacoll import engine

rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
ODD = 1  # the rank that differs
SALT = iter(range(10_000))
GOOD, WHOLE = np.ones(3, np.float32), np.ones(3, np.int32)


def follows_right(name: str | None = None) -> None:
    """Checks that the next operations of all ranks match."""
    for title in None, name:
        salt = next(SALT)
        total = engine.allreduce(value(RANK, (3,), salt=salt), rdmacoll.Sum, name=title)
        close(total, expected(rdmacoll.Sum, (3,), "float32", salt=salt))


def hears(call: Callable[[], Any], *words: str) -> None:
    """Checks that the error is a MismatchError with these words."""
    found = raised(rdmacoll.MismatchError, call)
    for word in words:
        assert word in str(found), (word, str(found))


def check_each_refusal_of_a_name_meets_the_operation_of_its_turn() -> None:
    for dtypes in (np.int32, np.int64), (np.int64, np.int16, np.int32):
        if RANK == ODD:
            for dtype in dtypes:
                bad = np.ones(3, dtype)
                raised(rdmacoll.ConfigError, lambda bad=bad: engine.allreduce(bad, name="again"))  # type: ignore[misc]
        else:
            for dtype in dtypes:
                title = f"rank {ODD} refused its allreduce: Average of {np.dtype(dtype)}"
                hears(lambda: engine.allreduce(GOOD, name="again"), title)
        follows_right("again")


def check_a_refusal_behind_an_operation_of_its_name_that_is_in_flight() -> None:
    first = value(RANK, (4,), salt=(salt := next(SALT)))
    if RANK == ODD:
        handle = engine.allreduce_async(first, rdmacoll.Sum, name="busy")
        raised(rdmacoll.ConfigError, lambda: engine.allreduce(WHOLE, name="busy"))
        raised(rdmacoll.DuplicateNameError, lambda: engine.allreduce(GOOD, name="busy"))
        raised(rdmacoll.DuplicateNameError, engine.prepare_allreduce(GOOD.copy(), name="busy"))
        engine.barrier(name="refused")
        total = handle.wait()
    else:
        engine.barrier(name="refused")
        total = engine.allreduce(first, rdmacoll.Sum, name="busy")
        hears(lambda: engine.allreduce(GOOD, name="busy"), f"rank {ODD} refused", "Average of int32")
        for _ in range(2):
            hears(lambda: engine.allreduce(GOOD, name="busy"), f"rank {ODD} refused", "in flight already")
    close(total, expected(rdmacoll.Sum, (4,), "float32", salt=salt))
    follows_right("busy")


def _lists() -> list[tuple[list[Any], list[Any], bool]]:
    """Returns the arrays of most ranks, those of the odd rank, and whether the odd rank itself refuses
    them."""
    wide, half = np.ones(3), np.ones(3, np.float16)
    return [
        ([GOOD, wide], [GOOD, GOOD], False),
        ([GOOD, wide], [GOOD], False),
        ([GOOD, GOOD], [GOOD, wide, half], False),
        ([half, GOOD, wide], [wide, half], False),
        ([GOOD, wide], [np.array([object()]), GOOD], True),
        ([GOOD], [wide, GOOD, np.ones((1,) * 9)], True),
    ]


def check_groups_of_different_dtypes_are_an_error_and_shift_nothing() -> None:
    calls: list[Callable[..., Any]] = [
        engine.grouped_allreduce,
        engine.grouped_allgather,
        engine.grouped_reducescatter,
        partial(engine.grouped_broadcast, root_rank=0),
        lambda arrays, **more: engine.grouped_allreduce_async(arrays, **more).wait(),
    ]
    for call in calls:
        for most, odd, is_refused in _lists():
            for name in None, "group":
                if RANK == ODD and is_refused:
                    raised(rdmacoll.ConfigError, lambda odd=odd: call(odd, name=name))  # type: ignore[misc]  # noqa: B023
                else:
                    sources = odd if RANK == ODD else most
                    hears(lambda sources=sources: call(sources, name=name))  # type: ignore[misc]  # noqa: B023
                follows_right("group")


def check_a_group_without_arrays_takes_its_place() -> None:
    for name in None, "empty":
        if RANK == ODD:
            assert engine.grouped_allreduce([], name=name) == []
        else:
            hears(
                lambda: engine.grouped_allreduce([GOOD], name=name),  # noqa: B023
                f"rank {ODD} refused its allreduce: the group has no arrays",
            )
        follows_right("empty")
    for _ in range(3):
        assert engine.grouped_allgather([]) == []
    follows_right()


def check_groups_of_several_dtypes_have_the_right_sums_in_any_order() -> None:
    dtypes = ["float32", "float64", "int32", "float16"]
    for name in None, "mixed":
        handles = []
        for turn in range(20):
            order = dtypes if (RANK + turn) % 2 else dtypes[::-1]
            salts = {dtype: next(SALT) for dtype in dtypes}
            arrays = [value(RANK, (5,), dtype, salt=salts[dtype]) for dtype in order]
            # Unnamed operations may be in flight at once.
            handles.append((engine.grouped_allreduce_async(arrays, rdmacoll.Sum, name), order, salts))
            while handles and (name or len(handles) == 4 or turn == 19):
                handle, titles, numbers = handles.pop(0)
                for total, dtype in zip(handle.wait(), titles):
                    assert total.dtype == dtype
                    close(total, expected(rdmacoll.Sum, (5,), dtype, salt=numbers[dtype]), dtype)
    follows_right()


def check_a_repeated_group_of_several_dtypes_is_planned() -> None:
    arrays = [np.ones(2, np.float32), np.ones(2)]
    for _ in range(60):
        for total in engine.grouped_allreduce(arrays, rdmacoll.Sum):
            assert total.tolist() == [SIZE] * 2
    assert rdmacoll.metrics()["plans"] > 0, rdmacoll.metrics()


def _refuse_names_of_all_lengths() -> None:
    for length in 4087, 4088, 4096, 4097, 5000, 1 << 20:
        long = "n" * length
        text = str(raised(rdmacoll.ConfigError, lambda: engine.allreduce(WHOLE, name=long)))  # noqa: B023
        assert "Average of int32" in text
        if length > 4096:
            assert "bytes" in str(raised(rdmacoll.ConfigError, lambda: engine.allreduce(GOOD, name=long)))  # noqa: B023
        if length > 4088:  # the dtype follows in the text
            group = [GOOD, np.ones(2)]
            text = str(raised(rdmacoll.ConfigError, lambda: engine.grouped_allreduce(group, name=long)))  # noqa: B023
            assert "bytes" in text, text


def check_names_that_are_too_long_are_refused_and_harm_nobody() -> None:
    _refuse_names_of_all_lengths()
    follows_right()


def check_refusals_and_groups_while_a_rank_has_joined() -> None:
    last = SIZE - 1
    if last != RANK:
        for _ in range(3):
            totals = engine.grouped_allreduce([GOOD, np.ones(2)], rdmacoll.Sum)
            assert [total[0] for total in totals] == [last, last]
        _refuse_names_of_all_lengths()
    assert rdmacoll.join() in range(SIZE)
    follows_right()


if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
