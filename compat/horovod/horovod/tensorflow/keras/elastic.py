"""The module `horovod.tensorflow.keras.elastic` over rdmacoll."""

from rdmacoll.tensorflow.keras.elastic import *  # noqa: F403
