"""Functions of the library that CPython calls as builtin functions, without a frame and without ctypes.

A ctypes call takes as long as a small sum.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable

_METH_NOARGS = 0x0004


class _Definition(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


_definitions: dict[int, _Definition] = {}  # by address


_make = ctypes.pythonapi.PyCFunction_NewEx
_make.argtypes = [ctypes.POINTER(_Definition), ctypes.py_object, ctypes.c_void_p]
_make.restype = ctypes.py_object


class _Address(int):
    """The address of a structure that a function needs. It keeps the structure alive."""

    kept: ctypes.Structure


def function_at(address: int, needed: ctypes.Structure) -> Callable[[], Any]:
    """The C function `PyObject *f(PyObject *self, PyObject *)` at `address`, as a Python function.

    The function gets the address of `needed` as its `self`.
    """
    if address not in _definitions:
        _definitions[address] = _Definition(b"run", address, _METH_NOARGS, None)
        # Function objects refer to the definition until the interpreter ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_definitions[address]))
    itself = _Address(ctypes.addressof(needed))
    itself.kept = needed
    function: Callable[[], Any] = _make(_definitions[address], itself, None)
    return function
