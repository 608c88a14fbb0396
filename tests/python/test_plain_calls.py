"""Plain numpy calls through the extension do, return and refuse the same as through ctypes."""

from __future__ import annotations

import pytest
from rank_program import program, turns_of_a_thread_during
from ranks import run

# Hides the extension from a program. Its calls go through ctypes.
WITHOUT_EXTENSION = 'import sys\nsys.modules["rdmacoll.lib.fast_calls"] = None\n'

CASES = """
import ml_dtypes
from rdmacoll.operators import ReduceOp
from rdmacoll._abi import fast_calls
from rdmacoll._world.world import current

plain = current().plain_calls
values = np.arange(6) + me
dtypes = [np.uint8, np.int16, np.int32, np.int64, np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
dtypes += [np.bool_, np.complex64, np.longdouble, ">f4", "M8[s]", "S3", [("x", "f4")], np.longlong]
arrays = {f"{np.dtype(dtype)}": (lambda dtype=dtype: np.zeros(6).astype(dtype)) for dtype in dtypes}
for dtype in dtypes[:10]:
    arrays[f"{np.dtype(dtype)} with values"] = lambda dtype=dtype: values.astype(dtype)
big = np.arange(48.0).reshape(6, 8) + me
read_only = np.arange(4.0)
read_only.flags.writeable = False
arrays |= {
    "list": lambda: [1.0, 2.0 * me],
    "number": lambda: 3,
    "scalar": lambda: np.array(2.0 + me),
    "numpy scalar": lambda: np.float32(me),
    "empty": lambda: np.zeros((0, 3)),
    "columns": lambda: big[:, ::2].copy(order="F"),
    "strided": lambda: big[:, ::2],
    "negative strides": lambda: big[::-1],
    "masked": lambda: np.ma.masked_array([1.0, 2.0], [0, 1]),
    "matrix": lambda: np.matrix([[1.0, 2.0]]),
    "read-only": lambda: read_only,
    "broadcast": lambda: np.broadcast_to(np.ones(2), (3, 2)),
    "eight dimensions": lambda: np.ones((1,) * 7 + (2,)),
    "nine dimensions": lambda: np.ones((1,) * 9),
    "text": lambda: "text",
    "none": lambda: None,
}
outs = {
    "none": lambda array: None,
    "itself": lambda array: array,
    "like it": lambda array: np.empty_like(array),
    "another view": lambda array: array[...],
    "another dtype": lambda array: np.empty(array.shape, np.float16),
    "another shape": lambda array: np.empty(7),
    "strided": lambda array: np.empty((*array.shape, 2), array.dtype)[..., 0],
    "read-only": lambda array: read_only,
    "list": lambda array: [0.0] * 6,
}
overlaps = {"overlapping": (lambda: np.arange(64.0)[:6], lambda array: array.base[2:8])}
names = ["", "a name", "n\\u00e4me", "NUL \\0", "\\ud800", 7, b"bytes", type("Name", (str,), {})("derived")]
calls = []
for label, array in arrays.items():
    for op in (0, *ReduceOp):
        calls.append((f"allreduce {label}, {op!r}", "allreduce", array, None, {"op": op}))
    for kind in "broadcast", "gather", "scatter":
        calls.append((f"{kind} {label}", kind, array, None, {"root_rank": 1}))
    for kind in "allgather", "alltoall":
        calls.append((f"{kind} {label}", kind, array, None, {}))
    calls.append((f"reducescatter {label}", "reducescatter", array, None, {"op": rdmacoll.Max}))
    calls.append((f"reduce {label}", "reduce", array, None, {"op": rdmacoll.Max, "root_rank": 1}))
rows = lambda: np.arange(3.0 * (2 + me)).reshape(-1, 3)    # another number on each rank
for kind, options in ("allgather", {}), ("gather", {"root_rank": 0}):
    calls.append((f"{kind} of unequal rows", kind, rows, None, options))
calls.append(("alltoall by rows", "alltoall", rows, None, {"splits": [1, 1 + me]}))
calls.append(("scatter by rows", "scatter", rows, None, {"root_rank": 0, "splits": [2, 0]}))
calls.append(("a large allgather", "allgather", lambda: np.full(40_000, 1.0 + me), None, {}))
for label, out in outs.items():
    for kind, options in (
        ("allreduce", {"op": rdmacoll.Sum}),
        ("broadcast", {"root_rank": 0}),
        ("reduce", {"op": rdmacoll.Sum, "root_rank": 0}),
    ):
        calls.append((f"{kind} to {label}", kind, lambda: values.astype(float), out, options))
for label, (array, out) in overlaps.items():
    calls.append((f"allreduce {label}", "allreduce", array, out, {"op": rdmacoll.Max}))
for root in (True, np.int64(1), 2, -1, 1.0, None, "0", 1 << 70):
    for kind in "broadcast", "reduce", "gather", "scatter":
        calls.append((f"{kind} from {root!r}", kind, lambda: values, None, {"root_rank": root}))
for op in (1.0, True, 9, None, "Sum", np.int32(0)):
    for kind, root in ("allreduce", {}), ("reducescatter", {}), ("reduce", {"root_rank": 1}):
        calls.append((f"{kind} with {op!r}", kind, lambda: values, None, {"op": op, **root}))
for factor in (2.0, 1, np.float64(1.0), np.array([1.0, 1.0]), "1.0", np.nan):
    options = {"prescale_factor": factor}
    calls.append((f"allreduce times {factor!r}", "allreduce", lambda: values.astype(float), None, options))
for name in names:
    options = {"name": name, "op": rdmacoll.Sum}
    calls.append((f"allreduce called {name!r}", "allreduce", lambda: values, None, options))
    calls.append((f"barrier called {name!r}", "barrier", None, None, {"name": name}))
    calls.append((f"allgather called {name!r}", "allgather", lambda: values, None, {"name": name}))

def outcome(kind, array, out, options):
    given = () if array is None else (array(),)
    try:
        to = {} if out is None else {"out": out(*given)}
        result = getattr(engine, kind)(*given, **to, **options)
    except Exception as error:
        # An error about both ranks has the number of the operation, and begins with either rank.
        is_of_both = isinstance(error, rdmacoll.MismatchError)
        return type(error).__name__, "" if is_of_both else str(error)
    if result is None:
        return ("None",)
    if isinstance(result, tuple):
        return tuple(one.tolist() for one in result)
    is_out = [one for one in (*given, *to.values()) if one is result]
    return str(result.dtype), result.shape, result.flags.writeable, len(is_out), result.tobytes()
"""


