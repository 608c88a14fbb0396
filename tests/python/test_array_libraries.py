"""Streams, results and refusals for the arrays of cupy, PyTorch, JAX, and unknown libraries, imitated."""

from __future__ import annotations

import inspect
import sys
import types
from contextlib import contextmanager

import imitated_libraries
import numpy as np
import pytest
from capsules import Interface, Made, Producer

from rdmacoll import ConfigError, engine
from rdmacoll._abi import dlpack
from rdmacoll._calls import array_libraries, operands
from rdmacoll._calls.array_libraries import given_order, library_of
from rdmacoll._calls.gpu_array import GpuArray, gpu_of


@pytest.fixture
def cupy(monkeypatch):
    return imitated_libraries.cupy(monkeypatch)


@pytest.fixture
def torch(monkeypatch):
    return imitated_libraries.torch(monkeypatch)


@pytest.fixture
def jax(monkeypatch):
    return imitated_libraries.jax(monkeypatch)


@pytest.fixture
def memory(monkeypatch):
    """Memory of an engine that is not there: arrays that were asked for."""
    made = []

    def allocate(_, shape, dtype, gpu, order=None):
        made.append((shape, dtype.name, gpu, order.stream))
        return GpuArray(object(), 0x6000_0000, shape, dtype, gpu)

    monkeypatch.setattr(GpuArray, "allocate", allocate)
    monkeypatch.setattr(operands, "current", lambda: None)
    return made


# --- streams


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (1, 1),
        (2, 2),
        (np.int64(0x55), 0x55),
        (types.SimpleNamespace(ptr=0x77), 0x77),
        (types.SimpleNamespace(cuda_stream=0x88), 0x88),
        (types.SimpleNamespace(ptr=0), 1),
        (types.SimpleNamespace(cuda_stream=0), 1),
        (types.SimpleNamespace(__cuda_stream__=lambda: (0, 0x99)), 0x99),
        (types.SimpleNamespace(__cuda_stream__=lambda: (0, 0)), 1),
    ],
)
def test_a_stream_is_a_number_or_an_object_of_a_library(stream, handle):
    order = given_order(stream)
    assert order.stream == handle
    assert order.owner is stream


@pytest.mark.parametrize("stream", [0, np.int32(0)])
def test_stream_0_is_refused_with_the_numbers_to_use(stream):
    with pytest.raises(ConfigError, match="stream=0 is ambiguous: use 1 for the legacy default stream, 2"):
        given_order(stream)


@pytest.mark.parametrize("stream", [-1, True, 1.0, "1", 1 << 64, object()])
def test_other_values_are_no_streams(stream):
    with pytest.raises(ConfigError, match="is no CUDA stream"):
        given_order(stream)


def test_host_arrays_take_no_stream():
    for host in (np.ones(3), [1.0], 2.0):
        with pytest.raises(ConfigError, match=r"stream=7 .* in host memory: leave it out"):
            operands.source(host, 7)
        with pytest.raises(ConfigError, match=r"stream=7 .* in host memory: leave it out"):
            operands.source_and_target(host, None, 7)


@pytest.mark.parametrize("kind", ["cupy", "torch"])
def test_the_current_stream_of_the_library_orders_a_call(kind, request):
    library = request.getfixturevalue(kind)
    array = library.array()
    assert operands.source(array).order[:1] == (1,)  # the library names the legacy stream by 0
    stream = types.SimpleNamespace(ptr=0x123, cuda_stream=0x123)
    with library.using(stream):
        order = operands.source(array).order
    assert order.stream == 0x123
    assert order.owner is stream  # so that the stream lives as long as the call
    assert operands.source(array, 0x456).order.stream == 0x456


def test_torch_is_never_asked_to_order_a_stream(torch):
    for stream in (None, 1, 2, 0x456):
        operands.source(torch.array(), stream)
    assert [entry for entry in torch.log if entry[0] == "dlpack"] == [("dlpack", -1)] * 4


def test_jax_and_unknown_libraries_order_their_work_before_the_stream(jax):
    assert operands.source(jax.array()).order.stream == 1
    operands.source(jax.array(), 0x456)
    assert jax.log == [("dlpack", 1), ("dlpack", 0x456)]
    producer = Producer(Made())
    producer.__class__ = type("Both", (Producer,), {"__cuda_array_interface__": {"stream": 0x789}})
    assert operands.source(producer).order.stream == 0x789
    assert producer.asked[0]["stream"] == 0x789


