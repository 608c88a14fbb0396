"""`horovod.ray` is not provided."""

raise ImportError(
    "rdmacoll has no horovod.ray, since it serves TensorFlow alone. Start ranks with a launcher instead."
)
