"""A program in which two threads are in the first `wait()` of each kind of asynchronous call."""

from __future__ import annotations

# A second thread stops before it waits in the library, or behind that. This thread ends its own `wait()`
# meanwhile. `make(values)` returns an array, and `numbers(array)` its values.
WAITS = """
import threading
from rdmacoll._world.world import current
library = current().library
real_wait, real_free = library.handle_wait, library.handle_free
freed, used_after, stop_at = set(), [], ["before"]
is_there, may_go = threading.Event(), threading.Event()

def wait_in_library(handle, *rest):
    is_second = threading.current_thread() is not threading.main_thread()
    def stop(place):
        if is_second and stop_at[0] == place:
            is_there.set()
            assert may_go.wait(20)
    stop("before")
    if handle in freed:
        used_after.append(handle)
        return 0  # the real call would read freed memory
    code = real_wait(handle, *rest)
    stop("behind")
    return code

def free(handle):  # really at the end, so that no other handle gets the address
    freed.add(handle)

library.handle_wait, library.handle_free, current().keeper._free = wait_in_library, free, free

count, own = size, np.arange(40 * size, dtype=np.float32) + me
right_sum = count * (own - me) + count * (count - 1) / 2
rows = np.concatenate([own - me + rank for rank in range(count)])
mine = slice(40 * me, 40 * me + 40)
columns = np.concatenate([own[mine] - me + rank for rank in range(count)])
counts = [40] * count
strided = {}
if has_strided:  # results are copied into them
    target = np.zeros((40 * size, 2), np.float32)[:, 0]
    strided = {
        "strided": (lambda: engine.allreduce_async(own, rdmacoll.Sum, out=target), right_sum),
        "strided rows": (lambda: engine.broadcast_async(own, 1, out=target), own - me + 1),
    }
kinds = {
    "allreduce": (lambda: engine.allreduce_async(make(own), rdmacoll.Sum), right_sum),
    "broadcast": (lambda: engine.broadcast_async(make(own), 1), own - me + 1),
    "allgather": (lambda: engine.allgather_async(make(own)), rows),
    "reducescatter": (lambda: engine.reducescatter_async(make(own), rdmacoll.Sum), right_sum[mine]),
    "alltoall": (lambda: engine.alltoall_async(make(own)), columns),
    "gather": (lambda: engine.gather_async(make(own), 0), rows if me == 0 else None),
    "scatter": (lambda: engine.scatter_async(make(own), 1), own[mine] - me + 1),
    "reduce": (lambda: engine.reduce_async(make(own), 0, rdmacoll.Sum), right_sum if me == 0 else None),
    "sums": (lambda: engine.grouped_allreduce_async([make(own), make(own)], rdmacoll.Sum), [right_sum] * 2),
    "rows": (lambda: engine.grouped_allgather_async([make(own), make(own)]), [rows] * 2),
    "dtypes": (
        lambda: engine.grouped_allgather_async([make(own), make(own.astype(np.int32))]),
        [rows, rows],
    ),
    **strided,
}

def wait(handle, found):
    try:
        found.append(handle.wait())
    except BaseException as error:
        found.append(error)

def same(found, right):
    if isinstance(right, list):
        return len(found) == len(right) and all(map(same, found, right))
    if isinstance(found, tuple):  # with the row counts of an alltoall
        found = found[0]
    return found is None if right is None else bool((numbers(found).reshape(-1) == right).all())

for place in ("before", "behind"):
    stop_at[0] = place
    for kind, (start, right) in kinds.items():
        handle, found = start(), []
        is_there.clear(); may_go.clear()
        second = threading.Thread(target=wait, args=(handle, found))
        second.start()
        assert is_there.wait(20)
        first = handle.wait()
        del handle
        assert same(first, right), (kind, place, first)
        if writable(first):
            first[...] = 7  # belongs to this thread now
            right = np.full_like(right, 7)
        may_go.set()
        second.join(20)
        assert len(found) == 1 and found[0] is first, (kind, place, found)
        assert same(first, right), (kind, place, "written again")
        del first, found
    assert not used_after, (place, "a freed handle was used")
library.handle_free = current().keeper._free = real_free
for handle in freed:
    real_free(handle)
"""

HOST = (
    """
make, numbers, has_strided = np.array, np.asarray, True
def writable(found):
    return isinstance(found, np.ndarray)
"""
    + WAITS
)

GPU = (
    """
import gpu_arrays
make, has_strided = gpu_arrays.cupy().array, False
def numbers(found):
    return found.get()
def writable(found):
    return False
"""
    + WAITS
)
