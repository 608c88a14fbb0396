"""The extension module `fast_calls` (cpp/python): calls of the library without ctypes and Python frames.

It is optional. Without it calls do the same through ctypes, and take longer.
"""

from __future__ import annotations

import importlib
from typing import Any, Callable

import numpy as np

from rdmacoll.engine.operators import DTYPES, OPERATORS


def _extension() -> Any:
    """The extension module, or None if it was not built or does not fit this interpreter."""
    try:
        return importlib.import_module("rdmacoll.lib.fast_calls")
    except ImportError:
        return None


_MODULE = _extension()
# The base class of prepared calls that run without Python code, or None.
RUN: Any = _MODULE and _MODULE.Run
# The address of a destructor of DLPack capsules (rdmacoll/_abi/dlpack.py), or None.
CAPSULE_DESTRUCTOR: Any = getattr(_MODULE, "CAPSULE_DESTRUCTOR", None)


def connect(table_address: int) -> bool:
    """Gives the library's table to the extension. False if the extension is of another build."""
    return _MODULE is None or bool(_MODULE.connect(table_address))


def set_error_factory(error_from: Callable[[str], BaseException]) -> None:
    """Sets the function that makes the exception of a failed call from the engine's JSON."""
    if _MODULE is not None:
        sums = tuple(DTYPES.known_to_reduce(op) for op in OPERATORS)
        _MODULE.prepare_calls((np.ndarray, np.empty, error_from, OPERATORS, sums, DTYPES.known_to_move))


def calls_of(engine_address: int, ranks: int, rank: int) -> Any:
    """The plain calls of one engine, or None without the extension.

    Its methods are the collectives. They return None for the cases that are left to Python code. They have
    submitted nothing then. reduce and gather return False on ranks that get no result.
    """
    return None if _MODULE is None else _MODULE.Calls(engine_address, ranks, rank)
