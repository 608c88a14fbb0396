"""Numbers in the form that people read."""

from __future__ import annotations

SIZE_SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural if needed.

    >>> counted(1, "rank"), counted(2, "rank")
    ('1 rank', '2 ranks')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def bytes_text(count: int) -> str:
    """A size in the form that people read.

    >>> bytes_text(65536), bytes_text(8), bytes_text(1536)
    ('64K', '8', '1536')
    """
    for suffix in ("G", "M", "K"):
        if count >= SIZE_SUFFIXES[suffix] and count % SIZE_SUFFIXES[suffix] == 0:
            return f"{count // SIZE_SUFFIXES[suffix]}{suffix}"
    return str(count)
