"""Results in memory of the engine, as numpy arrays, or as arrays of a library on a GPU."""

from __future__ import annotations

import math
from typing import Any, Union

import numpy as np

from rdmacoll._abi.arguments import Array
from rdmacoll._abi.arrays import Block, array_over
from rdmacoll._abi.library import Library
from rdmacoll._calls.device_arrays import DeviceArray
from rdmacoll._calls.gpu_array import GpuArray, GpuMemory
from rdmacoll._calls.handles import Handle
from rdmacoll._calls.submission import Call, Operand, Operation, Submit
from rdmacoll._world.running_engine import Engine

# The type of a result: the dtype of one in host memory, or the input on a GPU whose library it gets.
ResultType = Union["np.dtype[Any]", DeviceArray]


def type_of(source: Operand) -> ResultType:
    """The type of results for this input."""
    return source if type(source) is DeviceArray else source.dtype


def _on_host(owner: object, address: int, dims: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    size = math.prod(dims) * dtype.itemsize
    if size == 0:
        return np.empty(dims, dtype)
    return array_over(Block(owner, address, size), dims, dtype)


def _on_gpu(
    engine: Engine, result: int, address: int, dims: tuple[int, ...], like: DeviceArray, *, repeatedly: bool
) -> Any:
    """result: the library's reference to the memory. repeatedly: later runs write to it, too."""
    memory = GpuMemory(engine, result, like.order)
    memory.use_on(like.order, repeatedly=repeatedly)
    # An input without memory does not tell the GPU.
    gpu = engine.library.gpu_of(engine.address, address) if math.prod(like.shape) == 0 else like.gpu
    return like.library.adopt(GpuArray(memory, address, dims, like.dtype, gpu))


class Results:
    """The results of an operation that has succeeded. Their memory is freed with the last array over it."""

    def __init__(self, engine: Engine, operation: Operation) -> None:
        self._engine = engine
        self._operation = operation
        operation.pass_results_on()

    def array(self, index: int, kind: ResultType) -> Any:
        """The result with this index."""
        library, handle = self._engine.library, self._operation.handle
        address, dims = library.handle_result_at(handle, index)
        if isinstance(kind, DeviceArray):
            # Other threads may have the operation still. The memory must go in the order of its stream.
            result = library.result_take(handle, index)
            return _on_gpu(self._engine, result, address, dims, kind, repeatedly=False)
        return _on_host(self, address, dims, kind)


class _ResultMemory:
    """Memory of a result of a prepared call. The call's next runs may write somewhere else."""

    def __init__(self, library: Library, result: int) -> None:
        self._library = library
        self._result = result

    def __del__(self) -> None:
        self._library.result_free(self._result)


class PreparedResults:
    """The results of a prepared call.

    Its runs write them; `prepared` is the library's address of the call.
    """

    def __init__(self, engine: Engine, prepared: int) -> None:
        self._engine = engine
        self._prepared = prepared

    def array(self, index: int, kind: ResultType) -> Any:
        """The result with this index."""
        library = self._engine.library
        result, address, dims = library.prepared_result_at(self._prepared, index)
        if isinstance(kind, DeviceArray):
            return _on_gpu(self._engine, result, address, dims, kind, repeatedly=True)
        return _on_host(_ResultMemory(library, result), address, dims, kind)


def engine_result_handle(engine: Engine, call: Call, submit: Submit) -> Handle:
    """Starts a call with one result, which the engine makes with the dtype of the input."""
    operation = submit(engine, call)
    return Handle([operation], lambda: Results(engine, operation).array(0, type_of(call.inputs[0])))
