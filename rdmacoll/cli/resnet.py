"""The gradients of ResNet-50, which benchmarks of training steps have in common."""

from __future__ import annotations


def resnet50_shapes() -> list[tuple[int, ...]]:
    """The trainable variables of ResNet-50 in order: convolutions, batch norms, the classifier.

    >>> len(resnet50_shapes())
    161
    """
    shapes: list[tuple[int, ...]] = [(7, 7, 3, 64), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for kernel, before, after in ((1, channels, width), (3, width, width), (1, width, 4 * width)):
                shapes += [(kernel, kernel, before, after), (after,), (after,)]
            if block == 0:
                shapes += [(1, 1, channels, 4 * width), (4 * width,), (4 * width,)]
            channels = 4 * width
    return [*shapes, (2048, 1000), (1000,)]
