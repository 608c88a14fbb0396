"""The device kernels have numpy's bits, on a real GPU and on the fake driver."""

from __future__ import annotations

import re
import secrets

import numpy as np
import pytest
from cuda_calls import TESTS, Cuda, launch
from kernel_jobs import MAX, MIN, PRODUCT, SUM, Job, size_of_parameters

PTX = {
    path.stem: "".join(re.findall(r'R"ptx\((.*?)\)ptx"', path.read_text(), re.DOTALL))
    for path in sorted((TESTS.parent / "cpp/cuda/kernels/ptx").glob("*.inc"))
    if path.stem not in ("table", "write_word")
}
SOURCES = {"sum": (1, 2, 3, 4), "reduce": (1, 2, 3, 4, 5, 7, 8, 13, 40), "copy": (1,)}


@pytest.mark.parametrize("kernel", PTX)
def test_a_kernel_has_the_bits_of_numpy(cuda: Cuda, library: str, kernel: str) -> None:
    assert f".param .align 8 .b8 {kernel}_param_0[{size_of_parameters()}]" in PTX[kernel]
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    family = kernel.partition("_")[0]
    stream, address = cuda.stream(), cuda.allocate(4 << 20)
    for op in (SUM, MIN, MAX, PRODUCT) if family == "reduce" else (SUM,):
        for sources in SOURCES[family] if "libcuda.so" in library else rng.choice(SOURCES[family], 2):
            with np.errstate(all="ignore"):
                job = Job(kernel, int(sources), op, address, rng)
                expected = job.expected()
            cuda.write(address, bytes(job.image))
            blocks = int(rng.integers(1, 9))
            launch(cuda, PTX[kernel].encode() + b"\0", kernel.encode(), job.parameters, 256, stream, blocks)
            cuda.synchronize(stream)
            found = cuda.read(address, len(expected))
            wrong = next((at for at in range(len(found)) if found[at] != expected[at]), None)
            assert wrong is None, (
                f"seed {seed}: operator {op} of {sources} sources differs at byte {wrong} of {len(found)}, "
                f"results at {[(at, len(result)) for at, result in job.after]}"
            )
    cuda.free(address)
