"""The gradients that a training step of ResNet-50 sums."""

from __future__ import annotations

import math
from collections.abc import Sequence


def shapes(depths: tuple[int, int, int, int] = (3, 4, 6, 3)) -> list[tuple[int, ...]]:
    """The trainable variables in order: convolutions, batch norms, the classifier. depths: the number of
    blocks of each width; the default is ResNet-50.

    >>> len(shapes()), sum(math.prod(shape) for shape in shapes())
    (161, 25557032)
    >>> sum(math.prod(shape) for shape in shapes((3, 4, 23, 3)))  # ResNet-101
    44549160
    """
    found: list[tuple[int, ...]] = [(7, 7, 3, 64), (64,), (64,)]
    channels = 64
    for width, blocks in zip((64, 128, 256, 512), depths):
        for block in range(blocks):
            for kernel, before, after in ((1, channels, width), (3, width, width), (1, width, 4 * width)):
                found += [(kernel, kernel, before, after), (after,), (after,)]
            if block == 0:
                found += [(1, 1, channels, 4 * width), (4 * width,), (4 * width,)]
            channels = 4 * width
    return [*found, (2048, 1000), (1000,)]


def total_bytes() -> int:
    """The size of all variables in float32, in bytes."""
    return 4 * sum(math.prod(shape) for shape in shapes())


def layers_backward(variables: Sequence[Sequence[int]]) -> list[list[int]]:
    """The indices of each layer's variables, from the last layer to the first. A layer is a kernel and the
    vectors after it. variables: the shapes.

    >>> layers_backward([(7, 7, 3, 64), (64,), (64,), (2048, 1000), (1000,)])
    [[3, 4], [0, 1, 2]]
    >>> len(layers_backward(shapes()))
    54
    """
    layers: list[list[int]] = []
    for index, shape in enumerate(variables):
        if len(shape) > 1:
            layers.append([])
        layers[-1].append(index)
    return layers[::-1]
