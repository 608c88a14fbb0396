"""Requests to the engine, and submitted operations."""

from __future__ import annotations

import copy
import ctypes
import threading
import time
from collections.abc import Sequence
from typing import Any, Callable, Union

import numpy as np

from rdmacoll._abi import arguments, fast_calls, library as abi, mirror
from rdmacoll._abi.arguments import Array, address_of
from rdmacoll._calls.device_arrays import DeviceArray
from rdmacoll._calls.refusals import announce
from rdmacoll._world.running_engine import Engine
from rdmacoll._world.world import current, note_failure, refusal
from rdmacoll.errors import ConfigError, RankFailedError, RdmacollError

Operand = Union[Array, DeviceArray]

# A blocked wait returns this often, so that Python's signal handlers (Ctrl-C, SIGTERM) can run.
SLICE_MS = 100

_PADDING = tuple((0,) * count for count in range(abi.DIMS_MAX + 1))
_address_of = ctypes.addressof


class _Scratch:
    """The structs of one call. They are reused, since the library copies the fields that it keeps."""

    def __init__(self) -> None:
        self.request = bytearray(mirror.REQUEST.size)
        self.request_address = address_of(np.frombuffer(self.request, np.uint8))
        self.tensors = bytearray(mirror.TENSOR.size)
        self.tensors_address = address_of(np.frombuffer(self.tensors, np.uint8))
        self.handle: Any = ctypes.c_void_p()  # written by the library
        self.error = ctypes.c_void_p()
        self.handle_ref = _address_of(self.handle)
        self.error_ref = _address_of(self.error)

    def reserve(self, tensors: int) -> None:
        """Makes room for so many tensors."""
        if len(self.tensors) < tensors * mirror.TENSOR.size:
            self.tensors = bytearray(tensors * mirror.TENSOR.size)
            self.tensors_address = address_of(np.frombuffer(self.tensors, np.uint8))


class _Local(threading.local):
    def __init__(self) -> None:
        self.scratch = _Scratch()
        self.names: dict[str, Any] = {}


_LOCAL = _Local()
_NAMES_MAX = 4096


def _name_address(name: str) -> int:
    names = _LOCAL.names
    buffer = names.get(name) if type(name) is str else None
    if buffer is None:
        arguments.name(name)
        if len(names) >= _NAMES_MAX:
            names.clear()
        buffer = names[name] = ctypes.create_string_buffer(name.encode())
    return _address_of(buffer)


class Call:
    """One operation before it is submitted: kind, dtype, operator, arrays."""

    __slots__ = (
        "dtype",
        "inputs",
        "kind",
        "name",
        "op",
        "outputs",
        "postscale",
        "prescale",
        "process_set",
        "root",
        "splits",
        "stream",
    )

    def __init__(
        self,
        kind: int,
        inputs: Sequence[Operand],
        outputs: Sequence[Operand],
        *,
        dtype: int = 0,
        op: int = 0,
        root: int = 0,
        prescale: float = 1.0,
        postscale: float = 1.0,
        name: str | None = None,
        splits: Array | None = None,
        process_set: int = 0,
    ) -> None:
        self.kind = kind
        self.inputs = inputs
        self.outputs = outputs
        self.dtype = dtype
        self.op = op
        self.root = root
        self.prescale = prescale
        self.postscale = postscale
        self.name = name
        self.splits = splits  # int64, C-contiguous
        self.process_set = process_set
        first = inputs[0] if inputs else None
        self.stream = first.order.stream if type(first) is DeviceArray else 0  # 0: host memory

    def _refused(self, reason: str) -> ConfigError:
        """The error for this reason, which is also announced to the other ranks."""
        error = ConfigError(reason)
        announce(current(), self.kind, (self.name,), self.process_set, error)
        return error

    def fill(self, into: _Scratch | None = None) -> _Scratch:
        """Writes the structs to `into`, or to this thread's own ones, which its next call overwrites."""
        scratch = _LOCAL.scratch if into is None else into
        count = len(self.inputs)
        if count > 1:
            scratch.reserve(count)
        offset = 0
        find: Any = _device_address if self.stream else address_of
        for source, target in zip(self.inputs, self.outputs):
            shape = source.shape
            if len(shape) > abi.DIMS_MAX:
                raise self._refused(
                    f"the array has {len(shape)} dimensions: collectives take at most {abi.DIMS_MAX}."
                )
            origin = find(source)
            mirror.TENSOR.pack_into(
                scratch.tensors,
                offset,
                origin,
                origin if target is source else find(target),
                len(shape),
                *shape,
                *_PADDING[abi.DIMS_MAX - len(shape)],
                0,
            )
            offset += mirror.TENSOR.size
        mirror.REQUEST.pack_into(
            scratch.request,
            0,
            self.kind,
            self.dtype,
            self.op,
            self.root,
            self.prescale,
            self.postscale,
            0 if self.name is None else _name_address(self.name),
            0,
            count,
            scratch.tensors_address if count else 0,
            0,
            0,
            0,
            0,
            0 if self.splits is None else address_of(self.splits),
            0 if self.splits is None else len(self.splits),
            self.process_set,
            0,
            0,
            self.stream,
            0,
        )
        return scratch


