"""The names of `horovod.tensorflow.elastic`."""

from rdmacoll._horovod.collectives import broadcast_variables
from rdmacoll._horovod.elastic import (
    HorovodInternalError,
    ObjectState,
    TensorFlowKerasState,
    TensorFlowState,
    run,
)
from rdmacoll._horovod.objects import broadcast_object, broadcast_object_fn
from rdmacoll._horovod.world import init
from rdmacoll._world.world import rank, shutdown

__all__ = [
    "HorovodInternalError",
    "ObjectState",
    "TensorFlowKerasState",
    "TensorFlowState",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "init",
    "rank",
    "run",
    "shutdown",
]
