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


def moved_text(count: int) -> str:
    """Bytes that have been moved, in the unit that fits.

    >>> moved_text(12), moved_text(6400), moved_text(25_400_000), moved_text(3_000_000_000_000)
    ('12 B', '6.4 kB', '25.4 MB', '3000.0 GB')
    """
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
