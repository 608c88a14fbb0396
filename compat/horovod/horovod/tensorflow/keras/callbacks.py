"""The module `horovod.tensorflow.keras.callbacks` over rdmacoll."""

from rdmacoll.tensorflow.keras.callbacks import *  # noqa: F403
