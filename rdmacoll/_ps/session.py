"""A worker's connections to asynchronous parameter servers, and its calls to them.

Arrays are numpy arrays of float32 or float64. A call ends when the servers have done the work. It returns to
Python from time to time, so that Ctrl-C works. All calls raise RankFailedError once a server has died.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rdmacoll._abi import library as abi, mirror
from rdmacoll._abi.arguments import Array, address_of, name as checked_name
from rdmacoll.errors import ConfigError, NotInitializedError, RdmacollError
from rdmacoll.operators import CODES

DTYPES = {np.dtype(name): CODES[name] for name in ("float32", "float64")}

# A call returns to Python this often.
_SLICE_MS = 100
_GOODBYE_MS = 2000


class State(NamedTuple):
    """An optimizer's state when servers take over: its steps, and its slots in order, each by variable."""

    updates: int = 0
    slots: Sequence[Mapping[str, Array]] = ()


class _Call:
    """A call that has begun or is about to begin."""

    def __init__(self, memory: object) -> None:
        self.memory = memory
        self.number = 0

    def free(self, library: abi.Library) -> None:
        if self.number:
            library.ps_call_free(self.number)
            self.number = 0


class _Variable:
    """A variable that all workers have declared."""

    def __init__(self, number: int, array: Array) -> None:
        self.number = number
        self.shape, self.dtype = array.shape, array.dtype


