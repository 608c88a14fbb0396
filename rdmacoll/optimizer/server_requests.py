"""The requests of one step to asynchronous parameter servers, so that they begin during the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll._world import world
from rdmacoll.ops import servers
from rdmacoll.ops._library import not_converted
from rdmacoll.optimizer.buckets import Bucket, cut, entry_of


def requests_of(gradients: Sequence[Any], bucket_bytes: int) -> list[Bucket]:
    """Cuts the gradients into requests, in the order in which they become ready during a backward pass.
    Slices are a request of their own. Within a function TensorFlow runs the requests in this order."""
    dense = [index for index, one in enumerate(gradients) if not isinstance(one, tf.IndexedSlices)]
    found = [
        Bucket(bucket.dtype, tuple(dense[position] for position in bucket.indices))
        for bucket in cut(
            [entry_of(gradients[index], gradients[index].dtype) for index in dense], bucket_bytes=bucket_bytes
        )
    ]
    found += [
        Bucket(one.dtype.name, (index,))
        for index, one in enumerate(gradients)
        if isinstance(one, tf.IndexedSlices)
    ]
    return sorted(found, key=lambda bucket: -min(bucket.indices))


@not_converted
def exchange(
    gradients: Sequence[Any], names: Sequence[str], learning_rate: Any, bucket_bytes: int | None
) -> tuple[list[Any], list[Bucket]]:
    """Pushes the gradients of a step. Returns the variables' fresh values, and the requests to each server.

    In a function, each bucket is a request, which begins when its last gradient is ready. There is one
    request for all gradients in eager code, where all are ready and a call waits for its answer. So it is
    with a bound of staleness: servers count a worker's step when its first request arrives. bucket_bytes:
    replaces RDMACOLL_BUCKET_BYTES, unless it is None."""
    values = world.current().values
    if tf.executing_eagerly() or values.text("RDMACOLL_PS_STALENESS"):
        return servers.exchange(gradients, names, learning_rate), []
    if bucket_bytes is None:
        bucket_bytes = int(values.number("RDMACOLL_BUCKET_BYTES"))
    requests = requests_of(gradients, bucket_bytes)
    fresh: list[Any] = list(gradients)
    for request in requests:
        values_of_request = servers.exchange(
            [gradients[index] for index in request.indices],
            [names[index] for index in request.indices],
            learning_rate,
        )
        for index, value in zip(request.indices, values_of_request):
            fresh[index] = value
    return fresh, requests