def test_an_interface_alone_names_its_stream_and_the_engine_its_gpu(monkeypatch):
    held = contextmanager(lambda: iter([0x42]))
    library = types.SimpleNamespace(gpu_of=lambda engine, address: (engine, address) == (0x42, 0x7000_0000))
    engine = types.SimpleNamespace(held=held, library=library)
    monkeypatch.setattr(operands, "current", lambda: engine)
    assert operands.source(Interface()).gpu == 1
    assert operands.source(Interface(stream=0x55)).order.stream == 0x55
    assert operands.source(Interface()).order.stream == 1
    assert operands.source(Interface(stream=0x55), 2).order.stream == 2


def test_libraries_are_found_by_their_types_and_never_imported(cupy, torch):
    derived = type("Mine", (torch.array,), {"__module__": "program"})
    assert type(library_of(derived())) is array_libraries._Torch
    assert type(library_of(cupy.array())) is array_libraries._Cupy
    assert type(library_of(Interface())) is array_libraries.ArrayLibrary
    assert not {"jax", "numba"} & sys.modules.keys()


def test_every_collective_on_arrays_takes_a_stream():
    functions = {name: getattr(engine, name) for name in engine.__all__}
    signatures = {name: inspect.signature(one) for name, one in functions.items() if inspect.isroutine(one)}
    taking = {name for name, signature in signatures.items() if "process_set" in signature.parameters}
    without = {name for name in taking if "stream" not in signatures[name].parameters}
    assert {name for name in without if "process_set" not in name} == {
        "barrier",
        "barrier_async",
        "join",
        "prepare_barrier",
    }


# --- operands


@pytest.mark.parametrize("kind", ["cupy", "torch"])
def test_a_new_array_comes_from_the_library_on_the_stream_of_the_call(kind, request):
    library = request.getfixturevalue(kind)
    array = library.array((4, 5), "int64")
    for stream, seen in ((None, 0), (1, 0), (0x456, 0x456)):
        library.log.clear()
        read, target = operands.source_and_target(array, None, stream)
        assert ("empty", seen) in library.log
        assert (read.address, read.shape, read.dtype) == (array.at, (4, 5), np.int64)
        assert (target.shape, target.dtype, target.is_contiguous) == ((4, 5), np.int64, True)
        result = operands.deliver(target, None)
        assert type(result) is library.array
        assert result.at == target.address
    assert not library.current


@pytest.mark.parametrize("kind", ["cupy", "torch"])
def test_in_place_is_one_memory(kind, request):
    library = request.getfixturevalue(kind)
    array = library.array()
    read, target = operands.source_and_target(array, array)
    assert target is read
    assert operands.deliver(target, array) is array
    assert not [entry for entry in library.log if entry[0] != "dlpack"]


def test_out_of_another_array_is_written_directly(cupy, torch):
    array, out = cupy.array(), torch.array()
    read, target = operands.source_and_target(array, out, 5)
    assert (read.address, target.address) == (array.at, out.at)
    assert operands.deliver(target, out) is out


@pytest.mark.parametrize("kind", ["cupy", "torch"])
def test_arrays_that_are_not_contiguous_are_copied_as_with_numpy(kind, request):
    library = request.getfixturevalue(kind)
    columns = library.array((3, 2), strides=(1, 3))
    read, target = operands.source_and_target(columns, columns, 0x456)
    assert read.is_contiguous
    assert columns.at not in (read.address, target.address)
    assert operands.deliver(target, columns) is columns
    steps = [entry[:2] for entry in library.log if entry[0] != "dlpack"]
    assert steps == [("copy", 0x456), ("empty", 0x456), ("assign", 0x456)]
    assert library.log[-1][2] is target.array


@pytest.mark.parametrize("kind", ["cupy", "torch"])
def test_out_is_written_on_the_stream_of_the_call_whatever_is_current_later(kind, request):
    library = request.getfixturevalue(kind)
    columns = library.array((3, 2), strides=(1, 3))
    of_call, later = (types.SimpleNamespace(ptr=at, cuda_stream=at) for at in (0x456, 0x789))
    with library.using(of_call):
        _, target = operands.source_and_target(columns, columns)
    with library.using(later):
        operands.deliver(target, columns)
    assert library.log[-1][:2] == ("assign", 0x456)


