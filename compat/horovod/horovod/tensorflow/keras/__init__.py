"""The module `horovod.tensorflow.keras` over rdmacoll."""

from horovod.tensorflow.keras import callbacks as callbacks
from rdmacoll.tensorflow.keras import *  # noqa: F403
