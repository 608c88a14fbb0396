"""`horovod.torch` is not provided."""

raise ImportError(
    "rdmacoll has no horovod.torch, since it serves TensorFlow alone. For PyTorch there is torch.distributed."
)
