"""A worker's connections to asynchronous parameter servers, and its calls to them.

Arrays are numpy's, float32 or float64. A call is over when the servers have done what it asks; it comes back
to Python now and then, so that Ctrl-C works. All raise RankFailedError once a server has died.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rdmacoll._abi import library as abi, mirror
from rdmacoll._abi.arguments import address_of, name as checked_name
from rdmacoll.engine.errors import ConfigError, NotInitializedError, RdmacollError
from rdmacoll.engine.operators import CODES

Array = np.ndarray[Any, Any]

DTYPES = {np.dtype(name): CODES[name] for name in ("float32", "float64")}

# A call comes back to Python this often.
_SLICE_MS = 100
_GOODBYE_MS = 2000


class State(NamedTuple):
    """What an optimizer has when servers take over: its steps, and its slots, in their order, by variable."""

    updates: int = 0
    slots: Sequence[Mapping[str, Array]] = ()


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

    def __init__(self, library: abi.Library, address: int, rank: int) -> None:
        self.rank = rank
        self._library, self._address = library, address
        self._variables: dict[str, _Variable] = {}
        self._declaring = threading.Lock()  # numbers follow the order of declarations
        self._restored: str | None = None  # what the next one begins with
        # Declared with this rule, and without values, since their restore was refused.
        self._bare: tuple[list[str], str] = ([], "")
        # Calls that have not ended, also those that nobody waits for any more, and the memory they use.
        self._calls: dict[int, _Call] = {}
        self._inside = threading.RLock()  # a signal's handler may come back in
        self._threads: set[int] = set()  # that are in calls
        self._is_closed = False

    @property
    def address(self) -> int:
        """For the TensorFlow ops, which ask by themselves."""
        return self._address

    def end(self) -> None:
        """What is open, and what will be asked, ends with ShutdownError; `close` comes later."""
        with self._inside:
            if not self._is_closed:
                self._library.ps_end(self._address)

    def close(self) -> None:
        """Says goodbye to the servers; nothing of it can be used then."""
        with self._inside:
            self._is_closed = True
        # The others come out of the library now and then. This one is out, also where Ctrl-C came before it
        # could say so.
        while self._threads - {threading.get_ident()}:
            time.sleep(_SLICE_MS / 1000)
        call = 0
        try:
            call = self._library.ps_ask(self._address, mirror.PS_LEAVE)
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
            for left in list(self._calls.values()):
                left.free(self._library)

    def wait(self, begin: Callable[[], int], memory: object) -> list[str]:
        """Begins a call, and gives what the servers said. `memory` is kept as long as the call may use it,
        which is longer than this where Ctrl-C ends it."""
        call = _Call(memory)
        with self._inside:
            if self._is_closed:
                raise _not_initialized()
            self._threads.add(threading.get_ident())
            self._calls[id(call)] = call
        try:
            call.number = begin()
            said = None
            while said is None:
                if self._is_closed:
                    raise _not_initialized()
                said = self._library.ps_wait(self._address, call.number, _SLICE_MS)
            self._forget(call)
            return said
        except RdmacollError as error:
            if not isinstance(error, NotInitializedError):
                self._forget(call)
            raise
        finally:  # last: `close` frees what is there once nobody is in a call
            self._threads.discard(threading.get_ident())

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

    def has(self, name: str) -> bool:
        """Whether a variable of this name has been declared, and may be used."""
        return name in self._variables and name not in self._bare[0]

    def ask(self, what: int) -> list[str]:
        """PS_STATS."""
        return self.wait(lambda: self._library.ps_ask(self._address, what), None)

    def sharding(self) -> str:
        """Which server stores what."""
        return self._library.ps_sharding(self._address)

    def save(self, path: str) -> None:
        """Each server, to a file of its machine."""
        self._checkpoint(path, mirror.PS_SAVE)

    def restore(self, path: str) -> None:
        """Of what `save` wrote: at once, or where nothing has been declared with the next declaration."""
        if self.rank == 0:
            self._check_saved(path)
        if not self._variables:
            self._restored = path
        elif self.rank == 0:
            self._checkpoint(path, mirror.PS_RESTORE)

    def _check_saved(self, path: str) -> None:
        """Before anything is changed by it: a run may begin without a checkpoint where there is none."""
        numbers = self._checkpoint(path, mirror.PS_SAVED)
        if len(set(numbers)) > 1:
            files = ", ".join(f"server {server}: {number}" for server, number in enumerate(numbers))
            raise ConfigError(
                f"the checkpoint {path} is of several saves, which do not fit together (their numbers are "
                f"{files}): take files that one rdmacoll.ps.save has written."
            )

    def _checkpoint(self, path: str, way: int) -> list[str]:
        return self.wait(lambda: self._library.ps_checkpoint(self._address, path, way), None)

    def declare(
        self,
        arrays: Mapping[str, Array],
        rule: str,
        rows: Collection[str],
        spared: Collection[str],
        restored: str | None,
        state: State | None = None,
    ) -> None:
        """All workers, with the same names in the same order. state: of the first worker's optimizer.
        Names that servers refuse, since another worker has declared otherwise, may be declared anew."""
        _check_names(arrays, rows, spared)
        if not arrays:
            return None
        with self._declaring:
            if restored is not None and self.rank == 0:
                self._check_saved(restored)
            said = self._name_variables(arrays, rule, rows, spared)
            restored, self._restored = restored or self._restored, None
        if self.rank == 0 and restored is not None:
            self._bare = (list(arrays), rule)  # where it is refused they may be declared without it
            self._checkpoint(restored, mirror.PS_RESTORE)
            self._bare = ([], "")
        elif self.rank == 0 and "needs values" in said:
            updates, slots = state or State()
            for slot, kept in enumerate(slots, 1):
                self.move(mirror.PS_INIT, kept, slot=slot)
            return self.move(mirror.PS_INIT, arrays, updates=updates)
        self.move(mirror.PS_PULL, arrays)  # which waits for values
        return None

    def _name_variables(
        self, arrays: Mapping[str, Array], rule: str, rows: Collection[str], spared: Collection[str]
    ) -> list[str]:
        if arrays and (list(arrays), rule) == self._bare:
            for name, array in arrays.items():
                self._number(name, array)
            self._bare = ([], "")
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
                    name.encode(), DTYPES[array.dtype], array.ndim, dims, name in rows, name not in spared
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
        """PS_INIT, PS_PUSH or PS_PULL of these, which are as their variables. rate: the learning rate of a
        push, or None: the rule's, also below.

        PS_INIT and PS_PULL also of what the optimizer keeps beside them, its slots from 1 on. After PS_INIT
        of the values (0) they have had so many updates."""
        variables = [self._number(name, array) for name, array in arrays.items()]
        places = [address_of(array) for array in arrays.values()]
        library = self._library
        if move in (mirror.PS_INIT, mirror.PS_PULL):
            which = (self._address, move, slot, updates, variables, places)
            self.wait(lambda: library.ps_move_slot(*which), arrays)
        else:
            self.wait(lambda: library.ps_move(self._address, move, variables, places, rate), arrays)

    def exchange(
        self, gradients: Mapping[str, Array], values: Mapping[str, Array], rate: float | None = None
    ) -> None:
        """Pushes gradients, and gets the fresh values of the same variables; all are as their variables."""
        variables = [self._number(name, array) for name, array in gradients.items()]
        there = [address_of(array) for array in gradients.values()]
        back = [address_of(values[name]) for name in gradients]
        which = (self._address, variables, there, back, rate)
        self.wait(lambda: self._library.ps_exchange(*which), (gradients, values))

    def _number(self, name: str, array: Array) -> int:
        variable = self.variable(name)
        if array.shape != variable.shape or array.dtype != variable.dtype:
            raise ConfigError(
                f"{array.dtype}{list(array.shape)} for variable {name!r}, which is "
                f"{variable.dtype}{list(variable.shape)}: give it that shape and dtype."
            )
        return variable.number

    def updates(self, names: Collection[str]) -> int:
        """How many the one of these variables has had that has had the most."""
        variables = [self.variable(name).number for name in names]
        said = self.wait(lambda: self._library.ps_updates(self._address, variables), None)
        return max(map(int, said), default=0)

    def move_rows(self, move: int, name: str, rows: Any, values: Array, rate: float | None = None) -> None:
        """PS_PUSH or PS_PULL of rows."""
        given = np.asarray(rows)
        if given.size > 0 and given.dtype.kind not in "iu":
            raise ConfigError(
                f"rows of variable {name!r} are {given.dtype}: give their numbers, as integers."
            )
        numbers = np.ascontiguousarray(given, np.int64)
        variable = self.variable(name).number
        which = (move, variable, address_of(numbers), numbers.size, address_of(values), rate)
        self.wait(lambda: self._library.ps_move_rows(self._address, *which), (numbers, values))


def _check_names(arrays: Any, rows: Collection[str], spared: Collection[str]) -> None:
    if not isinstance(arrays, Mapping):
        raise ConfigError(f"variables are a {type(arrays).__name__}: give a dict of arrays by their names.")
    for name in arrays:
        checked_name(name)
    for name in [*rows, *spared]:
        if name not in arrays:
            raise ConfigError(
                f"{name!r} is not among the variables that are declared ({', '.join(arrays) or 'none'}): "
                "name one of these."
            )


def _check(name: str, array: Array, *, writable: bool) -> None:
    if not isinstance(array, np.ndarray) or array.dtype not in DTYPES:
        what = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise ConfigError(
            f"variable {name!r} is {what}: give an array of float32 or float64, which servers update."
        )
    if not array.flags.c_contiguous or (writable and not array.flags.writeable):
        raise ConfigError(f"variable {name!r} is not contiguous or not writable: declare a copy of it.")


def _not_initialized() -> NotInitializedError:
    return NotInitializedError(
        "this process has left the parameter servers by rdmacoll.shutdown(): ask before that."
    )
