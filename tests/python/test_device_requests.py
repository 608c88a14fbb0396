"""Requests and results of calls on arrays in GPU memory, as they reach the library and come from it."""

from __future__ import annotations

import ctypes
import gc
import sys

import imitated_libraries
import numpy as np
import pytest

from rdmacoll._abi import mirror
from rdmacoll._calls import operands
from rdmacoll._calls.gpu_array import GpuArray
from rdmacoll._calls.results import PreparedResults, Results, type_of
from rdmacoll._calls.submission import Call, Operation

STREAM = -2  # the position in a request


@pytest.fixture
def cupy(monkeypatch):
    library = imitated_libraries.cupy(monkeypatch)
    library.module.from_dlpack = lambda memory: memory
    return library


class Engine:
    """An engine whose library only notes what is freed."""

    is_open, is_forked = True, False
    address = 0x42

    def __init__(self):
        self.freed, self.holders = [], set()
        self.library = self.keeper = self
        self.share, self.release = self.holders.add, self.holders.discard

    def is_done(self):
        return False

    def handle_end(self, handle):
        return None

    def handle_result_at(self, handle, index):
        return 0x6000_0000 + index, (3, 2)

    def prepared_result_at(self, prepared, index):
        return 0x51, 0x6000_0000, (4,)

    def result_take(self, handle, index):
        return 0x51 + index

    def handle_free(self, handle):
        self.freed.append(("handle", handle))

    def gpu_free(self, engine, result, stream):
        self.freed.append((engine, result, stream))


def results_of(engine):
    """The results of an operation that has ended."""
    return Results(engine, Operation(engine, Call(mirror.BARRIER, (), ()), ctypes.c_void_p(0x99)))


def test_a_request_has_the_stream_and_the_addresses(cupy):
    pairs = [operands.source_and_target(cupy.array((2, 3)), out, 0x456) for out in (None, cupy.array((2, 3)))]
    call = Call(mirror.BROADCAST, [pair[0] for pair in pairs], [pair[1] for pair in pairs], dtype=6)
    scratch = call.fill()
    request = mirror.REQUEST.unpack(scratch.request)
    assert (request[0], request[STREAM]) == (mirror.BROADCAST, 0x456)
    for number, (read, target) in enumerate(pairs):
        tensor = mirror.TENSOR.unpack_from(scratch.tensors, number * mirror.TENSOR.size)
        assert tensor[:5] == (read.address, target.address, 2, 2, 3)
    host = np.ones(3)
    assert mirror.REQUEST.unpack(Call(mirror.BROADCAST, [host], [host]).fill().request)[STREAM] == 0
    assert mirror.REQUEST.unpack(Call(mirror.BARRIER, (), ()).fill().request)[STREAM] == 0


def test_a_result_is_freed_once_after_the_work_of_its_stream(cupy):
    engine = Engine()
    kind = type_of(operands.source(cupy.array(gpu=1), 0x456))
    results = results_of(engine)
    first, second = results.array(0, kind), results.array(1, kind)
    counts = results.array(0, np.dtype(np.int8))  # the row counts of an alltoall are in host memory
    assert isinstance(first, GpuArray)
    assert (first.address, first.shape, first.dtype, first.gpu) == (0x6000_0000, (3, 2), np.float32, 1)
    assert type(counts) is np.ndarray
    del results, counts
    gc.collect()
    assert engine.freed == [("handle", 0x99)]
    capsule = first.__dlpack__(stream=0x456)
    del first
    assert len(engine.freed) == 1
    del capsule
    assert engine.freed[1:] == [(0x42, 0x51, 0x456)]
    del second
    assert engine.freed[2:] == [(0x42, 0x52, 0x456)]
    assert not engine.holders


def test_a_result_of_a_prepared_call_keeps_its_memory(cupy):
    engine = Engine()
    kind = type_of(operands.source(cupy.array(dtype="int64"), 0x456))
    result = PreparedResults(engine, 0x77).array(0, kind)
    assert (result.shape, result.dtype, engine.freed) == ((4,), np.int64, [])
    del result
    assert engine.freed == [(0x42, 0x51, 0x456)]


def test_the_stream_lives_as_long_as_the_result(cupy):
    class Stream:
        ptr = 0x789

    stream = Stream()
    with cupy.using(stream):
        kind = type_of(operands.source(cupy.array()))
    result = results_of(Engine()).array(0, kind)
    del kind
    before = sys.getrefcount(stream)
    del result
    assert sys.getrefcount(stream) == before - 1


def test_a_forked_child_frees_nothing(cupy):
    engine = Engine()
    result = results_of(engine).array(0, type_of(operands.source(cupy.array())))
    engine.is_forked = True
    engine.freed.clear()
    del result
    assert engine.freed == []
