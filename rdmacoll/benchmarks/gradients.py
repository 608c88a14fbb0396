"""The gradients that a training step of known networks sums: their trainable variables, in order."""

from __future__ import annotations

from rdmacoll.benchmarks import resnet50


def vgg16_shapes() -> list[tuple[int, ...]]:
    """Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition", 2014,
    configuration D: kernels and biases.

    >>> import math
    >>> len(vgg16_shapes()), sum(math.prod(shape) for shape in vgg16_shapes())
    (32, 138357544)
    """
    found: list[tuple[int, ...]] = []
    before = 3
    for width, layers in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(layers):
            found += [(3, 3, before, width), (width,)]
            before = width
    return [*found, (7 * 7 * 512, 4096), (4096,), (4096, 4096), (4096,), (4096, 1000), (1000,)]


# The title of each model, and the shapes of its variables.
MODELS = {
    "resnet50": ("ResNet-50", resnet50.shapes()),
    "resnet101": ("ResNet-101", resnet50.shapes((3, 4, 23, 3))),
    "vgg16": ("VGG-16", vgg16_shapes()),
}
