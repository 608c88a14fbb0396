"""The profile of this machine as text: a table for `rdmacoll tune`, a clause for `doctor` and `plan`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rdmacoll._base.text import bytes_text, counted

# The fields of the clause, and their names there.
_SHOWN = (
    ("copy_l2", "copies in L2"),
    ("copy_l3", "in L3"),
    ("copy_memory", "in memory"),
    ("peer_copy", "from another core"),
    ("line_ns", "a cache line"),
    ("one_copy_call_ns", "a one-copy read"),
)


def value_text(unit: str, value: int | None) -> str:
    """A number of a profile for people.

    >>> value_text("bytes/us", 37500), value_text("ns", 254), value_text("ns", 20441), value_text("ns", None)
    ('37.5 GB/s', '254 ns', '20.4 us', 'not measured')
    >>> value_text("bytes", 33554432), value_text("cores", 2)
    ('32 MiB', '2')
    """
    if value is None:
        return "not measured"
    if unit == "bytes/us":
        return f"{value / 1e3:.1f} GB/s"
    if unit == "ns":
        return f"{value} ns" if value < 10_000 else f"{value / 1e3:.1f} us"
    if unit == "bytes":
        return f"{value / (1 << 20):g} MiB"
    return str(value)


def table_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The rows of the table: the numbers of the profile, then what the kernel tells."""
    rows = [(field["meaning"], value_text(field["unit"], field["value"])) for field in found["fields"]]
    quota = "none" if found["quota"] is None else f"{found['quota']:g} cores"
    return [
        *rows,
        ("quota of processor time", quota),
        ("hyper-threads of a core", str(found["threads_per_core"])),
        ("memory of this machine or group", f"{found['memory_limit'] / (1 << 30):.1f} GiB"),
        ("huge pages of shared memory", found["shared_huge_pages"] or "unknown"),
        *(row for gpu in found["gpus"] for row in _gpu_rows(gpu)),
    ]


def _gpu_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The rows of a GPU: what a copy between it and pinned memory costs, and the segments that follow."""
    copies = found["problem"] or "not measured"
    if found["bytes_per_us"]:
        copies = f"{found['start_us']:.1f} us + {found['bytes_per_us'] / 1e3:.1f} GB/s"
    segments = ", ".join(bytes_text(row["segment_bytes"]) for row in found["segments"])
    staged = ", ".join(bytes_text(row["bytes"]) for row in found["segments"])
    return [(f"copy from or to {found['gpu']}", copies), (f"segments to stage {staged}", segments)]


def summary(found: Mapping[str, Any]) -> str:
    """The most important numbers in a clause, and their source."""
    if found["source"] == "off":
        return "off (RDMACOLL_PROFILE); usual figures are used"
    if found["source"] == "none":
        return "not measured yet: the first start of several ranks does it"
    values = {field["name"]: field for field in found["fields"] if field["value"] is not None}
    clauses = [counted(values["cores"]["value"], "core")] if "cores" in values else []
    clauses += [
        f"{words} {value_text(values[name]['unit'], values[name]['value'])}"
        for name, words in _SHOWN
        if name in values
    ]
    return f"{', '.join(clauses)} (from {found['path']})"
