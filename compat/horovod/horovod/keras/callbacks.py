"""The module `horovod.keras.callbacks` over rdmacoll."""

from rdmacoll.keras.callbacks import *  # noqa: F403
