"""The models as graphs: functions from variables and a batch to the loss. Both sides use the same
functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..values import Array

_SEED = 20_260
_GRID = 6  # edge of the grid before AlexNet's classifier
_BLOCKS = (3, 4, 6, 3)  # blocks of ResNet-50 in each stage


def initial(shapes: Sequence[Sequence[int]]) -> list[Array]:
    """The initial values, the same on every worker: He's initialization for kernels, ones for scales,
    zeros for the other vectors. A vector before another vector is the scale of a normalization."""
    draw = np.random.default_rng(_SEED)
    values: list[Array] = []
    for number, shape in enumerate(shapes):
        if len(shape) > 1:
            spread = np.float32(np.sqrt(2.0 / np.prod(shape[:-1])))
            values.append(draw.standard_normal(shape, np.float32) * spread)
        else:
            is_scale = number + 1 < len(shapes) and len(shapes[number + 1]) == 1
            values.append(np.full(shape, 1.0 if is_scale else 0.0, np.float32))
    return values


def batch_of(rank: int, batch: int, image: int, classes: int) -> tuple[Array, Any]:
    """The synthetic images of a worker, float32 [batch, image, image, 3], and their labels, int32 [batch]."""
    draw = np.random.default_rng([_SEED, rank])
    images = draw.standard_normal((batch, image, image, 3), np.float32)
    return images, draw.integers(0, classes, batch, np.int32)


def loss_of(tf: Any, model: str, weights: Sequence[Any], images: Any, labels: Any) -> Any:
    """The mean cross entropy, a scalar. weights: tensors or variables in the order of the model's shapes."""
    remaining = iter(weights)
    logits = {"trivial": _trivial, "alexnet": _alexnet, "resnet50": _resnet50}[model](tf, remaining, images)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(losses)


def _affine(tf: Any, weights: Iterator[Any], inputs: Any) -> Any:
    kernel = next(weights)
    return tf.matmul(inputs, kernel) + next(weights)


def _trivial(tf: Any, weights: Iterator[Any], images: Any) -> Any:
    values = tf.reshape(images, (images.shape[0], -1))
    values = tf.nn.relu(_affine(tf, weights, values))
    values = tf.nn.relu(_affine(tf, weights, values))
    return _affine(tf, weights, values)


def _pool(tf: Any, values: Any) -> Any:
    is_large_enough = min(values.shape[1:3]) >= 3
    return tf.nn.max_pool2d(values, 3, 2, "VALID" if is_large_enough else "SAME")


def _alexnet(tf: Any, weights: Iterator[Any], images: Any) -> Any:
    values = images
    for number in range(5):
        kernel = next(weights)
        values = tf.nn.conv2d(values, kernel, 4 if number == 0 else 1, "SAME")
        values = tf.nn.relu(values + next(weights))
        values = _pool(tf, values) if number in (0, 1, 4) else values
    if tuple(values.shape[1:3]) != (_GRID, _GRID):
        values = tf.image.resize(values, (_GRID, _GRID), "nearest")
    values = tf.reshape(values, (images.shape[0], -1))
    values = tf.nn.relu(_affine(tf, weights, values))
    values = tf.nn.relu(_affine(tf, weights, values))
    return _affine(tf, weights, values)


def _normalized(tf: Any, weights: Iterator[Any], inputs: Any, stride: int) -> Any:
    """A convolution, normalized by the batch. Moving averages are left out: only an evaluation needs them."""
    values = tf.nn.conv2d(inputs, next(weights), stride, "SAME")
    scale = next(weights)
    return tf.compat.v1.nn.fused_batch_norm(values, scale, next(weights), is_training=True)[0]


def _resnet50(tf: Any, weights: Iterator[Any], images: Any) -> Any:
    values = tf.nn.relu(_normalized(tf, weights, images, 2))
    values = tf.nn.max_pool2d(values, 3, 2, "SAME")
    for stage, blocks in enumerate(_BLOCKS):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            inner = tf.nn.relu(_normalized(tf, weights, values, 1))
            inner = tf.nn.relu(_normalized(tf, weights, inner, stride))
            inner = _normalized(tf, weights, inner, 1)
            # The weights of the shortcut come after those of the block.
            values = _normalized(tf, weights, values, stride) if block == 0 else values
            values = tf.nn.relu(values + inner)
    return _affine(tf, weights, tf.reduce_mean(values, (1, 2)))
