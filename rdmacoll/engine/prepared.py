"""Prepared calls: the set-up is paid once, each run is cheap."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any, Callable

from rdmacoll._abi import fast_calls, library as abi, mirror
from rdmacoll._abi.arguments import Array
from rdmacoll._calls import operands
from rdmacoll._calls.device_arrays import DeviceArray
from rdmacoll._calls.gpu_array import GpuArray
from rdmacoll._calls.refusals import Announced
from rdmacoll._calls.results import PreparedResults, type_of
from rdmacoll._calls.submission import SLICE_MS, Call, failure
from rdmacoll._world.running_engine import Engine
from rdmacoll._world.world import refusal
from rdmacoll.errors import ConfigError, RdmacollError
from rdmacoll.process_set import ProcessSet, number_of

# Inputs of all ranks together. Runs of at most so many bytes are short, and release the GIL only if they
# wait.
LOCKED_BYTES_MAX = 64 << 10


class _PythonRun:
    """The base of prepared calls without the extension: each run goes through ctypes.

    The extension's `Run` has the same members. It calls `_end` or `_resume` if a run does not simply succeed,
    and `_refuse_thread` if another thread's run has not ended.
    """

    out: Any = None
    _address = 0  # the prepared operation; 0 once it is freed
    _code = abi.DONE  # the value that the last run returned, until it is handled
    _runner = 0  # the thread whose run has not ended; 0: none
    _is_short = False

    def __call__(self) -> Any:
        if self._runner not in (0, threading.get_ident()):
            return self._refuse_thread()
        if not self._address or self._code:
            return self._resume(self._code)
        self._runner = threading.get_ident()
        return self._end(abi.TIMEOUT)

    def _refuse_thread(self) -> Any:
        raise NotImplementedError

    def _resume(self, code: int) -> Any:
        raise NotImplementedError

    def _end(self, code: int) -> Any:
        raise NotImplementedError


if TYPE_CHECKING:
    _Run = _PythonRun
else:
    _Run = fast_calls.RUN or _PythonRun


class PreparedCall(_Run):
    """A collective to be called many times on the same arrays, with their current values.

    The `prepare_*` functions make it. A call runs it, and returns the result. Each run returns the same
    object and overwrites it. When another rank's rows have changed the result's shape, the result is a new
    object, and the contents of the old one are void.

    A call raises the errors of the collective, and RdmacollError when an exception (Ctrl-C) left an earlier
    call. The earlier run still has the arrays, and would take this one's place. The same holds while another
    thread runs it: prepare a call for each thread.
    """

    def __init__(
        self,
        engine: Engine,
        call: Call,
        out: Any = None,
        results: Callable[[PreparedResults], Any] | None = None,
    ) -> None:
        """out: the result of a run. Alternatively `results` makes it from the engine's own results."""
        self._has_moved = False  # results no longer lie where `out` says
        self._engine = engine
        self._arrays = (call.inputs, call.outputs, call.splits)
        self._is_on_gpu = call.stream != 0
        for operand in (*call.inputs, *call.outputs):
            if isinstance(operand, DeviceArray) and isinstance(operand.array, GpuArray):
                operand.array.use_on(operand.order, repeatedly=True)
        self._results = results
        self.out = out
        self._is_short = sum(array.nbytes for array in call.inputs) * engine.topology[1] <= LOCKED_BYTES_MAX
        library = engine.library
        self._run = library.prepared_run_locked if self._is_short else library.prepared_run
        self._error = ctypes.c_void_p()
        scratch = call.fill()
        engine.hold(id(self))
        scratch.handle.value = None
        if library.prepare(
            engine.address,
            scratch.request_address,
            SLICE_MS,
            scratch.handle_ref,
            ctypes.addressof(self._error),
        ):
            engine.release(id(self))
            raise failure(engine, self._error)
        self._address = scratch.handle.value or 0
        # ctypes passes such an argument on as it is, which is faster than converting a number.
        self._handle = ctypes.byref(ctypes.c_char.from_address(self._address))

    def _refuse_thread(self) -> Any:
        raise RdmacollError(
            "another thread runs this prepared call, or was interrupted in it: prepare a call for each "
            "thread."
        )

    def _resume(self, code: int) -> Any:
        """Runs after an earlier run whose value, `code`, was not handled, since Ctrl-C came first."""
        if not self._address:
            raise RdmacollError(
                "this prepared call has been freed: keep the object that `prepare_...` returned."
            )
        if code == abi.TIMEOUT:
            self._run = _refuse_interrupted  # the earlier run may still be in flight
        self._has_moved = self._has_moved or code == abi.MOVED
        return self._end(abi.TIMEOUT)

    def _end(self, code: int) -> Any:
        """Finishes a run. `code` is the value of its first slice."""
        try:
            while code == abi.TIMEOUT:  # Python's signal handlers run between the slices
                code = self._run(self._handle)
        except BaseException:
            self._run = _refuse_interrupted  # this run may still be in flight
            raise
        finally:
            self._runner = 0
        self._code = code
        if code:
            if code != abi.MOVED:
                self._code = abi.DONE
                raise refusal() if self._engine.is_forked else failure(self._engine, self._error)
            self._has_moved = True
        if self._has_moved:
            if self._results is not None:
                self.out = self._results(PreparedResults(self._engine, self._address))
            self._has_moved = False  # also after Ctrl-C in the lines above
        self._code = abi.DONE
        return self.out

    def __del__(self) -> None:
        engine = self._engine
        if not self._address or engine.is_forked:
            return
        address, self._address = self._address, 0
        is_interrupted = self._run is _refuse_interrupted or self._code == abi.TIMEOUT
        if is_interrupted and engine.is_open:
            engine.interrupted.append((address, self._arrays))
        else:
            end = engine.library.prepared_end(address) if self._is_on_gpu else None
            if end:
                engine.keeper.keep(end, self._arrays)
            engine.library.prepared_free(address)
        engine.release(id(self))


def check_prepared_arrays(
    engine: Engine,
    operation: str,
    name: str | None,
    process_set: ProcessSet,
    stream: Any,
    **arrays: Any,
) -> None:
    """Raises ConfigError, and announces it, for an array whose memory the call cannot use directly.

    The refused call takes the sequence number of its first run.
    """
    with Announced(engine, mirror.KINDS[operation], name, number_of(engine, process_set)):
        for label, value in arrays.items():
            if value is not None:
                operands.check_prepared_array(value, label, operation, stream)


def prepared_into(engine: Engine, call: Call, out: Array | None) -> PreparedCall:
    """A call whose result goes to `out`, or to the call's own array. Raises ConfigError if they overlap."""
    target = call.outputs[0]
    result = target.array if isinstance(target, DeviceArray) else target
    if out is not None and result is not out:
        with Announced(engine, call.kind, call.name, call.process_set):
            raise ConfigError("array and out overlap without being the same memory.")
    return PreparedCall(engine, call, result)


def prepared_result(engine: Engine, call: Call) -> PreparedCall:
    """A call with one result, which the engine makes with the dtype of the input."""
    return PreparedCall(
        engine, call, results=lambda results_of_run: results_of_run.array(0, type_of(call.inputs[0]))
    )


def _refuse_interrupted(_: object) -> int:
    raise RdmacollError(
        "this prepared call was interrupted, and its last run may still be in flight: it cannot run again. "
        "Prepare another one, on other arrays."
    )
