"""The module `horovod.tensorflow.elastic` over rdmacoll."""

from rdmacoll.tensorflow.elastic import *  # noqa: F403