def test_calls_through_the_extension_are_those_through_ctypes() -> None:
    body = (
        CASES
        + """
assert plain is not None, "build it: make native"
wrong = []
for label, *call in calls:
    fast_calls.use_engine(None, None)
    expected = outcome(*call)
    fast_calls.use_engine(current(), plain)
    for which in "first", "second":
        found = outcome(*call)
        if found != expected:
            wrong.append((label, which, expected, found))
    # One rank uses the extension, the other does not. They still match.
    fast_calls.use_engine(current(), plain if me == 0 else None)
    found = outcome(*call)
    if found != expected:
        wrong.append((label, "mixed", expected, found))
assert len(calls) > 200 and not wrong, wrong
"""
    )
    assert [entry["error"] for entry in run(program(body), 2).succeeded()] == [None, None]


def test_the_usual_calls_take_the_extension() -> None:
    body = """
import rdmacoll.engine.collectives as module
from rdmacoll._world.world import current
one, other, ours = np.ones(3), np.ones(3), current()
engine.allreduce(one), engine.broadcast(one, 0), engine.barrier()    # this dtype is known from now on
engine.allreduce(one, rdmacoll.Sum)
only = [rdmacoll.add_process_set([rank]) for rank in range(2)][me]
python = module.current, module.perform
keywords = {"out": other, "op": rdmacoll.Average}
module.current = module.perform = None    # Python code would fail
references = [sys.getrefcount(each) for each in (one, other, ours, only, None)]
assert engine.allreduce(one, out=one) is one
assert engine.allreduce(one, rdmacoll.Average, "name", other, process_set=only) is other
assert engine.allreduce(array=one, name=None, prescale_factor=1.0).tolist() == [1.0, 1.0, 1.0]
assert engine.broadcast(one, 0, out=other) is other
assert engine.broadcast(root_rank=0, array=one).tolist() == [1.0, 1.0, 1.0]
assert engine.barrier() is None
for _ in range(100):
    engine.allreduce(one, **keywords)
    engine.allreduce(*(one, rdmacoll.Average, "name"), out=other)
    engine.allreduce(one, rdmacoll.Sum, process_set=only)
    for refused in ({}, {"array": one, "shape": 3}, {"array": one, "stream": 1}):
        try:
            engine.allreduce(**refused)
        except TypeError:
            pass    # missing, unknown, or Python code
        else:
            raise AssertionError(refused)
del refused
now = [sys.getrefcount(each) for each in (one, other, ours, only, None)]
assert now[:4] == references[:4] and abs(now[4] - references[4]) < 50, (references, now)
assert ours.plain_calls.in_flight == 0
module.current, module.perform = python
engine.barrier()    # neither rank leaves before the other one has ended
"""
    assert [entry["error"] for entry in run(program(body), 2).succeeded()] == [None, None]