class Session:
    """A worker's connections to the servers."""

    def __init__(self, library: abi.Library, address: int, rank: int) -> None:
        self.rank = rank
        self._library, self._address = library, address
        self._variables: dict[str, _Variable] = {}
        self._declaring = threading.Lock()  # numbers follow the order of declarations
        self._restored: str | None = None  # the checkpoint with which the next declaration begins
        # Variables that were declared with this rule but have no values, since their restore was refused.
        self._without_values: tuple[list[str], str] = ([], "")
        # Calls that have not ended, also abandoned ones, and the memory that they use.
        self._calls: dict[int, _Call] = {}
        self._lock = threading.RLock()  # reentrant: a signal's handler may call the session
        self._threads: set[int] = set()  # the threads that are in calls
        self._is_closed = False

    @property
    def address(self) -> int:
        """The session's address in the library, for the TensorFlow ops, which make calls themselves."""
        return self._address

    def end(self) -> None:
        """Ends open and later calls with ShutdownError. `close` comes later."""
        with self._lock:
            if not self._is_closed:
                self._library.ps_end(self._address)

    def close(self) -> None:
        """Says goodbye to the servers. The session cannot be used afterwards."""
        with self._lock:
            self._is_closed = True
        # Other threads return from the library from time to time. This thread is no longer in a call, even if
        # Ctrl-C came before it left the set.
        while self._threads - {threading.get_ident()}:
            time.sleep(_SLICE_MS / 1000)
        call = 0
        try:
            call = self._library.ps_query(self._address, mirror.PS_LEAVE)
            # An abandoned push may be before it, held back by the pace of other workers. Without a goodbye
            # the servers take this worker for lost, and go on.
            for _ in range(_GOODBYE_MS // _SLICE_MS):
                if self._library.ps_wait(self._address, call, _SLICE_MS) is not None:
                    break
        except RdmacollError:
            pass  # a server that is gone needs no goodbye
        finally:
            self._library.ps_free(self._address)
            if call:
                self._library.ps_call_free(call)
            for pending in list(self._calls.values()):
                pending.free(self._library)

    def wait(self, begin: Callable[[], int], memory: object) -> list[str]:
        """Begins a call, and returns the servers' answers.

        The session keeps `memory` as long as the call may use it. If Ctrl-C ends the wait, that is longer
        than this function runs.
        """
        call = _Call(memory)
        with self._lock:
            if self._is_closed:
                raise _not_initialized()
            self._threads.add(threading.get_ident())
            self._calls[id(call)] = call
        try:
            call.number = begin()
            answers = None
            while answers is None:
                if self._is_closed:
                    raise _not_initialized()
                answers = self._library.ps_wait(self._address, call.number, _SLICE_MS)
            self._forget(call)
            return answers
        except RdmacollError as error:
            if not isinstance(error, NotInitializedError):
                self._forget(call)
            raise
        finally:  # last: `close` frees the session once no thread is in a call
            self._threads.discard(threading.get_ident())

    def _forget(self, call: _Call) -> None:
        self._calls.pop(id(call), None)
        call.free(self._library)

    def variable(self, name: str) -> _Variable:
        """The variable of this name. Raises ConfigError if no worker has declared it."""
        try:
            return self._variables[name]
        except KeyError:
            known = ", ".join(sorted(self._variables)) or "none"
            raise ConfigError(
                f"no variable {name!r} has been declared ({known}): declare it on all workers."
            ) from None

    def has(self, name: str) -> bool:
        """Whether a variable of this name is declared and has values."""
        return name in self._variables and name not in self._without_values[0]

    def query(self, query: int) -> list[str]:
        """Asks the servers, for PS_STATS. Returns their answers."""
        return self.wait(lambda: self._library.ps_query(self._address, query), None)

    def sharding(self) -> str:
        """The variables of each server, as text."""
        return self._library.ps_sharding(self._address)

    def save(self, path: str) -> None:
        """Makes each server save to a file on its machine."""
        self._checkpoint(path, mirror.PS_SAVE)

    def restore(self, path: str) -> None:
        """Restores a save: at once, or with the next declaration if nothing has been declared yet."""
        if self.rank == 0:
            self._check_saved(path)
        if not self._variables:
            self._restored = path
        elif self.rank == 0:
            self._checkpoint(path, mirror.PS_RESTORE)

    def _check_saved(self, path: str) -> None:
        """Raises ConfigError if the checkpoint's files do not fit together.

        Called before anything changes, since a run may begin without a checkpoint if there is none.
        """
        numbers = self._checkpoint(path, mirror.PS_SAVED)
        if len(set(numbers)) > 1:
            files = ", ".join(f"server {server}: {number}" for server, number in enumerate(numbers))
            raise ConfigError(
                f"the checkpoint {path} mixes files of several saves (numbers of the saves: {files}): use "
                "the files of one rdmacoll.ps.save."
            )

    def _checkpoint(self, path: str, action: int) -> list[str]:
        return self.wait(lambda: self._library.ps_checkpoint(self._address, path, action), None)

    def declare(
        self,
        arrays: Mapping[str, Array],
        rule: str,
        rows: Collection[str],
        without_decay: Collection[str],
        restored: str | None,
        state: State | None = None,
    ) -> None:
        """Declares variables. All workers call it with the same names in the same order.

        state: the state of the first worker's optimizer. Servers refuse names that another worker has
        declared differently. These may be declared again.
        """
        _check_names(arrays, rows, without_decay)
        if not arrays:
            return None
        with self._declaring:
            if restored is not None and self.rank == 0:
                self._check_saved(restored)
            answers = self._name_variables(arrays, rule, rows, without_decay)
            restored, self._restored = restored or self._restored, None
        if self.rank == 0 and restored is not None:
            self._without_values = (
                list(arrays),
                rule,
            )  # if the restore is refused, they may be declared without it
            self._checkpoint(restored, mirror.PS_RESTORE)
            self._without_values = ([], "")
        elif self.rank == 0 and "needs values" in answers:
            updates, slots = state or State()
            for slot, values in enumerate(slots, 1):
                self.move(mirror.PS_INIT, values, slot=slot)
            return self.move(mirror.PS_INIT, arrays, updates=updates)
        self.move(mirror.PS_PULL, arrays)  # waits until the variables have values
        return None

    def _name_variables(
        self, arrays: Mapping[str, Array], rule: str, rows: Collection[str], without_decay: Collection[str]
    ) -> list[str]:
        if arrays and (list(arrays), rule) == self._without_values:
            for name, array in arrays.items():
                self._number(name, array)
            self._without_values = ([], "")
            return ["needs values"]
        for name, array in arrays.items():
            if name in self._variables:
                raise ConfigError(f"variable {name!r} has been declared already: give each its own name.")
            _check(name, array, writable=True)
        structs = []
        for name, array in arrays.items():
            dims = (ctypes.c_int64 * array.ndim)(*array.shape)
            structs.append(
                mirror.Variable(
                    name.encode(),
                    DTYPES[array.dtype],
                    array.ndim,
                    dims,
                    name in rows,
                    name not in without_decay,
                )
            )

        def begin() -> int:
            call = self._library.ps_declare(self._address, structs, rule)
            for name, array in arrays.items():
                self._variables[name] = _Variable(len(self._variables), array)
            return call

        try:
            return self.wait(begin, structs)
        except RdmacollError:
            for name in arrays:
                self._variables.pop(name, None)
            raise

    def move(
        self,
        move: int,
        arrays: Mapping[str, Array],
        *,
        slot: int = 0,
        updates: int = 0,
        rate: float | None = None,
    ) -> None:
        """PS_INIT, PS_PUSH or PS_PULL of these arrays, which have their variables' shapes and dtypes.

        slot: from 1 on, the optimizer's slot beside the variables, for PS_INIT and PS_PULL; 0: the values.
        updates: the number of updates that the values have had, for PS_INIT of the values. rate: the learning
        rate of a push, or None: the rule's. The same holds for the functions below.
        """
        variables = [self._number(name, array) for name, array in arrays.items()]
        addresses = [address_of(array) for array in arrays.values()]
        library = self._library
        if move in (mirror.PS_INIT, mirror.PS_PULL):
            arguments = (self._address, move, slot, updates, variables, addresses)
            self.wait(lambda: library.ps_transfer_slot(*arguments), arrays)
        else:
            self.wait(lambda: library.ps_transfer(self._address, move, variables, addresses, rate), arrays)

    def exchange(
        self, gradients: Mapping[str, Array], values: Mapping[str, Array], rate: float | None = None
    ) -> None:
        """Pushes gradients, and pulls the fresh values of the same variables.

        Shapes and dtypes as declared.
        """
        variables = [self._number(name, array) for name, array in gradients.items()]
        push_addresses = [address_of(array) for array in gradients.values()]
        pull_addresses = [address_of(values[name]) for name in gradients]
        arguments = (self._address, variables, push_addresses, pull_addresses, rate)
        self.wait(lambda: self._library.ps_exchange(*arguments), (gradients, values))

    def _number(self, name: str, array: Array) -> int:
        variable = self.variable(name)
        if array.shape != variable.shape or array.dtype != variable.dtype:
            raise ConfigError(
                f"{array.dtype}{list(array.shape)} for variable {name!r}, which is "
                f"{variable.dtype}{list(variable.shape)}: give it that shape and dtype."
            )
        return variable.number

    def updates(self, names: Collection[str]) -> int:
        """The largest number of updates that any of these variables has had."""
        variables = [self.variable(name).number for name in names]
        answers = self.wait(lambda: self._library.ps_updates(self._address, variables), None)
        return max(map(int, answers), default=0)

    def move_rows(self, move: int, name: str, rows: Any, values: Array, rate: float | None = None) -> None:
        """PS_PUSH or PS_PULL of these rows of a variable."""
        row_array = np.asarray(rows)
        if row_array.size > 0 and row_array.dtype.kind not in "iu":
            raise ConfigError(
                f"rows of variable {name!r} are {row_array.dtype}: give their numbers, as integers."
            )
        numbers = np.ascontiguousarray(row_array, np.int64)
        variable = self.variable(name).number
        arguments = (move, variable, address_of(numbers), numbers.size, address_of(values), rate)
        self.wait(lambda: self._library.ps_transfer_rows(self._address, *arguments), (numbers, values))


def _check_names(arrays: Any, rows: Collection[str], without_decay: Collection[str]) -> None:
    if not isinstance(arrays, Mapping):
        raise ConfigError(f"variables are a {type(arrays).__name__}: give a dict of arrays by their names.")
    for name in arrays:
        checked_name(name)
    for name in [*rows, *without_decay]:
        if name not in arrays:
            raise ConfigError(
                f"{name!r} is not among the variables that are declared ({', '.join(arrays) or 'none'}): "
                "name one of these."
            )


def _check(name: str, array: Array, *, writable: bool) -> None:
    if not isinstance(array, np.ndarray) or array.dtype not in DTYPES:
        what = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise ConfigError(
            f"variable {name!r} is {what}: servers update only float32 and float64. Give an array of one "
            "of these."
        )
    if not array.flags.c_contiguous or (writable and not array.flags.writeable):
        raise ConfigError(f"variable {name!r} is not contiguous or not writable: declare a copy of it.")


def _not_initialized() -> NotInitializedError:
    return NotInitializedError(
        "this process has left the parameter servers by rdmacoll.shutdown(): call this before shutdown()."
    )
