"""Small results that the processor writes to GPUs (GDRCopy), in whole sessions on the fake driver.

Its GDRCopy ends the process if a write reaches memory that was freed, or that queued work of a stream still
uses. Work that was queued before a write does not see it.
"""

from __future__ import annotations

import pytest
from cuda_sim_build import fake_driver
from test_device_collectives import run_body, run_numpy_program

# All sizes that may be written, and more, in arrays of the caller and of the engine.
SMALL = """
count = device_array._gpu(0).cuda.library.cuda_sim_count
SIZES = (1, 7, 64, 511, 1024, 1025)
arrays = [cupy.array(np.zeros(n, np.float32)) for n in SIZES]
outs = [cupy.array(np.zeros(n, np.float32)) for n in SIZES]
def turn(step):
    total = size * step + size * (size - 1) / 2
    for array, out in zip(arrays, outs):
        array.set(np.full(array.shape, float(me + step), np.float32))     # late, on the stream
        engine.allreduce(array, rdmacoll.Sum, out=out)
        assert (out.get() == total).all()
        engine.allreduce_async(array, rdmacoll.Max, out=out).wait()
        engine.broadcast(out, 0, out=out)
        assert (out.get() == step + size - 1).all()
        engine.allreduce(array, rdmacoll.Sum, out=array)                  # in place
        rows = engine.allgather(array)
        assert (array.get() == total).all() and (rows.get() == total).all()
    engine.grouped_allreduce(arrays[:4], rdmacoll.Average, out=arrays[:4])
    assert all((array.get() == total).all() for array in arrays[:4])
"""
WRITTEN = 'rdmacoll.metrics()["bytes_written_to_gpus"]'


def with_gdrcopy() -> dict[str, str]:
    return {"RDMACOLL_GDRCOPY_LIBRARY": str(fake_driver())}


@pytest.mark.parametrize("size", [2, 3])
def test_small_results_are_right_and_are_written_by_the_processor(size: int) -> None:
    run_body(
        SMALL
        + f"""
for step in range(15):
    turn(step)
written, pins = {WRITTEN}, count(b"calls gdr_pin_buffer")
assert written > 0, rdmacoll.metrics()
turn(15)
assert {WRITTEN} > written
assert count(b"calls gdr_pin_buffer") == pins, "the steady state maps nothing"
""",
        size,
        **with_gdrcopy(),
    )


def test_arrays_that_are_freed_and_made_again_are_not_mixed_up() -> None:
    run_body(
        f"""
for step in range(40):
    arrays = [cupy.array(np.full(n, float(me + step), np.float32)) for n in (3, 200, 1000)]
    for _ in range(3):
        for array in arrays:
            engine.broadcast(array, step % size, out=array)
    assert all((array.get() == step % size + step).all() for array in arrays)
    del array, arrays
assert {WRITTEN} > 0
""",
        **with_gdrcopy(),
    )


@pytest.mark.parametrize("setting", [{"RDMACOLL_GDRCOPY_LIBRARY": "off"}, {"RDMACOLL_TUNE": "off"}])
def test_nothing_is_written_if_it_is_turned_off_or_not_measured(setting: dict[str, str]) -> None:
    run_body(SMALL + f"turn(1)\nturn(2)\nassert {WRITTEN} == 0\n", **{**with_gdrcopy(), **setting})


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["0,1,2", "1"])
def test_collectives_equal_numpy(ranks: str) -> None:
    run_numpy_program(3, DEVICE_RANKS=ranks, **with_gdrcopy())