def test_a_result_of_a_plain_call_stays_while_equal_calls_follow() -> None:
    body = """
one = np.zeros(4)
calls = {
    "allgather": lambda: engine.allgather(one),
    "alltoall": lambda: engine.alltoall(one),
    "gather": lambda: engine.gather(one, 1),
    "scatter": lambda: engine.scatter(one, 0),
    "reducescatter": lambda: engine.reducescatter(one, rdmacoll.Sum),
    "reduce": lambda: engine.reduce(one, 1, rdmacoll.Sum),
}
for name, call in calls.items():
    results = []
    for turn in range(5):
        one[:] = turn
        results.append(call())
    factor = 2 if name in ("reducescatter", "reduce") else 1
    for turn, result in enumerate(results):
        has_result = me == 1 or name not in ("gather", "reduce")
        assert (result is not None) == has_result, name
        assert result is None or (result == turn * factor).all(), (name, turn, result)

# Rank 1 sends another number of rows each time, and rank 0's calls are equal.
for turn in range(200):
    rows = 1 + turn % 3 if me == 1 and turn > 100 else 1
    gathered = engine.allgather(one[:rows], "rows")
    assert gathered.shape == (2 + (turn % 3 if turn > 100 else 0),), (turn, gathered)
"""
    assert [entry["error"] for entry in run(program(body), 2).succeeded()] == [None, None]


def test_a_plain_call_that_ctrl_c_ended_keeps_its_memory() -> None:
    body = """
if me == 0:
    count = 4_000_000
    mine, other = np.ones(count, np.float32), np.ones(4000, np.float32)
    engine.allreduce(np.ones(3, np.float32), rdmacoll.Sum, name="known")
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for array, name in (mine, "large"), (other, "small"):
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            engine.allreduce(array, rdmacoll.Sum, name, array)
        except KeyboardInterrupt:
            continue
        raise AssertionError("it was not interrupted")
    from rdmacoll._world.world import current
    assert len(current().unfinished) == 2 and current().plain_calls.in_flight == 0
    del mine, other, array    # the engine has their addresses still
    others = [np.full(count, 7, np.float32) for _ in range(4)] + [np.full(4000, 7, np.float32)] * 40
    engine.barrier(name="go")
    engine.barrier(name="end")
    assert all((other == 7).all() for other in others), "reused memory was written to"
else:
    engine.allreduce(np.ones(3, np.float32), rdmacoll.Sum, name="known")
    engine.barrier(name="go")
    engine.allreduce(np.ones(4_000_000, np.float32), rdmacoll.Sum, name="large")
    engine.allreduce(np.ones(4000, np.float32), rdmacoll.Sum, name="small")
    engine.barrier(name="end")
"""
    assert [entry["error"] for entry in run(program(body), 2).succeeded()] == [None, None]


def test_a_shutdown_ends_a_plain_call_of_another_thread() -> None:
    body = """
import gc, threading
if me == 0:
    said = []
    def wait():
        try:
            engine.allreduce(np.ones(3), rdmacoll.Sum, name="late")
        except rdmacoll.RdmacollError as error:
            said.append(type(error).__name__)
    engine.allreduce(np.ones(3), rdmacoll.Sum, name="known")
    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    from rdmacoll._world.world import current
    ours = current()
    assert ours.plain_calls.in_flight == 1
    rdmacoll.shutdown()
    thread.join(20)
    assert said == ["ShutdownError"], said
    assert ours.plain_calls.in_flight == 0 and not ours._unfreed, "the engine was not freed"
    try:
        engine.barrier()
    except rdmacoll.NotInitializedError:
        pass
    else:
        raise AssertionError("it ran without an engine")
    rdmacoll.init(rank=0, size=1, rendezvous="127.0.0.1:0")    # for the report
else:
    engine.allreduce(np.ones(3), rdmacoll.Sum, name="known")
    try:
        engine.barrier(name="never")
    except rdmacoll.RdmacollError:
        pass    # rank 0 has left
"""
    outcome = run(program(body), 2).succeeded()
    assert [entry["error"] for entry in outcome] == [None, None]


