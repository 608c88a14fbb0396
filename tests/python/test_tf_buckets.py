"""The cut of a gradient list, without TensorFlow."""

from __future__ import annotations

import math

from hypothesis import given, settings, strategies as st

from rdmacoll.optimizer.buckets import FIRST_BUCKET_BYTES, Entry, cut, manifest

SIZES = {"float16": 2, "float32": 4, "float64": 8}


def entry(dtype: str, *shape: int) -> Entry:
    return Entry(dtype, shape, math.prod(shape) * SIZES[dtype])


entries = st.lists(
    st.one_of(
        st.builds(entry, st.sampled_from(sorted(SIZES)), st.integers(0, 3000)),
        st.builds(lambda d: Entry(d, (None, 3), None), st.sampled_from(sorted(SIZES))),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(entries, st.integers(1, 20_000), st.integers(1, 20_000))
def test_each_gradient_is_in_one_bucket_of_its_dtype(
    entries: list[Entry], bucket_bytes: int, first_bytes: int
) -> None:
    buckets = cut(entries, bucket_bytes=bucket_bytes, first_bytes=first_bytes)
    indices = [index for bucket in buckets for index in bucket.indices]
    assert sorted(indices) == list(range(len(entries)))
    for number, bucket in enumerate(buckets):
        assert bucket.indices
        assert {entries[index].dtype for index in bucket.indices} == {bucket.dtype}
        assert list(bucket.indices) == sorted(bucket.indices, reverse=True)
        sizes = [entries[index].bytes for index in bucket.indices]
        if len(sizes) > 1:
            # An unknown size counts as a full bucket: it may only come last, after empty ones.
            known = sum(size if size is not None else bucket_bytes for size in sizes)
            assert known <= (bucket_bytes if number else min(bucket_bytes, first_bytes)) or (
                number == 0 and known <= bucket_bytes
            )
    assert buckets == cut(list(entries), bucket_bytes=bucket_bytes, first_bytes=first_bytes)


@settings(max_examples=100, deadline=None)
@given(entries, st.integers(1, 20_000))
def test_the_last_gradient_is_in_the_first_bucket(entries: list[Entry], bucket_bytes: int) -> None:
    buckets = cut(entries, bucket_bytes=bucket_bytes)
    if len({entry.dtype for entry in entries}) == 1:
        assert buckets[0].indices[0] == len(entries) - 1
        flat = [index for bucket in buckets for index in bucket.indices]
        assert flat == list(range(len(entries) - 1, -1, -1))


def test_the_first_and_the_last_buckets_are_small() -> None:
    quarter = FIRST_BUCKET_BYTES // 16
    buckets = cut([entry("float32", quarter)] * 100, bucket_bytes=10 * FIRST_BUCKET_BYTES)
    assert [len(bucket.indices) for bucket in buckets] == [4, 40, 28, 14, 7, 4, 3]


def test_each_dtype_has_small_last_buckets() -> None:
    quarter = FIRST_BUCKET_BYTES // 16
    buckets = cut([entry("float32", quarter), entry("float64", quarter)] * 64, bucket_bytes=1 << 40)
    cuts = {
        dtype: [len(bucket.indices) for bucket in buckets if bucket.dtype == dtype]
        for dtype in ("float32", "float64")
    }
    assert cuts == {"float32": [32, 16, 8, 4, 4], "float64": [2, 31, 15, 8, 4, 2, 2]}


def test_resnet_50_has_few_buckets() -> None:
    # 161 gradients, 102 MB.
    shapes = [(1000,), (2048, 1000)] + [(2048, 512)] * 10 + [(512, 512, 9)] * 5 + [(256,)] * 144
    buckets = cut([entry("float32", *shape) for shape in shapes], bucket_bytes=26_214_400)
    assert 3 <= len(buckets) <= 10


def test_an_empty_list_has_no_buckets() -> None:
    assert cut([], bucket_bytes=10) == []


def test_a_manifest_tells_lists_apart() -> None:
    vector, matrix = entry("float32", 2), entry("float32", 2, 1)
    lists = [
        (0, {}, {}),
        (1, {}, {}),
        (1, {0: vector}, {}),
        (1, {}, {0: vector}),
        (1, {0: entry("float32", 3)}, {}),
        (1, {0: entry("float64", 2)}, {}),
        (1, {0: matrix}, {}),
        (2, {0: vector}, {}),
        (2, {1: vector}, {}),
        (2, {0: vector, 1: vector}, {}),
        (2, {0: vector}, {1: vector}),
        (2, {1: vector}, {0: vector}),
        (2, {1: vector}, {0: matrix}),
    ]
    words = {manifest(*each, cut(list(each[1].values()), bucket_bytes=100)) for each in lists}
    both = {0: vector, 1: vector}
    words.add(manifest(2, both, {}, cut(list(both.values()), bucket_bytes=8)))
    assert len(words) == len(lists) + 1
    assert manifest(1, {0: vector}, {}, []) == manifest(1, {0: entry("float32", 2)}, {}, [])
