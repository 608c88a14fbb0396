"""The module `horovod.tensorflow.sync_batch_norm` over rdmacoll."""

from rdmacoll.tensorflow import SyncBatchNormalization

__all__ = ["SyncBatchNormalization"]
