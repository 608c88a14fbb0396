"""Results in memory of the engine, as numpy arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rdmacoll._abi.arrays import Block, array_over
from rdmacoll._abi.library import Library
from rdmacoll._calls.submission import Array, Call, Handle, Operation, Submit
from rdmacoll._world.running_engine import Engine


class Results:
    """The results of an operation that has succeeded. Their memory is freed with the last array over it."""

    def __init__(self, engine: Engine, handle: int) -> None:
        self._engine = engine
        self._handle = handle
        engine.share(id(self))

    def array(self, index: int, dtype: np.dtype[Any]) -> Array:
        """The result with this index."""
        address, dims = self._engine.library.handle_result_at(self._handle, index)
        size = math.prod(dims) * dtype.itemsize
        if size == 0:
            return np.empty(dims, dtype)
        return array_over(Block(self, address, size), dims, dtype)

    def __del__(self) -> None:
        engine = self._engine
        if not engine.is_forked:
            engine.library.handle_free(self._handle)
            engine.release(id(self))


def results_of(engine: Engine, operation: Operation) -> Results:
    """Takes the results from an operation, which is then over."""
    return operation.transfer(lambda handle: Results(engine, handle))


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
        self._library = engine.library
        self._prepared = prepared

    def array(self, index: int, dtype: np.dtype[Any]) -> Array:
        """The result with this index."""
        result, address, dims = self._library.prepared_result_at(self._prepared, index)
        memory = _ResultMemory(self._library, result)
        size = math.prod(dims) * dtype.itemsize
        if size == 0:
            return np.empty(dims, dtype)
        return array_over(Block(memory, address, size), dims, dtype)


def engine_result_handle(engine: Engine, call: Call, submit: Submit) -> Handle:
    """Starts a call with one result, which the engine makes with the dtype of the input."""
    operation = submit(engine, call)
    return Handle([operation], lambda: results_of(engine, operation).array(0, call.inputs[0].dtype))
