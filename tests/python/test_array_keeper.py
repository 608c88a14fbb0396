"""ArrayKeeper, which lets go of arrays in a thread once a GPU has done its work on them."""

from __future__ import annotations

import gc
import itertools
import threading
import time

import pytest

from rdmacoll._world.array_keeper import ArrayKeeper


@pytest.mark.parametrize("is_callers", [True, False])
def test_garbage_collection_may_keep_more_in_the_middle_of_each_method(is_callers):
    """In turn n the n-th collection, in the caller's thread or the keeper's, ends an operation."""
    freed, handles, left = [], itertools.count(), [0]
    keeper = ArrayKeeper(lambda _: True, freed.append)
    caller = threading.Thread(target=lambda: keep_in_turns(keeper, handles, left), daemon=True)

    def collected(phase, _):
        if phase == "start" and (threading.get_ident() == caller.ident) == is_callers:
            left[0] -= 1
            if left[0] == 0:
                keeper.keep(next(handles), None)

    keeper.keep(next(handles), None)  # starts the keeper's thread
    thresholds = gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(1)
    try:
        caller.start()
        caller.join(30)
    finally:
        gc.callbacks.remove(collected)
        gc.set_threshold(*thresholds)
    assert not caller.is_alive(), f"turn {left}: a thread waits for a lock that it has itself"
    keeper.end()
    assert sorted(freed) == list(range(next(handles)))


def keep_in_turns(keeper, handles, left):
    for turn in range(30):
        left[0] = 1 + turn
        keeper.keep(next(handles), [])
        keeper.is_done()
        while len(keeper) > 0:
            time.sleep(0.001)
        time.sleep(0.005)  # the keeper's thread waits meanwhile


def test_the_end_frees_what_is_kept_and_what_comes_later():
    freed, is_done, before = [], threading.Event(), threading.enumerate()
    keeper = ArrayKeeper(lambda _: is_done.is_set(), freed.append)
    keeper.keep(1, None)
    keeper.keep(2, None)
    assert not keeper.is_done()
    assert freed == []
    keeper.end()
    keeper.keep(3, None)
    assert freed == [1, 2, 3]
    assert keeper.is_done()
    assert not any(thread.name == "rdmacoll arrays" for thread in set(threading.enumerate()) - set(before))
