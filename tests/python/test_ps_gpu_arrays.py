"""Gradients and values of asynchronous parameter servers in memory of a GPU, on the fake CUDA driver."""

from __future__ import annotations

from ranks import run
from test_device_collectives import environment

PROGRAM = """
import os
import numpy as np
import device_array
from gpu_arrays import refused
import rdmacoll
from rdmacoll import ps
from ranks import report
cupy = device_array.cupy_of(os.environ["RDMACOLL_CUDA_LIBRARY"])
rule = ps.Rule("optimizer=sgd\\nschedule=constant\\ninitial_learning_rate=0.3\\n")
rdmacoll.init(mode="ps", sync=False, num_servers=1)
rng = np.random.default_rng(3)
SHAPES = {"w": (300, 70), "b": (5,), "none": (0, 3), "words": (1000, 4)}
start = {name: rng.random(shape).astype(np.float32) for name, shape in SHAPES.items()}
names = {kind: [f"{kind} {name}" for name in SHAPES] for kind in ("host", "gpu")}
ps.declare({f"{kind} {name}": value.copy() for kind in names for name, value in start.items()}, rule,
           by_rows=["host words", "gpu words"])
def same(got, wanted):
    assert type(got) is cupy.ndarray
    assert got.get().tobytes() == wanted.tobytes() and got.shape == wanted.shape
for turn in range(8):
    with device_array.new_stream():             # copies arrive late, and on this stream
        hosts = {name: rng.random(shape).astype(np.float32) for name, shape in SHAPES.items()}
        arrays = {name: cupy.array(value) for name, value in hosts.items()}
        wanted = ps.exchange({f"host {name}": value for name, value in hosts.items() if name != "words"})
        given = cupy.array(np.zeros(SHAPES["w"], np.float32))
        found = ps.exchange(
            {f"gpu {name}": array for name, array in arrays.items() if name != "words"}, {"gpu w": given}
        )
        assert found["gpu w"] is given
        for name in ("w", "b", "none"):
            same(found[f"gpu {name}"], wanted[f"host {name}"])
        ps.push(hosts["b"], "host b", learning_rate=0.7)
        ps.push(arrays["b"], "gpu b", learning_rate=0.7)
        out = cupy.array(np.zeros(5, np.float32))
        assert ps.pull("gpu b", out) is out
        same(out, ps.pull("host b"))
        rows = rng.integers(0, 1000, 30)
        ps.push_rows(rows, hosts["words"][:30].copy(), "host words")
        ps.push_rows(rows, cupy.array(hosts["words"][:30].copy()), "gpu words")
        assert ps.pull("gpu words").tobytes() == ps.pull("host words").tobytes()
# Another stream than the current one is named.
other = device_array.new_stream()
with other:
    late = cupy.array(hosts["b"])
ps.push(hosts["b"], "host b")
ps.push(late, "gpu b", stream=other)
assert ps.pull("gpu b").tobytes() == ps.pull("host b").tobytes()
strided = cupy.array(np.zeros((70, 300), np.float32))
with refused("takes gradients of float32[300, 70]"):
    ps.push(strided, "gpu w")
with refused("out is float64"):
    ps.pull("gpu b", cupy.array(np.zeros(5)))
count = device_array._gpu(0).cuda.library.cuda_sim_count
assert count(b"work on default streams") == 0 and count(b"device-wide synchronisations") == 0
allocations = count(b"calls cuMemAlloc_v2"), count(b"calls cuMemHostRegister_v2")
ps.push(arrays["w"], "gpu w")
ps.pull("gpu w", given)
assert (count(b"calls cuMemAlloc_v2"), count(b"calls cuMemHostRegister_v2")) == allocations
report(True)
rdmacoll.shutdown()
"""


def test_gradients_and_values_on_a_gpu_have_the_bits_of_host_memory():
    outcome = run(PROGRAM, 2, env=environment(), deadline_s=120)
    assert outcome.succeeded()[0] is True, outcome.text()
