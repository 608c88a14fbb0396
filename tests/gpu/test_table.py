"""The table of a run counts each test once, by its worst phase."""

from __future__ import annotations

from types import SimpleNamespace

from table import lines, rows


def report(nodeid: str, when: str = "call", outcome: str = "passed") -> SimpleNamespace:
    return SimpleNamespace(nodeid=f"tests/gpu/test_{nodeid}", when=when, outcome=outcome, duration=1.0)


def test_a_row_counts_the_tests_of_a_file_with_one_library() -> None:
    found = [
        report("a_b.py::test_x[cupy-2]"),
        report("a_b.py::test_x[2-cupy]", outcome="failed"),
        report("a_b.py::test_x[2-cupy]", "teardown", "failed"),
        report("a_b.py::test_x[torch]", "setup", "skipped"),
        report("a_b.py::test_y"),
        report("a_b.py::test_y", "teardown", "failed"),
        report("a_b.py::test_y", "setup"),
    ]
    assert [tuple(row.values()) for row in rows(found)] == [
        ("a b", "cupy", 1, 1, 0, 3.0),
        ("a b", "torch", 0, 0, 1, 1.0),
        ("a b", "driver", 0, 1, 0, 3.0),
    ]
    assert lines(rows(found))[1].split() == ["a", "b", "cupy", "1", "1", "0", "3.0"]
