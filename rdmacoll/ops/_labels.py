"""The names of a list of variables, for the ranks to compare their order: pure, without TensorFlow.

Ranks match variables by their order alone. A model that is built from a set or a dictionary may have another
order in each process. If shapes are equal, only the names show this.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

# Keras and TensorFlow number objects that have no name of their own: dense_5/kernel:0.
_COUNTERS = re.compile(r"_\d+(?=[_/:.]|$)|:\d+$")
_BYTES_MAX = 32 << 10  # for names that travel; the digests cover all names


def path_of(variable: Any, otherwise: str = "") -> str:
    """The path of a variable of Keras 3, or the name of another variable or tensor."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", otherwise))


def listed(variables: Sequence[Any]) -> str:
    """The first paths of a list, for messages."""
    names = [path_of(variable, "a variable") for variable in variables[:3]]
    return ", ".join(names) + (f" and {len(variables) - 3} more" if len(variables) > 3 else "")


def label_of(variable: Any) -> str:
    """The path of a variable; "" for tensors, whose names TensorFlow counts."""
    return path_of(variable) if hasattr(variable, "assign") else ""


def without_counters(label: str) -> str:
    """A label without the counters, which differ between processes that have made other models before.

    >>> without_counters("sequential_1/dense_5/kernel:0"), without_counters("adam/dense_12_bias_momentum")
    ('sequential/dense/kernel', 'adam/dense_bias_momentum')
    """
    return _COUNTERS.sub("", label)


def listing(labels: Sequence[str]) -> str:
    """The text of cpp/operation/listing.h: digests of the labels in order and sorted, the same without
    counters, and the labels. It is empty if no label tells anything.

    >>> print(listing(["b_1", "a"]))
    a85fefd7a0c97244d67a19825ab3a038
    b_1
    a
    """
    if len(labels) < 2 or not any(labels):
        return ""
    without_numbers = [without_counters(label) for label in labels]
    digests = "".join(
        _digest(names) for names in (labels, sorted(labels), without_numbers, sorted(without_numbers))
    )
    text, size = [], 0
    for label in labels:
        line = label.replace("\n", " ").replace("\0", " ")
        size += len(line.encode(errors="replace")) + 1
        if size > _BYTES_MAX:
            break
        text.append(line)
    return "\n".join([digests, *text])


def _digest(names: Iterable[str]) -> str:
    return f"{zlib.crc32(repr(list(names)).encode(errors='replace')):08x}"
