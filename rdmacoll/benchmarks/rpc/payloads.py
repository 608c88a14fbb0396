"""Payloads of several buffers, like the tensors of a training. Sizes are bytes of whole float32. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdmacoll._base.external_values import file_text, json_of, whole_of
from rdmacoll.errors import ConfigError

KINDS = ("uniform", "random", "skewed")
_ITEM = 4
SMALL, MEDIUM, LARGE = 10, 10 << 10, 1 << 20
# Percent of the buffers that are small, medium and large.
_SKEWED = (10, 30, 60)
_CURE = "give uniform, random, skewed, or a file that rdmacoll bench record has written"


@dataclass(frozen=True)
class Payload:
    """A payload: its name, and the sizes of its buffers in bytes."""

    name: str
    sizes: list[int]

    @property
    def total(self) -> int:
        """The size of the payload in bytes."""
        return sum(self.sizes)


@dataclass(frozen=True)
class Recipe:
    """How to compose payloads. iovec: the number of buffers. small, medium, large: their sizes in bytes."""

    iovec: int = 10
    small: int = SMALL
    medium: int = MEDIUM
    large: int = LARGE
    seed: int = 1


def float32_bytes(size: int) -> int:
    """The size of the smallest float32 array with at least `size` bytes.

    >>> float32_bytes(10), float32_bytes(12), float32_bytes(2)
    (12, 12, 4)
    """
    return max(_ITEM, (size + _ITEM - 1) // _ITEM * _ITEM)


def of_kind(kind: str, recipe: Recipe) -> Payload:
    """The payload of a kind. uniform: equal numbers of each size; a remainder goes to the smaller sizes.
    random: each size is drawn, the same ones for the same seed. skewed: 60 % large, 30 % medium, 10 % small.

    >>> payload = of_kind("skewed", Recipe())
    >>> payload.sizes.count(1 << 20), payload.sizes.count(10 << 10), payload.sizes.count(12)
    (6, 3, 1)
    """
    classes = (recipe.small, recipe.medium, recipe.large)
    if kind == "random":
        draw = random.Random(recipe.seed)
        return Payload(kind, [float32_bytes(draw.choice(classes)) for _ in range(recipe.iovec)])
    if kind == "uniform":
        counts = [(recipe.iovec + 2 - position) // 3 for position in range(3)]
    else:
        small, medium = (recipe.iovec * share // 100 for share in _SKEWED[:2])
        counts = [small, medium, recipe.iovec - small - medium]
    return Payload(kind, [float32_bytes(size) for size, count in zip(classes, counts) for _ in range(count)])


def recorded(path: Path) -> Payload:
    """The tensors of one step, from a file of `rdmacoll bench record`. Raises ConfigError."""
    try:
        found = json_of(str(path), file_text(path, _CURE), _CURE)
        sizes = [whole_of("bytes", tensor["bytes"]) for tensor in found["tensors"]]
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} has no recorded sizes ({type(error).__name__}: {error}): {_CURE}."
        ) from None
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"{path} has no tensors, or empty ones: record a training that has gradients.")
    return Payload(path.stem, [float32_bytes(size) for size in sizes])


def payloads_of(text: str, recipe: Recipe) -> list[Payload]:
    """The payloads of a comma list of kinds and files. Raises ConfigError."""
    names = [name for name in text.split(",") if name]
    return [of_kind(name, recipe) if name in KINDS else recorded(Path(name)) for name in names]


def single(sizes: Sequence[int], text_of: Any) -> list[Payload]:
    """Payloads of one buffer."""
    return [Payload(text_of(size), [float32_bytes(size)]) for size in sizes]
