"""This process's part in an asynchronous parameter server, and its calls to the servers.

Arrays are numpy's, float32 or float64. A call is over when the servers have done what it asks; it comes back
to Python now and then, so that Ctrl-C works. All raise RankFailedError once a server has died.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from rdmacoll.engine import library as abi
from rdmacoll.engine.arguments import address_of, source
from rdmacoll.engine.errors import ConfigError, NotInitializedError, RdmacollError
from rdmacoll.engine.pairs import gathering
from rdmacoll.engine.settings import arguments_text
from rdmacoll.engine.starting import agree
from rdmacoll.ps.rules import DTYPES, Array, Rule, rule_of

# A call comes back to Python this often.
_SLICE_MS = 100
_GOODBYE_MS = 2000


class _Call:
    """One that has been begun, or is about to be."""

    def __init__(self, memory: object) -> None:
        self.memory = memory
        self.number = 0

    def free(self, library: abi.Library) -> None:
        if self.number:
            library.ps_call_free(self.number)
            self.number = 0


class _Variable:
    """A variable as all workers have declared it."""

    def __init__(self, number: int, array: Array) -> None:
        self.number = number
        self.shape, self.dtype = array.shape, array.dtype


class Session:
    """A worker's connections to the servers."""

    def __init__(self, library: abi.Library, address: int, rank: int, workers: int) -> None:
        self.rank, self.workers = rank, workers
        self._library, self._address = library, address
        self._variables: dict[str, _Variable] = {}
        # Calls that have not ended, also those that nobody waits for any more, and the memory they use.
        self._calls: dict[int, _Call] = {}
        self._inside = threading.Condition()
        self._threads = 0  # that are in calls
        self._is_closed = False

    def close(self) -> None:
        """Says goodbye to the servers; nothing of it can be used then."""
        with self._inside:
            self._is_closed = True
            while self._threads > 0:  # they come out of the library now and then
                self._inside.wait(_SLICE_MS / 1000)
        call = 0
        try:
            call = self._library.ps_ask(self._address, abi.PS_LEAVE)
            # A push that was given up may be before it, held back by the pace of others. Without a goodbye
            # this worker is lost for the servers, which go on.
            for _ in range(_GOODBYE_MS // _SLICE_MS):
                if self._library.ps_wait(self._address, call, _SLICE_MS) is not None:
                    break
        except RdmacollError:
            pass  # whoever is gone needs no goodbye
        finally:
            self._library.ps_free(self._address)
            if call:
                self._library.ps_call_free(call)
            for left in self._calls.values():
                left.free(self._library)

    def wait(self, begin: Callable[[], int], memory: object) -> list[str]:
        """Begins a call, and gives what the servers said. `memory` is kept as long as the call may use it,
        which is longer than this where Ctrl-C ends it."""
        call = _Call(memory)
        with self._inside:
            if self._is_closed:
                raise _not_initialized()
            self._threads += 1
            self._calls[id(call)] = call
        try:
            call.number = begin()
            said = None
            while said is None:
                if self._is_closed:
                    raise _not_initialized()
                said = self._library.ps_wait(self._address, call.number, _SLICE_MS)
        except RdmacollError as error:
            if not isinstance(error, NotInitializedError):
                self._forget(call)
            raise
        finally:
            with self._inside:
                self._threads -= 1
                self._inside.notify_all()
        self._forget(call)
        return said

    def _forget(self, call: _Call) -> None:
        self._calls.pop(id(call), None)
        call.free(self._library)

    def variable(self, name: str) -> _Variable:
        """Raises ConfigError where nobody has declared it."""
        try:
            return self._variables[name]
        except KeyError:
            known = ", ".join(sorted(self._variables)) or "none"
            raise ConfigError(
                f"no variable {name!r} has been declared ({known}): declare it on all workers."
            ) from None

    def ask(self, what: int) -> list[str]:
        """PS_WAIT or PS_STATS."""
        return self.wait(lambda: self._library.ps_ask(self._address, what), None)

    def sharding(self) -> str:
        """Which server stores what."""
        return self._library.ps_sharding(self._address)

    def checkpoint(self, path: str, *, restores: bool) -> None:
        """Each server, to or from a file of its machine."""
        self.wait(lambda: self._library.ps_checkpoint(self._address, path, restores=restores), None)

    def declare(
        self,
        arrays: Mapping[str, Array],
        rule: Rule,
        rows: Collection[str],
        spared: Collection[str],
        restored: str | None,
    ) -> None:
        """All workers, with the same names in the same order."""
        for name in [*rows, *spared]:
            if name not in arrays:
                raise ConfigError(
                    f"{name!r} is not among the variables that are declared: {', '.join(arrays)}."
                )
        for name, array in arrays.items():
            if name in self._variables:
                raise ConfigError(f"variable {name!r} has been declared already: give each its own name.")
            _check(name, array, writable=True)
        structs = []
        for name, array in arrays.items():
            dims = (ctypes.c_int64 * array.ndim)(*array.shape)
            structs.append(
                abi.Variable(
                    name.encode(), DTYPES[array.dtype], array.ndim, dims, name in rows, name not in spared
                )
            )

        def begin() -> int:
            call = self._library.ps_declare(self._address, structs, rule.text)
            for name, array in arrays.items():
                self._variables[name] = _Variable(len(self._variables), array)
            return call

        said = self.wait(begin, structs)
        if self.rank == 0 and restored is not None:
            self.checkpoint(restored, restores=True)
        elif self.rank == 0 and "needs values" in said:
            return self.move(abi.PS_INIT, arrays)
        self.ask(abi.PS_WAIT)
        self.move(abi.PS_PULL, arrays)
        return None

    def move(self, move: int, arrays: Mapping[str, Array]) -> None:
        """PS_INIT, PS_PUSH, PS_PULL or PS_PUSH_PULL of these, which are as their variables."""
        variables = [self.variable(name).number for name in arrays]
        places = [address_of(array) for array in arrays.values()]
        self.wait(lambda: self._library.ps_move(self._address, move, variables, places), arrays)

    def move_rows(self, move: int, name: str, rows: Any, values: Array) -> None:
        """PS_PUSH or PS_PULL of rows."""
        numbers = np.ascontiguousarray(rows, np.int64)
        variable = self.variable(name).number
        places = (address_of(numbers), numbers.size, address_of(values))
        self.wait(
            lambda: self._library.ps_move_rows(self._address, move, variable, *places), (numbers, values)
        )


def _check(name: str, array: Array, *, writable: bool) -> None:
    if not isinstance(array, np.ndarray) or array.dtype not in DTYPES:
        what = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise ConfigError(f"variable {name!r} is {what}: servers update arrays of float32 and float64.")
    if not array.flags.c_contiguous or (writable and not array.flags.writeable):
        raise ConfigError(f"variable {name!r} is not contiguous or not writable: declare a copy of it.")


def _not_initialized() -> NotInitializedError:
    return NotInitializedError(
        "this process is no worker of a parameter server: call rdmacoll.ps.init first."
    )


_session: Session | None = None


def current() -> Session:
    """The session of this process, which is a worker. Raises NotInitializedError."""
    if _session is None:
        raise _not_initialized()
    return _session


def init(num_servers: int = 1, *, staleness: int | None = None, **settings: object) -> None:
    """Meets the other ranks that the launcher has started, as `rdmacoll.init` does. The last `num_servers` of
    them serve: there the call does not return, but ends the process with 0 when all workers have left.

    staleness: how many updates the fastest worker may be ahead of the slowest; None: any number. The same on
    all ranks. `settings` as of `rdmacoll.init`. Raises ConfigError and RankFailedError."""
    global _session
    if _session is not None:
        raise ConfigError("rdmacoll.ps.init has been called already: call rdmacoll.ps.shutdown before.")
    if staleness is not None and staleness < 0:
        raise ConfigError(f"staleness={staleness}: give a number of updates from 0 on, or None.")
    with gathering() as here:
        library, launch = here.library, here.launch
        address = 0
        leaders: list[int] = []

        def open_it() -> str:
            nonlocal address
            address, card = library.ps_open(
                rank=launch.rank,
                size=launch.size,
                servers=num_servers,
                staleness=-1 if staleness is None else staleness,
                job=f"{here.job} ps {num_servers} {staleness}",
                secret=here.secret,
                arguments=arguments_text(settings, here.values.names()),
            )
            return card

        def connect() -> str:
            while not library.ps_start(address, leaders, _SLICE_MS):
                here.carrier.check()
            return ""

        try:
            cards = agree(here.carrier, open_it)
            leaders += map(int, agree(here.carrier, lambda: str(library.ps_node(address, cards))))
            agree(here.carrier, connect)
        except BaseException:
            if address:
                library.ps_free(address)
            raise
    workers = launch.size - num_servers
    if launch.rank >= workers:
        try:
            while not library.ps_serve(address, _SLICE_MS):
                pass
        finally:
            library.ps_free(address)
        sys.exit(0)
    _session = Session(library, address, launch.rank, workers)
    atexit.register(shutdown)


def shutdown() -> None:
    """Leaves the servers, which end when all workers have. Does nothing where there is no session."""
    global _session
    session, _session = _session, None
    atexit.unregister(shutdown)
    if session is not None:
        session.close()


def rank() -> int:
    """The number of this worker."""
    return current().rank


def size() -> int:
    """The number of workers."""
    return current().workers


def declare(
    variables: Mapping[str, Array],
    optimizer: Any,
    *,
    by_rows: Collection[str] = (),
    not_decayed: Collection[str] = (),
    restore_from: str | None = None,
) -> None:
    """Gives variables to the servers, which own them from now on. All workers call it, with the same names,
    shapes and dtypes in the same order; the values are those of the first worker, or of the servers where
    these have some already, and come into the arrays of all others.

    variables: contiguous arrays of float32 or float64, any shape. optimizer: a Keras 3 optimizer, or a
    `Rule`; the same at every call. by_rows: names of embeddings, whose rows are pushed and pulled one by one.
    not_decayed: names that the optimizer's weight decay is not for. restore_from: what was given to `save`;
    the values, the optimizer's state and its steps are those that were saved, by as many servers and with the
    same variables. Raises ConfigError, and MismatchError where workers differ."""
    rule = optimizer if isinstance(optimizer, Rule) else rule_of(optimizer)
    current().declare(variables, rule, by_rows, not_decayed, restore_from)


def push(tensor: Any, name: str) -> None:
    """Lets the servers update variable `name` by the gradient `tensor`, of its shape and dtype."""
    current().move(abi.PS_PUSH, {name: _fitting(tensor, name)})


def pull(name: str, out: Array | None = None) -> Array:
    """The value of a variable, as it is now: a new array, or `out`."""
    variable = current().variable(name)
    if out is None:
        out = np.empty(variable.shape, variable.dtype)
    elif out.shape != variable.shape or not out.flags.writeable or not out.flags.c_contiguous:
        raise ConfigError(
            f"out of shape {list(out.shape)}: give a contiguous, writable {list(variable.shape)}."
        )
    elif out.dtype != variable.dtype:
        raise ConfigError(f"out is {out.dtype}, and variable {name!r} is {variable.dtype}.")
    current().move(abi.PS_PULL, {name: out})
    return out


def exchange(gradients: Mapping[str, Any]) -> dict[str, Array]:
    """One step: pushes gradients of variables, and gives their fresh values; one request to each server."""
    arrays = {name: np.array(_fitting(gradient, name)) for name, gradient in gradients.items()}
    current().move(abi.PS_PUSH_PULL, arrays)
    return arrays


def push_rows(rows: Any, gradients: Any, name: str) -> None:
    """Pushes rows: `rows` are n integers, `gradients` has shape (n, ...). Gradients of a row that is named
    twice are summed. Rows without a gradient change as with one of zero: with momentum they go on."""
    session = current()
    shape = (np.size(rows), *session.variable(name).shape[1:])
    session.move_rows(abi.PS_PUSH, name, rows, _fitting(gradients, name, shape))


def pull_rows(rows: Any, name: str) -> Array:
    """The values of some rows, n integers: an array of shape (n, ...)."""
    variable = current().variable(name)
    values = np.empty((np.size(rows), *variable.shape[1:]), variable.dtype)
    current().move_rows(abi.PS_PULL, name, rows, values)
    return values


def save(path: str) -> None:
    """Lets each server save its variables with the optimizer's state, to a file of its machine that is called
    `path` with ".server-0-of-2" and so on behind it. One worker calls it; pushes of others that are under way
    may be in it by halves. A file is there when it is complete, and replaces an older one.
    Raises RdmacollError."""
    current().checkpoint(path, restores=False)


def stats() -> list[dict[str, int]]:
    """What each server has done and stores: updates, bytes_received, bytes_sent, stored_bytes, variables,
    workers (those that are there), waiting (of them), lost."""
    return [json.loads(text) for text in current().ask(abi.PS_STATS)]


def sharding() -> str:
    """Which server stores what: a line for each."""
    return current().sharding()


def _fitting(tensor: Any, name: str, shape: tuple[int, ...] | None = None) -> Array:
    variable = current().variable(name)
    array = source(tensor)
    wanted = variable.shape if shape is None else shape
    if array.shape != wanted or array.dtype != variable.dtype:
        raise ConfigError(
            f"a gradient of {array.dtype}{list(array.shape)} for variable {name!r}, which takes "
            f"{variable.dtype}{list(wanted)}."
        )
    return array
