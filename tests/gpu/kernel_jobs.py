"""Jobs of the device kernels with random operands, and their results as numpy computes them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda_calls import ReduceParameters

Array = Any
THREADS, UNIT_BYTES, WIDE = 256, 16, 1 << 63
SUM, MIN, MAX, PRODUCT = 0, 2, 3, 4
UNTOUCHED, ONCE, FULL = range(3)
UNITS, WORDS, ELEMENTS, BYTES = range(4)


@dataclass(frozen=True)
class Kind:
    """The elements of a kernel: their type in memory, and the type in which they are combined."""

    name: str

    @property
    def is_mixed(self) -> bool:
        return self.name.startswith("mixed_")

    @property
    def dtype(self) -> str:
        return self.name.removeprefix("mixed_")

    @property
    def value(self) -> Any:
        return np.dtype(np.float32 if "float16" in self.name else self.dtype)

    @property
    def raw(self) -> Any:
        return np.dtype(np.uint16) if "float16" in self.name else np.dtype(f"u{self.value.itemsize}")

    def load(self, raw: Array) -> Array:
        if self.dtype == "float16":
            return raw.view(np.float16).astype(np.float32)
        if self.dtype == "bfloat16":
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return raw.view(self.value)

    def store(self, values: Array) -> Array:
        values = canonical(values)
        if self.dtype == "float16":
            return values.astype(np.float16).view(np.uint16)
        if self.dtype == "bfloat16":
            bits = values.view(np.uint32)
            return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        return values.view(self.raw)

    def random(self, count: int, rng: np.random.Generator, is_wide: bool) -> Array:
        """Returns raw elements. Half of the floats are ordinary, and the others have any bits."""
        raw = np.dtype(np.uint32) if is_wide else self.raw
        any_bits = np.frombuffer(rng.bytes(count * raw.itemsize), raw)
        if self.value.kind != "f":
            return any_bits
        ordinary = rng.uniform(-4, 4, count).astype(self.value)
        usual = ordinary.view(np.uint32) if is_wide else self.store(ordinary)
        return np.where(rng.random(count) < 0.5, usual, any_bits)


def canonical(values: Array) -> Array:
    if values.dtype.kind != "f":
        return values
    return np.where(np.isnan(values), values.dtype.type(np.nan), values)


def combine(op: int, a: Array, b: Array) -> Array:
    if op == SUM:
        return a + b
    if op == PRODUCT:
        return a * b
    return np.where(((a < b) if op == MIN else (a > b)) | (a != a), a, b)


def tree(op: int, values: list[Array]) -> Array:
    """Splits at the largest power of two below the number of values."""
    if len(values) == 1:
        return values[0]
    left = 1 << ((len(values) - 1).bit_length() - 1)
    return combine(op, tree(op, values[:left]), tree(op, values[left:]))


def finished(values: Array, job: ReduceParameters) -> Array:
    kind = values.dtype.type
    if job.finish == UNTOUCHED:
        return values
    if values.dtype.kind == "f":
        return (
            values * kind(job.once) if job.finish == ONCE else values / kind(job.divisor) * kind(job.factor)
        )
    limits = np.iinfo(values.dtype)
    scaled = values.astype(np.float64) / job.divisor * job.factor
    is_low, is_high = ~(scaled > float(limits.min)), scaled >= float(limits.max)
    inside = np.where(is_low | is_high, 0.0, scaled).astype(values.dtype)
    return np.where(is_low, kind(limits.min), np.where(is_high, kind(limits.max), inside))


class Job:
    """A launch of `kernel` over an image of memory that begins at `address`, and the image after it."""

    def __init__(self, kernel: str, sources: int, op: int, address: int, rng: np.random.Generator) -> None:
        family, _, rest = kernel.partition("_")
        self.copies = family == "copy"
        self.kind = Kind({"bytes": "uint8", "pairs": "uint16"}[rest] if self.copies else rest)
        self.has_units = family != "reduce"
        self.address, self.rng = address, rng
        self.parameters = ReduceParameters(op=op, sources=sources)
        self.image = bytearray(rng.bytes(UNIT_BYTES))
        self.after: list[tuple[int, bytes]] = []
        self.scale(family)
        small = rng.integers(1, 30, 200 if rng.random() < 0.3 and sources < 4 else 1)
        rows = [list(self.row(int(count))) for count in (*small, 200, 5000)]
        table, words = [word for row in rows for word in row], self.parameters.words
        self.parameters.rows = len(rows)
        if len(table) <= len(words):
            words[: len(table)] = table
        else:
            self.parameters.table = address + self.place(np.array(table, np.uint64).tobytes(), 0)
            samples = [row[0] for row in rows[:: -(-len(rows) // len(words))]]
            words[: len(samples)] = samples
        self.image += rng.bytes(UNIT_BYTES)

    def scale(self, family: str) -> None:
        is_float = self.kind.value.kind == "f"
        finishes = [UNTOUCHED, ONCE, FULL] if is_float else [UNTOUCHED, FULL]
        self.parameters.finish = int(self.rng.choice(finishes if is_float or family == "reduce" else [0]))
        self.parameters.once, self.parameters.divisor, self.parameters.factor = 0.3, 3.0, -1.75
        self.parameters.prescale = 1 / 3

    def place(self, content: bytes, shift: int) -> int:
        """Places bytes `shift` bytes behind a multiple of 16, and returns their offset."""
        self.image += self.rng.bytes(UNIT_BYTES - len(self.image) % UNIT_BYTES + shift)
        offset = len(self.image)
        self.image += content
        return offset

    def row(self, count: int) -> Iterator[int]:
        size, rng, job = self.kind.raw.itemsize, self.rng, self.parameters
        unit, part = UNIT_BYTES // size, max(4 // size, 1)
        access = int(rng.integers(0 if self.has_units else 1, 4))
        shift = int(rng.integers(unit)) if access <= WORDS else 0

        def behind(width: int) -> int:
            steps = (0, part * width, width, 1)[access]
            return shift * width + steps * int(rng.integers(5))

        widths = [4 if self.kind.is_mixed and rng.random() < 0.5 else size for _ in range(job.sources + 1)]
        values, places = [], []
        for width in widths[1:]:
            is_wide = width != size
            raw = self.kind.random(count, rng, is_wide)
            places.append(self.place(raw.tobytes(), behind(width)))
            value = raw.view(np.float32) if is_wide else self.kind.load(raw)
            values.append(value * np.float32(job.prescale) if self.kind.is_mixed and not is_wide else value)
        to = self.place(rng.bytes(count * widths[0]), behind(widths[0]))
        if widths[0] == widths[1] and rng.random() < 0.3:
            to = places[0]
        value = tree(job.op, values)
        if self.copies:
            result = value
        elif widths[0] != size:
            result = canonical(value)
        else:
            result = self.kind.store(finished(value, job))
        self.after.append((to, result.tobytes()))
        first, elements = job.tiles, THREADS * unit
        job.tiles += -(-(count + shift) // elements)
        yield from (first, count, shift << 3 | access)
        for place, width in zip((to, *places), widths):
            yield self.address + place | (WIDE if width != size else 0)

    def expected(self) -> bytes:
        """Returns the image after the launch, which changes the results only."""
        image = bytearray(self.image)
        for at, result in self.after:
            image[at : at + len(result)] = result
        return bytes(image)


def size_of_parameters() -> int:
    return ctypes.sizeof(ReduceParameters)
