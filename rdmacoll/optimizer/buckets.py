"""Cuts a list of gradients into buckets: pure, and the same on every rank.

The list is cut when the training step is traced, so that no bucket depends on timing. Buckets have backward
order, since the last layer's gradient is ready first. The first bucket is small, so that communication begins
early. Each bucket has one dtype.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


def cut(
    entries: Sequence[Entry], *, bucket_bytes: int, first_bytes: int = FIRST_BUCKET_BYTES
) -> list[Bucket]:
    """Buckets of at most `bucket_bytes` (a larger gradient is alone), in the order in which they fill up.

    >>> entries = [Entry("float32", (n,), 4 * n) for n in (100, 10, 10, 1)]
    >>> [bucket.indices for bucket in cut(entries, bucket_bytes=200, first_bytes=40)]
    [(3,), (2, 1), (0,)]
    """
    buckets: list[Bucket] = []
    open_indices: dict[str, list[int]] = {}
    open_bytes: dict[str, int] = {}

    def limit() -> int:
        return min(first_bytes, bucket_bytes) if not buckets else bucket_bytes

    def close(dtype: str) -> None:
        buckets.append(Bucket(dtype, tuple(open_indices.pop(dtype))))
        del open_bytes[dtype]

    for index in range(len(entries) - 1, -1, -1):
        entry = entries[index]
        # A gradient of unknown size counts as a full bucket.
        size = bucket_bytes if entry.bytes is None else entry.bytes
        if entry.dtype in open_indices and open_bytes[entry.dtype] + size > limit():
            close(entry.dtype)
        open_indices.setdefault(entry.dtype, []).append(index)
        open_bytes[entry.dtype] = open_bytes.get(entry.dtype, 0) + size
        if open_bytes[entry.dtype] >= limit():
            close(entry.dtype)
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
