"""Arrays of other libraries in GPU memory: the two protocols, read from what producers offer."""

from __future__ import annotations

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
from capsules import Interface, Made, Producer

from rdmacoll import ConfigError
from rdmacoll._abi import dlpack
from rdmacoll._calls import device_arrays
from rdmacoll.operators import CODES


def read(made, stream=7, **options):
    return device_arrays.read(Producer(made, **options), stream)


@pytest.mark.parametrize("version", [None, (1, 0), (1, 9)])
def test_a_tensor_comes_with_address_shape_dtype_and_gpu(version):
    made = Made((2, 3), byte_offset=64, device=(dlpack.CUDA, 3), version=version)
    producer = Producer(made)
    array = device_arrays.read(producer, 7)
    assert (array.address, array.shape, array.dtype, array.gpu) == (0x7000_0040, (2, 3), np.float32, 3)
    assert (array.ndim, array.nbytes, array.is_contiguous, array.is_read_only) == (2, 24, True, False)
    assert array.array is producer
    assert producer.asked == [{"stream": 7, "max_version": dlpack.VERSION}]


def test_a_producer_of_the_first_dlpack_is_asked_without_a_version():
    producer = Producer(Made(), takes_version=False)
    assert device_arrays.read(producer, -1).shape == (2, 3)
    assert producer.asked == [{"stream": -1}]


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_the_deleter_is_called_once_and_not_before_the_array_goes(version):
    made = Made(version=version)
    array = read(made)
    again = array.reshape(6)
    del array
    gc.collect()
    assert made.deletions == 0
    del again
    assert made.deletions == 1


def test_a_tensor_without_a_deleter_is_taken():
    made = Made(has_deleter=False)
    assert read(made).shape == (2, 3)
    gc.collect()
    assert made.deletions == 0


def test_the_flag_of_read_only_memory_is_seen():
    assert read(Made(version=(1, 0), flags=1)).is_read_only
    assert not read(Made(version=(1, 0), flags=2)).is_read_only


@pytest.mark.parametrize(
    ("dims", "strides", "is_contiguous"),
    [
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), False),
        ((2, 3), (-3, 1), False),
        ((2, 3), (0, 0), False),
        ((2, 1, 3), (3, 77, 1), True),
        ((1,), (-1,), True),
        ((0, 3), (5, -9), True),
        ((), None, True),
        ((), (), True),
        ((4,), (2,), False),
    ],
)
def test_strides_tell_what_is_contiguous(dims, strides, is_contiguous):
    assert read(Made(dims, strides=strides)).is_contiguous is is_contiguous
    by_bytes = None if strides is None else tuple(4 * stride for stride in strides)
    assert device_arrays.read(Interface(shape=dims, strides=by_bytes), 1).is_contiguous is is_contiguous


def test_every_dtype_of_the_engine_has_a_code():
    found = {read(Made((), code=code, bits=bits)).dtype.name for code, bits in dlpack.DTYPES}
    assert found == set(CODES)
    bfloat16 = read(Made((5,), code=4, bits=16)).dtype
    assert (str(bfloat16), bfloat16.itemsize) == ("bfloat16", 2)
    assert bfloat16 == np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("kind", [dlpack.CUDA, dlpack.CUDA_MANAGED])
def test_managed_memory_is_memory_of_a_gpu(kind):
    producer = Producer(Made(device=(kind, 1)))
    assert device_arrays.is_on_device(producer)
    assert device_arrays.read(producer, 1).gpu == 1


def test_memory_of_no_bytes_needs_no_address():
    assert read(Made((0, 4), address=None)).nbytes == 0
    assert device_arrays.read(Interface(shape=(0,), data=(0, False)), 1).nbytes == 0


ODD = {
    "a negative number of dimensions": (Made(ndim=-1), "-1 dimensions"),
    "very many dimensions": (Made(ndim=1 << 30), "1073741824 dimensions: collectives take at most 8"),
    "nine dimensions": (Made((1,) * 9), "9 dimensions: collectives take at most 8"),
    "no shape": (Made(has_shape=False), "no shape"),
    "a negative dimension": (Made((2, -3)), "(2, -3)"),
    "more bytes than there are": (Made((1 << 40, 1 << 40)), "impossible shape"),
    "no memory": (Made(address=None), "no memory"),
    "float8": (Made(code=10, bits=8), "code 10, 8 bits"),
    "four bits": (Made(code=1, bits=4), "code 1, 4 bits"),
    "vectors of two": (Made(lanes=2), "2 lanes"),
    "opaque handles": (Made(code=3, bits=64), "code 3"),
    "another device": (Made(device=(10, 0)), "type 10"),
    "another version": (Made(version=(2, 0)), "DLPack 2.0"),
    "a wrong name": (Made(name=b"tensor"), "no DLPack capsule"),
    "a consumed capsule": (Made(name=b"used_dltensor"), "consumed before"),
}


@pytest.mark.parametrize("case", ODD)
def test_an_odd_tensor_is_refused_and_returned_once(case):
    made, words = ODD[case]
    before = made.deletions
    with pytest.raises(ConfigError) as caught:
        read(made)
    assert words in str(caught.value)
    del caught
    gc.collect()
    assert made.deletions == before + 1


