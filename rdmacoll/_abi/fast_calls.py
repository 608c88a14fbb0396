"""The extension module `fast_calls` (cpp/python): calls of the library without ctypes and Python frames.

It is optional. Without it calls do the same through ctypes, and take longer: several times as long below 64
KiB. `_MODULE = None` below shows it (docs/measurements/2026-11-28-what-mechanisms-are-worth.md).
"""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any, Callable, TypeVar, cast

import numpy as np

from rdmacoll.operators import CODES, DTYPES, OPERATORS
from rdmacoll.process_set import global_process_set, number_of

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _extension() -> Any:
    """The extension module, or None if it was not built or does not fit this interpreter."""
    try:
        return importlib.import_module("rdmacoll.lib.fast_calls")
    except ImportError:
        return None


# The contract between this file and cpp/python: a change of what a function takes or gives is a new number.
CONTRACT = 2
_FOUND = _extension()
_MODULE = _FOUND if getattr(_FOUND, "CONTRACT", None) == CONTRACT else None
# The base class of prepared calls that run without Python code, or None.
RUN: Any = _MODULE and _MODULE.Run
# The address of a destructor of DLPack capsules (rdmacoll/_abi/dlpack.py), or None.
CAPSULE_DESTRUCTOR: Any = getattr(_MODULE, "CAPSULE_DESTRUCTOR", None)


def connect(table_address: int) -> bool:
    """Gives the library's table to the extension. False if the extension is of another build."""
    return _FOUND is None or (_MODULE is not None and bool(_MODULE.connect(table_address)))


def set_error_factory(error_from: Callable[[str], BaseException]) -> None:
    """Sets the function that makes the exception of a failed call from the engine's JSON."""
    if _MODULE is None:
        return
    example = np.zeros((2, 3), np.float32)
    sums = tuple(DTYPES.known_to_reduce(op) for op in OPERATORS)
    # numpy has no bfloat16
    sizes = tuple(2 if name == "bfloat16" else np.dtype(name).itemsize for name in CODES)
    _MODULE.prepare_calls(
        (
            *(np.ndarray, np.empty, error_from, number_of, global_process_set),
            (example, example.dtype, example.ctypes.data),
            *(OPERATORS, sums, DTYPES.known_to_move, sizes),
        )
    )


def calls_of(engine_address: int, ranks: int, rank: int) -> Any:
    """The engine as plain calls use it, or None without the extension."""
    return None if _MODULE is None else _MODULE.Calls(engine_address, ranks, rank)


def use_engine(engine: Any, calls: Any) -> None:
    """Sets the engine that plain calls use, and its `calls_of`. None: Python code does all calls."""
    if _MODULE is not None:
        _MODULE.use_engine(engine, calls)


def plain(function: _Function) -> _Function:
    """Lets the extension do the usual calls of a collective. `function` does the others.

    The result looks like `function` to programs. Its name tells the collective.
    """
    if _MODULE is None:
        return function
    parameters = inspect.signature(function).parameters.values()
    names = tuple(parameter.name for parameter in parameters)
    defaults = tuple(one.default for one in parameters if one.default is not one.empty)
    positional = sum(one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters)
    made = _MODULE.PlainFunction(function, function.__name__, names, defaults, positional)
    return cast(_Function, functools.update_wrapper(made, function))
