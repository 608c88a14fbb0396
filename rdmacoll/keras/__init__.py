"""The names of `horovod.keras`, with Horovod's meaning: `import rdmacoll.keras as hvd`. The callbacks are in
`rdmacoll.keras.callbacks`."""

from rdmacoll._horovod.calls import Adasum
from rdmacoll._horovod.collectives import (
    broadcast_variables,
)
from rdmacoll._horovod.keras_collectives import (
    allgather,
    allreduce_with_average as allreduce,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)
from rdmacoll._horovod.keras_models import load_model
from rdmacoll._horovod.optimizers import (
    DistributedKerasOptimizer as DistributedOptimizer,
    PartialDistributedOptimizer,
)
from rdmacoll._horovod.process_sets import (
    ProcessSet,
    add_process_set,
    remove_process_set,
)
from rdmacoll._horovod.timeline import start_timeline, stop_timeline
from rdmacoll._horovod.world import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from rdmacoll._world.world import (
    cross_rank,
    cross_size,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from rdmacoll.keras import callbacks, elastic
from rdmacoll.operators import (
    Average,
    Max,
    Min,
    Product,
    Sum,
)
from rdmacoll.ops import (
    Compression,
)
from rdmacoll.ops._library import register
from rdmacoll.process_set import (
    global_process_set,
)

register()

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