def test_a_capsule_is_consumed_once():
    made = Made()
    capsule = made.capsule()
    first = dlpack.Capsule(capsule)
    loan = first.consume()
    with pytest.raises(ConfigError, match="consumed before"):
        dlpack.Capsule(capsule)
    with pytest.raises(ConfigError, match="no DLPack capsule"):
        dlpack.Capsule(object())
    del capsule, first
    assert made.deletions == 0
    del loan
    assert made.deletions == 1


@pytest.mark.parametrize("error", [BufferError("conj bit"), RuntimeError("sparse"), ValueError("stream 0")])
def test_a_producer_that_refuses_gives_the_reason(error):
    with pytest.raises(ConfigError, match=f"Producer gives no DLPack capsule: {error}"):
        read(Made(), error=error)


def test_an_interface_comes_with_address_shape_dtype_and_stream():
    source = Interface(data=(0x7000_0100, True), stream=5, typestr="<i8", version=2)
    array = device_arrays.read(source, 7)
    assert (array.address, array.shape, array.dtype) == (0x7000_0100, (2, 3), np.int64)
    assert (array.gpu, array.is_read_only) == (device_arrays.UNKNOWN_GPU, True)
    assert array.array is source
    assert device_arrays.interface_stream(source) == 5
    assert device_arrays.interface_stream(Interface()) is None
    assert device_arrays.interface_stream(object()) is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mask": Interface()}, "masked"),
        ({"version": 1}, "version 1"),
        ({"version": "x"}, "incomplete"),
        ({"shape": None}, "incomplete"),
        ({"data": None}, "incomplete"),
        ({"data": (1,)}, "incomplete"),
        ({"stream": 0}, "stream 0"),
        ({"stream": -1}, "stream -1"),
        ({"stream": True}, "stream True"),
        ({"typestr": "<V2"}, "bfloat16 comes through __dlpack__"),
        ({"typestr": "|O"}, "none that collectives take"),
        ({"typestr": ">f4"}, "byte order"),
        ({"typestr": "nonsense"}, "no dtype"),
        ({"shape": (1,) * 9}, "9 dimensions"),
        ({"shape": (-1,)}, "(-1,)"),
        ({"shape": (1 << 62, 4)}, "impossible shape"),
        ({"strides": (4,)}, "strides (4,)"),
        ({"data": (0, False)}, "no memory"),
    ],
)
def test_an_odd_interface_is_refused(fields, words):
    with pytest.raises(ConfigError) as caught:
        device_arrays.read(Interface(**fields), 1)
    assert words in str(caught.value)


def test_host_memory_is_told_apart():
    class Unwilling:
        def __dlpack_device__(self):
            raise ValueError("an array without memory")

    class Refusing:
        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("a sparse array")

    hosts = [
        Refusing(),
        np.ones(3),
        np.float32(1),
        3,
        2.5,
        [1, 2],
        (1,),
        "text",
        None,
        np.ma.array([1.0]),
        Unwilling(),
    ]
    hosts += [Producer(Made(device=(kind, 0))) for kind in (dlpack.CPU, dlpack.CUDA_HOST, 10)]
    assert not any(device_arrays.is_on_device(host) for host in hosts)
    assert all(device_arrays.is_on_device(one) for one in (Interface(), Producer(Made())))


@pytest.mark.parametrize("is_versioned", [False, True])
def test_exported_memory_comes_back_as_it_was(is_versioned):
    class Owner:
        pass

    owner = Owner()
    watched = weakref.ref(owner)
    capsule = dlpack.export(owner, 0x7000_0000, (2, 0, 5), "bfloat16", 2, is_versioned=is_versioned)
    del owner
    first = dlpack.Capsule(capsule)
    expected = (0x7000_0000, (2, 0, 5), (0, 5, 1), "bfloat16", dlpack.CUDA, 2, False)
    assert tuple(first.fields) == expected
    loan = first.consume()
    del capsule, first
    assert watched() is not None
    del loan
    assert watched() is None
    assert not dlpack._exported


@pytest.mark.parametrize("is_versioned", [False, True])
@pytest.mark.parametrize("has_extension", [False, True])
def test_a_refused_capsule_frees_its_memory_and_keeps_the_error(monkeypatch, is_versioned, has_extension):
    class Owner:
        pass

    class Lender:
        owner = Owner()

        def __dlpack_device__(self):
            return dlpack.CUDA, 0

        def __dlpack__(self, **_):
            return dlpack.export(self.owner, 0x7000_0000, (3,), "float32", 0, is_versioned=is_versioned)

    if not has_extension:
        monkeypatch.setattr(dlpack, "_destructor", dlpack._own_destructor)
    watched = weakref.ref(Lender.owner)
    # Code in Python frees the memory, but cannot keep the error.
    with pytest.raises(RuntimeError if has_extension else SystemError):
        np.from_dlpack(Lender())
    del Lender.owner
    assert watched() is None
    assert not dlpack._exported


def test_an_exported_capsule_that_nobody_takes_frees_its_memory():
    class Owner:
        pass

    owner = Owner()
    watched = weakref.ref(owner)
    capsule = dlpack.export(owner, 0x7000_0000, (), "float64", 0, is_versioned=False)
    del owner
    assert watched() is not None
    del capsule
    assert watched() is None
    assert not dlpack._exported