def test_out_that_overlaps_the_array_is_written_at_the_end(cupy):
    array = cupy.array((4,), address=0x9000_0000)
    for address in (0x9000_0004, 0x8FFF_FFFC):
        out = cupy.array((4,), address=address)
        _, target = operands.source_and_target(array, out)
        assert target.address not in (array.at, out.at)
    out = cupy.array((4,), address=0x9000_0010)
    assert operands.source_and_target(array, out)[1].address == out.at


def test_memory_of_the_engine_is_the_result_where_the_library_makes_none(jax, memory):
    array = jax.array((2, 3), gpu=1)
    _, target = operands.source_and_target(array, None)
    assert memory == [((2, 3), "float32", 1, 1)]
    assert jax.adopted == []  # the operation has not written it yet
    result = operands.deliver(target, None)
    assert type(result) is jax.array
    assert result.is_ready
    assert jax.adopted[0].address == target.address
    _, target = operands.source_and_target(Producer(Made()), None)
    assert isinstance(operands.deliver(target, None), GpuArray)


@pytest.mark.parametrize("is_in_place", [True, False])
def test_jax_arrays_are_not_written(jax, is_in_place):
    array = jax.array()
    with pytest.raises(ConfigError, match="JAX arrays are immutable: leave out= away"):
        operands.source_and_target(array, array if is_in_place else jax.array())


def test_tensors_that_require_gradients_are_refused_with_detach(torch):
    tensor, plain = torch.array(), torch.array()
    tensor.requires_grad = True
    for array, out in ((tensor, None), (tensor, tensor), (plain, tensor)):
        with pytest.raises(ConfigError, match=r"requires gradients.*tensor\.detach\(\)"):
            operands.source_and_target(array, out)


def test_bfloat16_of_cupy_comes_through_dlpack(cupy):
    assert operands.source(cupy.array(dtype="bfloat16")).dtype.name == "bfloat16"
    assert operands.source(cupy.array(dtype="bool")).dtype == bool
    assert [entry[0] for entry in cupy.log] == ["dlpack"]


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (lambda library: np.ones((2, 3), np.float32), "out is a ndarray in host memory"),
        (lambda library: library.array((3, 2)), "out has shape (3, 2)"),
        (lambda library: library.array(dtype="int32"), "dtype int32"),
        (lambda library: library.array(gpu=1), "out in memory of cuda:1"),
        (lambda library: Producer(Made(version=(1, 0), flags=1)), "read-only"),
        (lambda library: Producer(Made(strides=(1, 2))), "cannot copy a capsules.Producer"),
        (lambda library: 3.0, "out is a float in host memory"),
    ],
)
def test_out_that_does_not_fit_is_refused(cupy, out, words):
    with pytest.raises(ConfigError) as caught:
        operands.source_and_target(cupy.array(), out(cupy))
    assert words in str(caught.value)


def test_out_on_a_gpu_does_not_fit_a_host_array(cupy):
    with pytest.raises(ConfigError, match="the array is in host memory, and out in memory of a GPU"):
        operands.source_and_target(np.ones((2, 3), np.float32), cupy.array())


def test_an_unknown_library_must_give_contiguous_arrays():
    with pytest.raises(ConfigError, match=r"not C-contiguous, and rdmacoll cannot copy a capsules\.Producer"):
        operands.source(Producer(Made(strides=(1, 2))))


def test_a_prepared_call_keeps_contiguous_memory_that_it_may_write(cupy, jax):
    operands.check_prepared_array(cupy.array(), "array", "x", None)
    with pytest.raises(ConfigError, match="prepare_x keeps the memory of out: it must be C-contiguous"):
        operands.check_prepared_array(cupy.array(strides=(1, 2)), "out", "x", None)
    with pytest.raises(ConfigError, match="immutable: call x instead"):
        operands.check_prepared_array(jax.array(), "array", "x", None)
    with pytest.raises(ConfigError, match="C-contiguous numpy array"):
        operands.check_prepared_array([1.0], "array", "x", None)


