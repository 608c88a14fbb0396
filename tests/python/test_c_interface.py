"""The tables of functions that librdmacoll.so returns, and their mirror in Python."""

from __future__ import annotations

import ctypes
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rdmacoll._abi import library, mirror
from rdmacoll._abi.library import Library, library_path, load
from rdmacoll.errors import ConfigError

GENERATOR = Path(__file__).resolve().parents[2] / "cpp" / "api" / "mirror.py"
PURPOSES = ("engine", "operation", "prepared", "ps", "tools")


def table_of(version: int) -> Any:
    get_api = ctypes.CDLL(str(library_path())).rc_get_api
    get_api.restype = ctypes.POINTER(mirror.Api)
    get_api.argtypes = [ctypes.c_uint32]
    return get_api(version)


@pytest.mark.parametrize("purpose", PURPOSES)
def test_every_entry_of_a_table_has_a_function(purpose: str) -> None:
    table = getattr(table_of(mirror.ABI_VERSION).contents, purpose).contents
    empty = [
        name
        for name, _ in type(table)._fields_
        if not ctypes.c_void_p.from_buffer_copy(bytes(table), getattr(type(table), name).offset).value
    ]
    assert not empty


def test_another_version_of_the_interface_has_no_table() -> None:
    assert mirror.ABI_VERSION == 1
    assert not table_of(mirror.ABI_VERSION + 1)
    assert not table_of(0)


def test_a_library_with_another_header_is_refused(tmp_path: Path) -> None:
    """A copy of the library, in which the bytes of the hash are those of another header."""
    content = library_path().read_bytes()
    own = mirror.HEADER_HASH.to_bytes(8, sys.byteorder)
    assert content.count(own) == 1
    stale = tmp_path / "librdmacoll.so"
    stale.write_bytes(content.replace(own, (mirror.HEADER_HASH ^ 1).to_bytes(8, sys.byteorder)))
    with pytest.raises(ConfigError) as refused:
        Library(stale)
    assert str(refused.value) == (
        f"{stale} and the Python package come from different builds. Install the package again, or run "
        '"make native" in the clone.'
    )


def test_a_library_older_than_the_hash_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old(ctypes.Structure):
        _fields_ = (
            ("abi_version", ctypes.c_uint32),
            ("size", ctypes.c_uint32),
            ("version", ctypes.c_char_p),
        )

    table = Old(mirror.ABI_VERSION, 64, b"0.1.0")

    def get_api(version: int) -> Any:
        return ctypes.cast(ctypes.pointer(table), ctypes.POINTER(mirror.Api))

    monkeypatch.setattr(ctypes, "CDLL", lambda path: SimpleNamespace(rc_get_api=get_api))
    with pytest.raises(ConfigError, match="come from different builds"):
        Library(library_path())


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mirror_generator", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    return generator


def test_a_change_of_a_comment_keeps_the_hash_and_a_change_of_an_entry_does_not() -> None:
    generator = load_generator()
    text = generator.HEADER.read_text()
    assert generator.Header(text).hash == f"{mirror.HEADER_HASH:016x}"
    other_comment = text.replace("the engine of one rank", "an engine\n")
    assert other_comment != text
    assert generator.Header(other_comment).hash == f"{mirror.HEADER_HASH:016x}"
    other_entry = text.replace("int32_t root;", "int64_t root;")
    assert generator.Header(other_entry).hash != f"{mirror.HEADER_HASH:016x}"


def test_transports_are_listed_with_their_properties() -> None:
    rows = {row["name"]: row for row in load().transports()}
    assert list(rows) == ["shm", "rdma", "tcp"]
    assert [row["shares_memory"] for row in rows.values()] == [True, False, False]
    assert [row["via_nic"] for row in rows.values()] == [False, True, False]


@pytest.mark.parametrize(
    ("arguments", "off"),
    [
        ("", []),
        ("RDMACOLL_TRANSPORT=shm,tcp\n", ["rdma"]),
        ("RDMACOLL_RDMA=false\n", ["rdma"]),
        ("RDMACOLL_TRANSPORT=rdma\n", ["shm", "tcp"]),
        ("RDMACOLL_TRANSPORT=quic\n", []),
    ],
)
def test_settings_turn_transports_off(arguments: str, off: list[str]) -> None:
    assert [row["name"] for row in load().transports(arguments) if row["is_off"]] == off


@pytest.mark.parametrize("purpose", PURPOSES)
def test_functions_that_python_calls_are_in_their_tables(purpose: str) -> None:
    text = inspect.getsource(library)
    called = set(re.findall(rf"self\._{purpose}\.(\w+)", text))
    assert called
    table = getattr(table_of(mirror.ABI_VERSION).contents, purpose).contents
    assert called <= {name for name, _ in type(table)._fields_}
