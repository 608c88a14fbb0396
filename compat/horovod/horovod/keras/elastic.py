"""The module `horovod.keras.elastic` over rdmacoll."""

from rdmacoll.keras.elastic import *  # noqa: F403
