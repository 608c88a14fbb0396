"""The models of training benchmarks: the shapes of their variables, and the parameters of their training.
Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rdmacoll.benchmarks import resnet50

Shape = tuple[int, ...]

CLASSES = 1000
_TRIVIAL_WIDTH = 4096
# The edge of the kernel and the output channels of each convolution.
_ALEXNET_CONVOLUTIONS = ((11, 64), (5, 192), (3, 384), (3, 256), (3, 256))
# The edge of the grid that AlexNet's classifier gets from an image of any size.
ALEXNET_GRID = 6


def trivial(image: int) -> list[Shape]:
    """The shapes of tf_cnn_benchmarks' "trivial": the pixels, one unit, 4096 units, the classes.

    >>> sum(math.prod(shape) for shape in trivial(227))
    4259780
    """
    units = (3 * image * image, 1, _TRIVIAL_WIDTH, CLASSES)
    return _dense(units)


def alexnet(_: int) -> list[Shape]:
    """The shapes of AlexNet in one column, as in tf_cnn_benchmarks. Its classifier gets a grid of 6 x 6 from
    any image.

    >>> sum(math.prod(shape) for shape in alexnet(224))
    61100840
    """
    shapes: list[Shape] = []
    channels = 3
    for edge, filters in _ALEXNET_CONVOLUTIONS:
        shapes += [(edge, edge, channels, filters), (filters,)]
        channels = filters
    return shapes + _dense((channels * ALEXNET_GRID**2, 4096, 4096, CLASSES))


def _dense(units: Sequence[int]) -> list[Shape]:
    return [shape for before, after in zip(units, units[1:]) for shape in ((before, after), (after,))]


@dataclass(frozen=True)
class Model:
    """A row of the table. image: the default edge of the square images, in pixels. batch: the default
    number of images of each worker in a step."""

    name: str
    title: str
    shapes: Callable[[int], list[Shape]]
    image: int
    image_min: int
    batch: int
    rate: float  # learning rate of plain SGD

    def variables_bytes(self, image: int) -> int:
        """The size of all variables in float32, in bytes."""
        return 4 * sum(math.prod(shape) for shape in self.shapes(image))


# Images and batches are small, so that two cores spend little of a step on computation. The comparison is
# about the transport of gradients and variables. With --image 224 and larger batches, both are as in the
# literature.
MODELS = {
    row.name: row
    for row in (
        Model("trivial", "trivial", trivial, 227, 1, 8, 1e-6),
        Model("alexnet", "AlexNet", alexnet, 64, 16, 8, 2e-4),
        Model("resnet50", "ResNet-50", lambda _: resnet50.shapes(), 32, 32, 4, 1e-3),
    )
}
