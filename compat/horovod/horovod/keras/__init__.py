"""The module `horovod.keras` over rdmacoll."""

from horovod import _keras as _keras
from horovod.keras import callbacks as callbacks, elastic as elastic
from rdmacoll.keras import *  # noqa: F403
