"""Runs the kernels of librdmacoll_tf.so without TensorFlow, on memory of a GPU or of the host.

tests/tf_sim stands for TensorFlow's own library. It must be loaded before TensorFlow would be.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import gpu_arrays
import numpy as np
from cuda_calls import MEMORY_TYPE

from rdmacoll._abi import library
from rdmacoll._world import world

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "tests" / "tf_sim"
OPTIONS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-Wl,-soname,libtensorflow_framework.so.2")
# TensorFlow's numbers of dtypes.
TYPES = {"float32": 1, "float64": 2, "int32": 3, "complex64": 8, "int64": 9, "bfloat16": 14, "float16": 19}

_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint64)
_VOID = ctypes.c_void_p
ON_DEVICE = 2  # CU_MEMORYTYPE_DEVICE
_LEGACY_STREAM = 1  # the number of the default stream


def framework() -> Path:
    """The library, built if its sources are new."""
    sources = sorted(SOURCES.glob("*.cc"))
    header = ROOT / "cpp" / "tensorflow" / "tf_c_api.h"
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in (*sources, header)))
    path = ROOT / "build" / "tf_sim" / f"framework-{digest.hexdigest()[:16]}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        command = ["g++", *OPTIONS, f"-I{ROOT / 'cpp'}", *map(str, sources), "-o", str(draft)]
        subprocess.run(command, check=True)
        draft.rename(path)
    return path


def _address(array: Any) -> int:
    is_on_host = isinstance(array, np.ndarray)
    return int((array.__array_interface__ if is_on_host else array.__cuda_array_interface__)["data"][0])


class Ops:
    """The op library of this process, attached to the running engine. has_gpu_kernels: it was built for
    TensorFlow, too."""

    def __init__(self, sim: str, cupy: Any, *, has_gpu_kernels: bool = True) -> None:
        self._sim = ctypes.CDLL(sim, mode=ctypes.RTLD_GLOBAL)
        ops = ctypes.CDLL(str(library.library_path().with_name("librdmacoll_tf.so")))
        for name in ("builder", "construction", "create", "context", "output"):
            getattr(self._sim, f"tf_sim_{name}").restype = _VOID
        self._sim.tf_sim_error.restype = ops.rc_tf_problem.restype = ctypes.c_char_p
        ops.rc_tf_register_gpu_kernels.restype = ctypes.c_char_p
        assert ops.rc_tf_problem() is None
        assert self._find("RdmacollAllreduce", "GPU", "float32") is None, "registered without the library"
        self._ops = ops
        if has_gpu_kernels:
            assert self.register_gpu_kernels() is None
        table = _VOID(library.load().table_address)
        world.on_change(lambda engine: ops.rc_tf_attach(table, _VOID(engine)))
        self._cupy = cupy

    def register_gpu_kernels(self) -> str | None:
        """Registers the kernels for GPUs. Returns None or the error."""
        problem: bytes | None = self._ops.rc_tf_register_gpu_kernels(self._sim.tf_sim_stream_of)
        return None if problem is None else problem.decode()

    def refuse_gpu_kernel(self, kernels_before: int) -> None:
        """Lets TensorFlow refuse the registration of a kernel for GPUs."""
        self._sim.tf_sim_refuse_gpu_kernel(kernels_before)

    def _find(self, op: str, device: str, dtype: str) -> int | None:
        found: int | None = self._sim.tf_sim_builder(op.encode(), device.encode(), TYPES[dtype])
        return found

    def node(self, op: str, dtype: Any, device: str = "GPU", **options: Any) -> Node:
        """A node of a graph, whose kernel runs many times. options: its attributes."""
        name = np.dtype(dtype).name
        builder = self._find(op, device, name)
        assert builder is not None, f"no kernel for {op} of {name}"
        return Node(self._sim, _VOID(builder), self._cupy, TYPES[name], options)

    def run(
        self, op: str, arrays: list[Any], in_place: bool = False, stream: int | None = None, **options: Any
    ) -> Run:
        """Begins an op on arrays of one dtype, on the current stream. It changes arrays of numpy in place."""
        device = "CPU" if isinstance(arrays[0], np.ndarray) else "GPU"
        return self.node(op, arrays[0].dtype, device, **options).run(arrays, in_place, stream)

    def lies_on_host(self, op: str, argument: str) -> bool:
        """Whether this argument of the op's kernel for GPUs lies in host memory."""
        builder = _VOID(self._find(op, "GPU", "float32"))
        return bool(self._sim.tf_sim_is_on_host(builder, argument.encode()))


