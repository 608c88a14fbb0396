"""`horovod.mxnet` is not provided."""

raise ImportError(
    "rdmacoll has no horovod.mxnet, since it serves TensorFlow alone. For MXNet there is Horovod itself."
)
