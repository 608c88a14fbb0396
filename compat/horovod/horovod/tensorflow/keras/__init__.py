"""The module `horovod.tensorflow.keras` over rdmacoll."""

from horovod import _keras as _keras
from horovod.tensorflow.keras import callbacks as callbacks, elastic as elastic
from rdmacoll.tensorflow.keras import *  # noqa: F403