def test_pinned_host_memory_is_host_memory():
    memory = np.arange(6.0, dtype=np.float32)
    made = Made(address=memory.__array_interface__["data"][0], device=(dlpack.CUDA_HOST, 0))
    read, target = operands.source_and_target(Producer(made), None)
    assert (type(read), read.tolist()) == (np.ndarray, [[0, 1, 2], [3, 4, 5]])
    assert type(target) is np.ndarray


def test_tensors_of_tensorflow_go_through_the_host():
    tensor = type("EagerTensor", (Producer,), {"__module__": "tensorflow.python.framework.ops"})(Made())
    assert not operands.device_arrays.is_on_device(tensor)


# --- groups


def test_a_group_is_on_one_gpu_and_one_stream(cupy, torch):
    operands.check_group([np.ones(1), np.ones(2)])
    operands.check_group([])
    operands.check_group([operands.source(cupy.array()), operands.source(torch.array())])
    with pytest.raises(ConfigError, match="array 1 of the group is in host memory, and array 0 in memory of"):
        operands.check_group([operands.source(cupy.array()), np.ones(1)])
    with pytest.raises(ConfigError, match=r"array 0 is in memory of cuda:0, and array 2 in memory of cuda:1"):
        operands.check_group([operands.source(cupy.array(gpu=gpu)) for gpu in (0, 0, 1)])
    with pytest.raises(
        ConfigError, match="array 0 of the group is ordered by the stream 0x1, and array 1 by"
    ):
        operands.check_group([operands.source(cupy.array()), operands.source(cupy.array(), 5)])


def test_outs_of_a_group_are_apart(cupy):
    def members(*addresses):
        pairs = [(cupy.array((4,), address=a), cupy.array((4,), address=b)) for a, b in addresses]
        both = [operands.source_and_target(array, out) for array, out in pairs]
        return [read for read, _ in both], [target for _, target in both]

    operands.check_apart([np.ones(2)], [np.ones(2)])
    operands.check_apart(*members((0x1000, 0x1000), (0x1010, 0x1020), (0x1010, 0x1040)))
    with pytest.raises(ConfigError, match=r"out\[0\] and out\[1\] share memory"):
        operands.check_apart(*members((0x1000, 0x2000), (0x1010, 0x2008)))
    with pytest.raises(ConfigError, match=r"out\[1\] and array\[0\] share memory"):
        operands.check_apart(*members((0x1000, 0x3000), (0x5000, 0x100C)))


# --- GpuArray


def test_a_gpu_array_offers_both_protocols_and_no_host_memory():
    owner = object()
    array = GpuArray(owner, 0x6000_0000, (2, 3), np.dtype("int16"), 1)
    assert (array.ndim, array.size, array.nbytes) == (2, 6, 12)
    assert repr(array) == "GpuArray(shape=(2, 3), dtype=int16, device='cuda:1')"
    assert array.__dlpack_device__() == (dlpack.CUDA, 1)
    interface = array.__cuda_array_interface__
    assert (interface["data"], interface["typestr"], interface["stream"]) == (
        (0x6000_0000, False),
        "<i2",
        None,
    )
    read = operands.source(array, 5)
    assert (read.address, read.shape, read.dtype, read.gpu) == (0x6000_0000, (2, 3), np.int16, 1)
    with pytest.raises(TypeError, match="which numpy cannot read"):
        np.asarray(array)
    for options in ({"dl_device": (dlpack.CPU, 0)}, {"copy": True}):
        with pytest.raises(BufferError):
            array.__dlpack__(**options)
    assert dlpack.Capsule(array.__dlpack__(max_version=(1, 0), dl_device=(2, 1))).fields.dims == (2, 3)


def test_a_gpu_array_of_bfloat16_has_dlpack_alone():
    array = GpuArray(object(), 0x6000_0000, (3,), operands.device_arrays.BFLOAT16, 0)
    assert not hasattr(array, "__cuda_array_interface__")
    assert (array.nbytes, operands.source(array).dtype.name) == (6, "bfloat16")


@pytest.mark.parametrize("device", ["cpu", "cuda:", "cuda:x", "cuda:-1", -1, True, 1.5, ("cuda", 0)])
def test_other_devices_are_refused(device):
    with pytest.raises(ConfigError, match=r"device=.*cuda:0"):
        gpu_of(device)
