"""The tables of functions that librdmacoll.so returns, and their mirror in Python."""

from __future__ import annotations

import ctypes
import inspect
import re
from typing import Any

import pytest

from rdmacoll._abi import library, mirror
from rdmacoll._abi.library import Library, library_path, load
from rdmacoll.engine.errors import ConfigError

PURPOSES = ("engine", "operation", "prepared", "ps", "tools")


def table_of(version: int) -> Any:
    get_api = ctypes.CDLL(str(library_path())).rc_get_api
    get_api.restype = ctypes.POINTER(mirror.Api)
    get_api.argtypes = [ctypes.c_uint32]
    return get_api(version)


@pytest.mark.parametrize("purpose", PURPOSES)
def test_every_entry_of_a_table_has_a_function(purpose: str) -> None:
    table = getattr(table_of(mirror.ABI_VERSION).contents, purpose).contents
    assert table.size == ctypes.sizeof(type(table))
    empty = [
        name
        for name, _ in type(table)._fields_
        if not ctypes.c_void_p.from_buffer_copy(bytes(table), getattr(type(table), name).offset).value
        and name != "size"
    ]
    assert not empty


def test_another_version_of_the_interface_has_no_table() -> None:
    assert mirror.ABI_VERSION == 1
    assert not table_of(mirror.ABI_VERSION + 1)
    assert not table_of(0)


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_table_that_ends_before_its_mirror_is_refused(
    purpose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(getattr(table_of(mirror.ABI_VERSION).contents, purpose).contents)
    longer = type("Longer", (kind,), {"_fields_": [("new", ctypes.c_void_p)]})
    fields = [(name, ctypes.POINTER(longer) if name == purpose else one) for name, one in mirror.Api._fields_]
    monkeypatch.setattr(mirror, "Api", type("Api", (ctypes.Structure,), {"_fields_": fields}))
    with pytest.raises(ConfigError, match="is older than the Python package"):
        Library(load().path)


@pytest.mark.parametrize("purpose", PURPOSES)
def test_functions_that_python_calls_are_in_their_tables(purpose: str) -> None:
    text = inspect.getsource(library)
    called = set(re.findall(rf"self\._{purpose}\.(\w+)", text))
    assert called
    table = getattr(table_of(mirror.ABI_VERSION).contents, purpose).contents
    assert called <= {name for name, _ in type(table)._fields_}
