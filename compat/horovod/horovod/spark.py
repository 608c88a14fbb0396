"""`horovod.spark` is not provided."""

raise ImportError(
    "rdmacoll has no horovod.spark, since it serves TensorFlow alone. Start ranks with a launcher instead."
)