@pytest.mark.parametrize("count", [2, 100_000])
def test_threads_go_on_while_a_plain_call_waits_for_a_late_rank(count: int) -> None:
    body = f"""
mine = np.ones({count}, np.float32)
for _ in range(100):
    engine.allreduce(mine, rdmacoll.Max, out=mine)
{turns_of_a_thread_during("engine.allreduce(mine, rdmacoll.Max, out=mine)")}
"""
    assert [entry["error"] for entry in run(program(body), 2).succeeded()] == [None, None]


def test_without_the_extension_everything_goes_through_ctypes() -> None:
    body = """
from rdmacoll._world.world import current
assert current().plain_calls is None
mine = np.full(3, me + 1.0)
assert (engine.allreduce(mine, rdmacoll.Sum) == 3).all()
step = engine.prepare_allreduce(mine, np.empty(3), rdmacoll.Sum)
gather = engine.prepare_allgather(np.arange(2.0) + me)
for _ in range(3):
    assert (step() == 3).all() and gather().tolist() == [0, 1, 1, 2]
engine.barrier()
step.__del__()
try:
    step()
except rdmacoll.RdmacollError as error:
    assert "has been freed" in str(error), error
else:
    raise AssertionError("it ran")
"""
    outcome = run(WITHOUT_EXTENSION + program(body), 2, cold=True).succeeded()
    assert [entry["error"] for entry in outcome] == [None, None]


def test_ranks_that_repeat_a_call_and_ranks_that_do_not_still_match() -> None:
    body = """
import random, threading
seed = 5
print("seed", seed)
draw, kept = random.Random(seed), {}
for turn in range(600):
    kind = draw.choice(["allreduce", "broadcast", "barrier"])
    name = draw.choice([None, None, "one", "two"])
    dtype, count = draw.choice([np.float32, np.int64]), draw.choice([2, 3, 300])
    op, root, replaces = draw.choice([rdmacoll.Sum, rdmacoll.Max]), draw.randrange(size), draw.random() < 0.5
    key = dtype, count
    # Rank 0 keeps its arrays, and rank 1 often has others, perhaps at the addresses of earlier ones.
    if key not in kept or (me == 1 and replaces):
        kept[key] = np.empty(count, dtype)
    kept[key][:] = me + turn
    if kind == "barrier":
        engine.barrier(name)
        continue
    options = {"op": op} if kind == "allreduce" else {"root_rank": root}
    expected = root + turn
    if kind == "allreduce":
        expected = 2 * turn + 1 if op is rdmacoll.Sum else turn + 1
    result = getattr(engine, kind)(kept[key], name=name, out=kept[key], **options)
    assert (result == expected).all(), (turn, kind, result, expected)
# More arrays than the library remembers, and shapes that differ at one address.
many_arrays = [np.full(12, number, np.int64) for number in range(300)]
for _ in range(3):
    for number, array in enumerate(many_arrays):
        for view in array[:6], array.reshape(3, 4)[:2], array[:7]:
            view[...] = number
            assert (engine.allreduce(view, rdmacoll.Sum, out=view) == 2 * number).all(), number
# A call that fails is forgotten, and the next one is whole again.
for turn in range(3):
    try:
        engine.allreduce(np.ones(3 if turn % 2 == 0 else 3 + me), rdmacoll.Sum, "shapes")
    except rdmacoll.MismatchError:
        assert turn == 1
    else:
        assert turn != 1
# Equal calls of several threads at once.
shared, wrong = np.ones(4), []
def many(number):
    for _ in range(100):
        if (engine.allreduce(shared, rdmacoll.Sum, f"thread {number}") != size).any():
            wrong.append(number)
threads = [threading.Thread(target=many, args=(number,)) for number in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not wrong, wrong
"""
    assert [entry["error"] for entry in run(program(body), 2).succeeded()] == [None, None]