class Node:
    """A kernel. It ends with this object and its runs."""

    def __init__(self, sim: Any, builder: Any, cupy: Any, dtype: int, options: dict[str, Any]) -> None:
        self.sim, self.builder, self.cupy, self.dtype = sim, builder, cupy, dtype
        one = struct.unpack("<q", struct.pack("<d", 1.0))[0]
        numbers = {"op": 0, "root_rank": 0, "prescale_bits": one, "postscale_bits": one, "process_set": 0}
        construction = _VOID(sim.tf_sim_construction(dtype))
        for name, value in {**numbers, **options}.items():
            if isinstance(value, str):
                sim.tf_sim_set_text(construction, name.encode(), value.encode())
            else:
                sim.tf_sim_set_number(construction, name.encode(), ctypes.c_int64(value))
        self.kernel = _VOID(sim.tf_sim_create(builder, construction))

    def run(self, arrays: list[Any], in_place: bool = False, stream: int | None = None) -> Run:
        """Begins a run on the current stream. stream: the one that TensorFlow would give."""
        return Run(self, arrays, in_place, stream)

    def __del__(self) -> None:
        self.sim.tf_sim_destroy(self.builder, self.kernel)


class Run:
    """One op in flight."""

    def __init__(self, node: Node, arrays: list[Any], in_place: bool, stream: int | None) -> None:
        self._node, self._sim, self._cupy, self._inputs = node, node.sim, node.cupy, arrays
        self._made: list[Any] = []
        self._allocate = _ALLOCATE(self._make)
        current = self._cupy.cuda.get_current_stream().ptr or _LEGACY_STREAM if stream is None else stream
        self._context = _VOID(self._sim.tf_sim_context(ctypes.c_uint64(current), self._allocate))
        for array in arrays:
            dtype = TYPES[np.dtype(array.dtype).name]
            dims = (ctypes.c_int64 * 8)(*array.shape)
            memory = _VOID(_address(array)), ctypes.c_uint64(array.nbytes)
            may_be_reused = in_place or isinstance(array, np.ndarray)
            self._sim.tf_sim_add_input(self._context, dtype, len(array.shape), dims, *memory, may_be_reused)
        self._sim.tf_sim_compute(node.builder, node.kernel, self._context)

    def _make(self, size: int) -> int:
        self._made.append(self._cupy.empty((size,), np.uint8))
        return int(self._made[-1].__cuda_array_interface__["data"][0])

    def _wait(self, deadline_s: float) -> str:
        assert self._sim.tf_sim_wait(self._context, ctypes.c_double(deadline_s)), "the op has not ended"
        return str(self._sim.tf_sim_error(self._context).decode())

    def outputs(self, deadline_s: float = 60) -> list[np.ndarray[Any, Any]]:
        """Waits for the end. Returns the results' values, or raises RuntimeError with the error's text."""
        error = self._wait(deadline_s)
        addresses = [self._sim.tf_sim_output(self._context, index) for index in range(len(self._inputs))]
        self._sim.tf_sim_free_context(self._context)
        if error:
            raise RuntimeError(error)
        return [self._values(array, address) for array, address in zip(self._inputs, addresses)]

    def results(self, count: int = 1, deadline_s: float = 60) -> list[np.ndarray[Any, Any]]:
        """Like outputs(), for ops whose results have shapes of their own. They must lie on the GPU."""
        error = self._wait(deadline_s)
        found = [] if error else [self._result(index) for index in range(count)]
        self._sim.tf_sim_free_context(self._context)
        if error:
            raise RuntimeError(error)
        return found

    def address(self) -> int:
        """The place of the first result, once the op has ended."""
        assert self._wait(60) == ""
        return self._place(0)[1]

    def drop(self) -> None:
        """Waits for the end, and drops the results."""
        assert self._wait(60) == ""
        self._sim.tf_sim_free_context(self._context)

    def counts(self) -> list[int]:
        """The second result of an alltoall, which lies on the host. Call it before results()."""
        assert self._wait(60) == ""
        shape, address = self._place(1)
        return np.ctypeslib.as_array((ctypes.c_int64 * shape[0]).from_address(address)).tolist()

    def _place(self, index: int) -> tuple[tuple[int, ...], int]:
        dims = (ctypes.c_int64 * 8)()
        ndim = self._sim.tf_sim_output_dims(self._context, index, dims)
        return tuple(dims[:ndim]), self._sim.tf_sim_output(self._context, index) or 0

    def _result(self, index: int) -> np.ndarray[Any, Any]:
        shape, address = self._place(index)
        values = np.empty(shape, np.dtype(self._inputs[0].dtype))
        if values.nbytes > 0:
            cuda = gpu_arrays.calls()
            assert cuda.pointer_attribute(MEMORY_TYPE, address) == ON_DEVICE, "a result is on the host"
            values = np.frombuffer(cuda.read(address, values.nbytes), values.dtype).reshape(shape)
        return values

    def _values(self, like: Any, address: int | None) -> np.ndarray[Any, Any]:
        for array in (like, *self._made):
            if _address(array) == address:
                values: np.ndarray[Any, Any] = array if isinstance(array, np.ndarray) else array.get()
                return values.view(like.dtype).reshape(like.shape)
        assert like.nbytes == 0, f"a result is at {address}, which nobody allocated"
        return np.empty(like.shape, like.dtype)
