"""A table of engine functions in Python. It records the TensorFlow kernels' requests, and answers them."""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from rdmacoll._abi.mirror import (
    ABI_VERSION,
    ALLGATHER,
    ALLTOALL,
    GATHER,
    HEADER_HASH,
    REDUCESCATTER,
    REQUEST,
    SCATTER,
    TENSOR,
    Api,
    EngineApi,
    OperationApi,
    PsApi,
)
from rdmacoll._world import world
from rdmacoll.ops import _library
from rdmacoll.ops._arguments import bits

ONE = bits(1.0)
SUM = 0
PIECES = 2  # number of ranks in the answer to an allgather
MAKE_RESULTS = (ALLGATHER, REDUCESCATTER, ALLTOALL, GATHER, SCATTER)

END_LOAN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
DONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)
ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int64))


def _table(kind: Any, **functions: Any) -> Any:
    """A table of this kind with these functions."""
    table = kind()
    for name, function in functions.items():
        setattr(table, name, dict(kind._fields_)[name](function))
    return table


class Spy:
    """An rc_api whose submit() and submit_and_drive() record the request. A separate thread answers it."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.answer: str | None = None  # error JSON for the callback
        self.refusal: str | None = None  # error JSON for submit()
        self.hold = threading.Event()  # clear: answers wait
        self.hold.set()
        self._texts: list[Any] = []
        self._jobs: queue.Queue[Any] = queue.Queue()
        self.refused: list[str] = []  # reasons that refuse() was given
        operation = _table(
            OperationApi,
            submit=self._submit,
            submit_and_drive=self._submit_and_drive,
            refuse=lambda engine, request, reason: self.refused.append(reason.decode()),
        )
        engine = _table(EngineApi, memory_lend=self._lend, topology=lambda engine, out: None)  # rank 0
        self.table = _table(Api, text_free=lambda text: None)
        self.table.abi_version, self.table.header_hash = ABI_VERSION, HEADER_HASH
        self.table.engine, self.table.operation = ctypes.pointer(engine), ctypes.pointer(operation)
        self.table.ps = ctypes.pointer(_table(PsApi))
        self.answers_at_once = False  # submit_and_drive() answers before it returns
        self.lent: dict[int, Any] = {}  # memory of outputs, by address
        self.lends = True
        self._end_loan = END_LOAN(self._take_back)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _submit(self, engine: int, address: int, handle: int | None, error: int) -> int:
        assert not handle
        request = self._note(address, error)
        if request is not None:
            self._jobs.put(request)
        return int(request is None)

    def _submit_and_drive(self, engine: int, address: int, error: int) -> int:
        request = self._note(address, error)
        if request is not None:
            request["drives"] = True
            if self.answers_at_once:
                self._answer(request)
            else:
                self._jobs.put(request)
        return int(request is None)

    def _note(self, address: int, error: int) -> dict[str, Any] | None:
        """Records and returns the request, or returns None if it is refused."""
        raw = ctypes.string_at(address, REQUEST.size)
        names = "kind dtype op root prescale postscale name iteration n tensors"
        request = dict(
            zip(
                (names + " allocate done context manifest splits n_splits set shared_result group").split(),
                REQUEST.unpack(raw),
            )
        )
        for name in "manifest", "group":
            text = request[name]
            request[name] = ctypes.string_at(text).decode() if text else None
        count = request["n_splits"]
        address = request["splits"]
        request["splits"] = list((ctypes.c_int64 * count).from_address(address)) if address else None
        request["drives"] = False
        request["name"] = ctypes.string_at(request["name"]).decode() if request["name"] else None
        request["tensors"] = [self._tensor(request["tensors"] + i * TENSOR.size) for i in range(request["n"])]
        self.requests.append(request)
        if self.refusal is not None:
            text = ctypes.create_string_buffer(self.refusal.encode())
            self._texts.append(text)
            ctypes.c_void_p.from_address(error).value = ctypes.addressof(text)
            return None
        return request

    def _lend(self, engine: int, size: int, loan: int, release: int) -> int | None:
        if not self.lends:
            return None
        memory = ctypes.create_string_buffer(size + 64)
        address = (ctypes.addressof(memory) + 63) // 64 * 64
        self.lent[address] = memory
        ctypes.c_void_p.from_address(loan).value = 42
        end = ctypes.cast(self._end_loan, ctypes.c_void_p).value
        ctypes.c_void_p.from_address(release).value = end
        return address

    def _take_back(self, loan: int, memory: int) -> None:
        assert loan == 42
        del self.lent[memory]

    @staticmethod
    def _tensor(address: int) -> dict[str, Any]:
        source, to, ndim, *rest = TENSOR.unpack(ctypes.string_at(address, TENSOR.size))
        label = ctypes.string_at(rest[8]).decode() if rest[8] else None
        return {"input": source, "output": to, "shape": tuple(rest[:ndim]), "label": label}

    def _run(self) -> None:
        while (request := self._jobs.get()) is not None:
            self.hold.wait(30)
            self._answer(request)

    def _answer(self, request: dict[str, Any]) -> None:
        error = None if self.answer is None else self.answer.encode()
        if error is None:
            self._perform(request)
        DONE(request["done"])(request["context"], error)

    @staticmethod
    def _perform(request: dict[str, Any]) -> None:
        sizes = (1, 1, 4, 8, 2, 2, 4, 8, 1, 2, 4, 8, 2, 8, 16)
        for tensor in request["tensors"]:
            size = int(np.prod(tensor["shape"], dtype=np.int64)) * sizes[request["dtype"]]
            if request["kind"] not in MAKE_RESULTS:
                if tensor["output"]:
                    ctypes.memmove(tensor["output"], tensor["input"], size)
                continue
            pieces = PIECES if request["kind"] == ALLGATHER else 1
            shape = tensor["shape"] or (1,)
            allocate = ALLOCATE(request["allocate"])
            dims = (ctypes.c_int64 * 8)(pieces * shape[0], *shape[1:])
            to = allocate(request["context"], len(shape), dims)
            assert to
            for piece in range(pieces):
                ctypes.memmove(to + piece * size, tensor["input"], size)
            if request["kind"] == ALLTOALL:
                counts = np.arange(7, 7 + PIECES)
                to = allocate(request["context"], 1, (ctypes.c_int64 * 8)(PIECES))
                ctypes.memmove(to, counts.ctypes.data, counts.nbytes)

    def close(self) -> None:
        self.hold.set()
        self._jobs.put(None)
        self.thread.join(10)


@pytest.fixture(scope="session")
def library() -> Any:
    path = str(_library.library_path())
    module = tf.load_op_library(path)  # first, so that TensorFlow collects the ops that the library registers
    shared = ctypes.CDLL(path)
    shared.rc_tf_problem.restype = ctypes.c_char_p
    shared.rc_tf_attach.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return module, shared


@pytest.fixture
def spy(library: Any) -> Iterator[Spy]:
    assert not world.is_initialized()
    spy = Spy()
    assert library[1].rc_tf_attach(ctypes.addressof(spy.table), 4711) == 0
    yield spy
    assert library[1].rc_tf_attach(None, None) == 0
    spy.close()


@pytest.fixture
def ops(library: Any) -> Any:
    return library[0]


def allreduce(ops: Any, tensors: list[Any], **options: Any) -> list[Any]:
    options = {"op": SUM, "prescale_bits": ONE, "postscale_bits": ONE, **options}
    with _library.op_scope():
        return ops.rdmacoll_allreduce(tensors=tensors, **options)