def _device_address(array: DeviceArray) -> int:
    return array.address


def failure(engine: Engine, slot: ctypes.c_void_p) -> RdmacollError:
    """The error of a failed operation. Notes the failure if another rank is gone."""
    return _noted(engine.library.error(slot))


def _noted(error: RdmacollError) -> RdmacollError:
    if isinstance(error, RankFailedError):
        note_failure()
    return error


fast_calls.set_error_factory(lambda text: _noted(abi.error_of(text)))


def submit(engine: Engine, call: Call) -> int:
    """Submits the call, and returns its handle. Call only while holding the engine. Raises its refusal."""
    scratch = call.fill()
    slot = scratch.handle
    slot.value = None
    if engine.library.submit(engine.address, scratch.request_address, scratch.handle_ref, scratch.error_ref):
        raise failure(engine, scratch.error)
    return slot.value or 0


def perform(engine: Engine, call: Call) -> None:
    """Submits and waits: `Operation(engine, call).wait()`, in one call of the library if possible."""
    _perform(engine, call, has_results=False)


def run_operation(engine: Engine, call: Call) -> Operation:
    """Like `perform`, for a call with results of its own, which the operation holds."""
    operation = _perform(engine, call, has_results=True)
    assert operation is not None
    return operation


def _perform(engine: Engine, call: Call, *, has_results: bool) -> Operation | None:
    holder = id(call)
    library = engine.library
    scratch = call.fill()
    slot = scratch.handle
    slot.value = None
    engine.hold(holder)
    try:
        request, handle, error = scratch.request_address, scratch.handle_ref, scratch.error_ref
        if has_results:
            code = library.run(engine.address, request, SLICE_MS, handle, error)
        else:
            code = library.call(engine.address, request, SLICE_MS, 0, handle, error)
        if code == abi.TIMEOUT or (has_results and code == abi.DONE):
            operation = Operation(engine, call, slot)
            if code == abi.TIMEOUT:
                operation.wait()
            return operation
        finished = slot.value
        slot.value = None
        if finished and code == abi.DONE:
            engine.keeper.keep(finished, (call.inputs, call.outputs))
        elif finished:
            library.handle_free(finished)
        if code != abi.DONE:
            raise failure(engine, scratch.error)
        return None
    finally:
        if slot.value:  # Ctrl-C came right after the wait, and the engine may still use the arrays
            Operation(engine, call, slot)
        engine.release(holder)


