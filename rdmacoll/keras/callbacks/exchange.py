"""Ranks exchange short texts. Every decision follows from the texts of all ranks, so all ranks decide alike.

The collectives are those for numpy arrays, which work in eager programs and in graphs of TensorFlow 1.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from rdmacoll.engine import exchanges
from rdmacoll.process_set import ProcessSet


def gathered(value: Any, name: str, process_set: ProcessSet) -> dict[int, Any]:
    """The values of all ranks, by rank. value: this rank's value, for JSON."""
    line = json.dumps(value, separators=(",", ":")) + "\n"
    rows = exchanges.allgather(np.frombuffer(line.encode(), np.uint8), name, process_set=process_set)
    return dict(zip(process_set.ranks, map(json.loads, rows.tobytes().decode().splitlines())))


def gathered_unless_equal(
    value: Any, details: Any, name: str, process_set: ProcessSet
) -> dict[int, tuple[Any, Any]] | None:
    """The `value` and `details` of all ranks, by rank; None if `value` is equal on all ranks. In that case
    each rank sends 32 bytes only."""
    digest = np.frombuffer(hashlib.sha256(json.dumps(value).encode()).digest(), np.uint8)[None]
    rows = exchanges.allgather(digest, f"{name}: digest", process_set=process_set)
    if (rows == rows[0]).all():
        return None
    return {rank: (one, two) for rank, (one, two) in gathered([value, details], name, process_set).items()}
