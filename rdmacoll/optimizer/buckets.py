"""Cuts a list of gradients into buckets: pure, and the same on every rank.

The list is cut when the training step is traced, so that no bucket depends on timing. Buckets have backward
order, since the last layer's gradient is ready first. The first bucket is small, so that communication begins
early. The last buckets become smaller and smaller: nothing hides the communication of the very last one, and
the first layers of most models take much of the time with few of the bytes. Each bucket has one dtype.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rdmacoll.errors import ConfigError

# The most for the first bucket, and for one that would be smaller to leave others as much.
FIRST_BUCKET_BYTES = 1 << 20


@dataclass(frozen=True)
class Entry:
    """One gradient. bytes: its size, or None if its shape is known only when it runs."""

    dtype: str
    shape: tuple[int | None, ...]
    bytes: int | None


@dataclass(frozen=True)
class Bucket:
    """Positions in the list, in backward order."""

    dtype: str
    indices: tuple[int, ...]


def checked_bucket_bytes(value: int | None) -> int | None:
    """A program's size of buckets; None: that of RDMACOLL_BUCKET_BYTES. Raises ConfigError."""
    if value is not None and (type(value) is not int or value < 1):
        raise ConfigError(f"bucket_bytes={value!r}: give a whole number of bytes, at least 1.")
    return value


def entry_of(tensor: Any, dtype: Any) -> Entry:
    """The entry of a tensor that travels as this dtype."""
    shape = tuple(tensor.shape.as_list()) if tensor.shape.rank is not None else (None,)
    known = None if None in shape else math.prod(shape) * dtype.size
    return Entry(dtype.name, shape, known)


def cut(
    entries: Sequence[Entry], *, bucket_bytes: int, first_bytes: int = FIRST_BUCKET_BYTES
) -> list[Bucket]:
    """Buckets in the order in which they fill up. One holds at most `bucket_bytes`, and at most half of the
    bytes of its dtype that are left or `first_bytes`. A larger gradient is alone.

    >>> entries = [Entry("float32", (n,), 4 * n) for n in (100, 10, 10, 1)]
    >>> [bucket.indices for bucket in cut(entries, bucket_bytes=200, first_bytes=40)]
    [(3,), (2, 1), (0,)]
    """
    buckets: list[Bucket] = []
    open_indices: dict[str, list[int]] = {}
    open_bytes: dict[str, int] = {}

    # A gradient of unknown size counts as a full bucket.
    sizes = [bucket_bytes if entry.bytes is None else entry.bytes for entry in entries]
    left_bytes: dict[str, int] = {}
    for entry, size in zip(entries, sizes):
        left_bytes[entry.dtype] = left_bytes.get(entry.dtype, 0) + size

    def limit(dtype: str) -> int:
        wanted = max(first_bytes, left_bytes[dtype] // 2) if buckets else first_bytes
        return min(wanted, bucket_bytes)

    def close(dtype: str) -> None:
        buckets.append(Bucket(dtype, tuple(open_indices.pop(dtype))))
        left_bytes[dtype] -= open_bytes.pop(dtype)

    for index in range(len(entries) - 1, -1, -1):
        dtype, size = entries[index].dtype, sizes[index]
        if dtype in open_indices and open_bytes[dtype] + size > limit(dtype):
            close(dtype)
        open_indices.setdefault(dtype, []).append(index)
        open_bytes[dtype] = open_bytes.get(dtype, 0) + size
        if open_bytes[dtype] >= limit(dtype):
            close(dtype)
    for dtype in list(open_indices):
        close(dtype)
    return buckets


def manifest(
    count: int, dense: Mapping[int, Entry], sparse: Mapping[int, Entry], buckets: Sequence[Bucket]
) -> str:
    """A text about a list of `count` gradients and its cut. Ranks with different texts would sum different
    gradients. dense, sparse: entries by position; all other gradients are None. The entry of a sparse
    gradient leaves the first dimension out.

    >>> manifest(2, {1: Entry("float32", (2,), 8)}, {}, [Bucket("float32", (1,))])
    '2 gradients (1 dense of 8 bytes in 1 bucket of float32, 0 sparse, 1 None; digest de013607)'
    """
    listing = repr((count, sorted(dense.items()), sorted(sparse.items()), list(buckets)))
    known = sum(entry.bytes or 0 for entry in dense.values())
    dtypes = ", ".join(sorted({bucket.dtype for bucket in buckets}))
    return (
        f"{count} gradient{'' if count == 1 else 's'} ({len(dense)} dense of {known} bytes in "
        f"{len(buckets)} bucket{'' if len(buckets) == 1 else 's'}{f' of {dtypes}' if dtypes else ''}, "
        f"{len(sparse)} sparse, "
        f"{count - len(dense) - len(sparse)} None; digest {zlib.crc32(listing.encode()):08x})"
    )
