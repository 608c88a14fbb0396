"""The imitated cupy on the fake CUDA driver has the streams, strides and lifetimes of an array library."""

from __future__ import annotations

import gc
import os
import sys

import device_array
import ml_dtypes
import numpy as np
import pytest
from cuda_sim_build import fake_driver

from rdmacoll._calls import operands


@pytest.fixture
def cupy(monkeypatch):
    monkeypatch.setenv("CUDA_SIM_MACHINE", "h100x2")
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    yield device_array.cupy_of(fake_driver())
    del sys.modules["cupy"]


@pytest.mark.parametrize("dtype", [np.int8, np.float64, np.complex64, bool, ml_dtypes.bfloat16])
def test_values_come_back_with_every_stride(cupy, dtype):
    host = np.random.default_rng(int.from_bytes(os.urandom(3), "big")).integers(0, 2, (3, 4, 5)).astype(dtype)
    array = cupy.array(host)
    for index in (..., 1, (slice(None), 2), (slice(None, None, 2), slice(1, 3)), (0, 0, 0), slice(0, 0)):
        assert array[index].get().tobytes() == host[index].tobytes()
    part = np.zeros((3, 2, 5), dtype)
    array[:, 1:3][...] = part
    host[:, 1:3] = part
    assert array.get().tobytes() == host.tobytes()


def test_rdmacoll_reads_what_the_array_is(cupy):
    array = cupy.array(np.arange(12.0).reshape(3, 4))
    read = operands.source(array)
    assert (read.address, read.shape, read.gpu) == (array._address, (3, 4), 0)
    assert read.order.stream == cupy.cuda.get_current_stream().ptr
    columns = operands.source(array[:, ::2])
    assert columns.is_contiguous
    assert columns.array.get().tolist() == array.get()[:, ::2].tolist()
    with device_array.new_stream() as other:
        assert operands.source(array).order.stream == other.ptr


def test_memory_lives_as_long_as_its_last_borrower(cupy):
    array = cupy.array(np.arange(5))
    borrowed = cupy.from_dlpack(array)
    del array
    gc.collect()
    assert borrowed.get().tolist() == [0, 1, 2, 3, 4]