class Operation:
    """One submitted operation. It keeps its arrays alive as long as the engine or a GPU may touch them.

    It alone frees its handle, when it goes. So the handle lives while any thread is in one of its methods.
    """

    __slots__ = ("_arrays", "_engine", "_error", "_is_kept", "_is_on_gpu", "handle")

    def __init__(self, engine: Engine, call: Call, slot: ctypes.c_void_p | None = None) -> None:
        """slot: the handle of an operation that a holder of the engine has submitted. None: submit here."""
        self._error: RdmacollError | None = None
        self._engine = engine
        self._arrays: object = (call.inputs, call.outputs)
        self._is_on_gpu = call.stream != 0
        self._is_kept = False  # it is done, or the keeper has the arrays until it is
        self.handle = 0
        if slot is not None:
            engine.share(id(self))
            # Ctrl-C must not come between these two lines: exactly one of the two owners frees the handle.
            self.handle = slot.value or 0
            slot.value = None
            return
        engine.hold(id(self))
        try:
            self.handle = submit(engine, call)
        except BaseException:
            engine.release(id(self))
            raise

    def pass_results_on(self) -> None:
        """Lets go of the call's arrays. From now on a caller needs the results only.

        The operation has succeeded. The engine's keeper has the arrays while a GPU uses them.
        """
        self._keep_end()
        self._arrays = None

    @property
    def has_passed_results_on(self) -> bool:
        """Whether the results belong to a caller. They say then which stream finds them complete."""
        return self._arrays is None

    def _keep_end(self) -> None:
        if self._is_kept:
            return
        end = self._engine.library.handle_end(self.handle) if self._is_on_gpu else None
        if end:
            self._engine.keeper.keep(end, self._arrays)
        self._is_kept = True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Drives the engine until the operation has ended. False if `timeout_s` seconds pass first.

        The rest of its work on a GPU comes before later work of the caller's stream.
        """
        if self._error is not None:
            raise copy.copy(self._error)
        engine = self._engine
        if engine.is_forked:
            raise refusal()
        wait = engine.library.handle_wait
        scratch = _LOCAL.scratch
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            slice_ms = SLICE_MS
            if deadline is not None:
                slice_ms = min(SLICE_MS, max(0, int((deadline - time.monotonic()) * 1000)))
            code = wait(self.handle, slice_ms, scratch.error_ref)
            if code == abi.DONE:
                # Other streams may take results while this object lives.
                self._keep_end()
                return True
            if code == abi.FAILED:
                # Raise a copy. A traceback refers to this frame, and so to this operation. The original would
                # keep itself and its engine until the garbage collector finds the cycle.
                self._error = failure(engine, scratch.error)
                raise copy.copy(self._error)
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def let_follow(self) -> None:
        """After a `wait`: lets later work of this thread's stream wait, too."""
        if self._is_on_gpu and self._engine.is_open and not self.is_done():
            self.wait(0)

    def is_done(self) -> bool:
        """Whether the operation has ended, and its work on GPUs is done."""
        return self._error is not None or bool(self._engine.library.handle_done(self.handle))

    def __del__(self) -> None:
        engine = self._engine
        if not self.handle or engine.is_forked:
            return
        if self._is_kept:
            engine.library.handle_free(self.handle)
        elif self._is_on_gpu:
            engine.keeper.keep(self.handle, self._arrays)
        else:
            engine.abandon(self.handle, self._arrays)
        engine.release(id(self))


def submit_group(engine: Engine, calls: Sequence[Call]) -> list[Operation]:
    """Submits a group of several dtypes, and returns its operations. Raises the engine's refusal."""
    filled = [call.fill(_Scratch()) for call in calls]
    requests = bytearray().join(scratch.request for scratch in filled)
    handles = (ctypes.c_void_p * len(calls))()
    size = ctypes.sizeof(ctypes.c_void_p)
    slots = [ctypes.c_void_p.from_buffer(handles, size * index) for index in range(len(calls))]
    address = address_of(np.frombuffer(requests, np.uint8))
    error = filled[0]
    holder = id(handles)
    engine.hold(holder)
    operations: list[Operation] = []
    try:
        if engine.library.submit_group(
            engine.address, address, len(calls), _address_of(handles), error.error_ref
        ):
            raise failure(engine, error.error)
    finally:
        # Also if Ctrl-C came right after the call: the engine may use the arrays from then on.
        operations += [Operation(engine, call, slot) for call, slot in zip(calls, slots) if slot.value]
        engine.release(holder)
    return operations


# The start of a call: `Operation` returns at once, `run_operation` drives the engine until the call is done.
Submit = Callable[[Engine, Call], Operation]
