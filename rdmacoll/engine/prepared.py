"""An allreduce whose set-up is paid once."""

from __future__ import annotations

import ctypes

from rdmacoll.engine import library as abi
from rdmacoll.engine.errors import RdmacollError
from rdmacoll.engine.submission import SLICE_MS, Array, Call, failure
from rdmacoll.engine.world import Engine, refusal


class PreparedAllreduce:
    """An allreduce that is called again and again, on the values that its array then holds. Made by
    `prepare_allreduce`."""

    def __init__(self, engine: Engine, call: Call) -> None:
        self._prepared = 0
        self._engine = engine
        self._arrays = (call.inputs, call.outputs)
        self.out = call.outputs[0]
        self._run = engine.library.prepared_run
        self._error = ctypes.c_void_p()
        scratch = call.fill()
        engine.hold(id(self))
        scratch.handle.value = None
        if engine.library.prepare(
            engine.address,
            scratch.request_address,
            SLICE_MS,
            scratch.handle_ref,
            ctypes.addressof(self._error),
        ):
            engine.let_go(id(self))
            raise failure(engine, self._error)
        self._prepared = scratch.handle.value or 0

    def __call__(self) -> Array:
        """Reduces what is in the array now; returns `out`.

        Raises RdmacollError when an earlier call was left by an exception (Ctrl-C): that run still has the
        arrays, and would take this one's place.
        """
        try:
            code = self._run(self._prepared)
            while code == abi.TIMEOUT:  # Python's signal handlers run between the slices
                code = self._run(self._prepared)
        except BaseException:
            self._run = _refuse_interrupted  # this one may still be in flight
            raise
        if code:
            raise refusal() if self._engine.is_forked else failure(self._engine, self._error)
        return self.out

    def __del__(self) -> None:
        engine = self._engine
        if not self._prepared or engine.is_forked:
            return
        if self._run is _refuse_interrupted and engine.is_open:
            engine.interrupted.append((self._prepared, self._arrays))
        else:
            engine.library.prepared_free(self._prepared)
        engine.let_go(id(self))


def _refuse_interrupted(prepared: int) -> int:
    raise RdmacollError(
        "this prepared allreduce was interrupted, and its last run may still be in flight: it cannot run "
        "again. Prepare another one, on other arrays."
    )
