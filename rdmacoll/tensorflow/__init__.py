"""The names of `horovod.tensorflow`, with Horovod's meaning: `import rdmacoll.tensorflow as hvd`.

The import registers the ops in TensorFlow, so that saved graphs with them load. Names that Horovod does not
have are rdmacoll's own.
"""

from rdmacoll._horovod.calls import Adasum
from rdmacoll._horovod.collectives import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    broadcast_,
    broadcast_global_variables,
    broadcast_variables,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    reducescatter,
)
from rdmacoll._horovod.objects import allgather_object, broadcast_object, broadcast_object_fn
from rdmacoll._horovod.optimizers import BroadcastGlobalVariablesHook, DistributedOptimizer
from rdmacoll._horovod.process_sets import (
    ProcessSet,
    add_process_set,
    remove_process_set,
)
from rdmacoll._horovod.sync_batch_norm import SyncBatchNormalization
from rdmacoll._horovod.tapes import DistributedGradientTape, PartialDistributedGradientTape
from rdmacoll._horovod.timeline import start_timeline, stop_timeline
from rdmacoll._horovod.world import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    local_rank_op,
    local_size_op,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    process_set_included_op,
    rank_op,
    rocm_built,
    size_op,
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
from rdmacoll.engine.process_sets import (
    process_sets,
)
from rdmacoll.operators import (
    Average,
    Max,
    Min,
    Product,
    Sum,
)
from rdmacoll.ops import (
    Compression,
    barrier,
    gather,
    grouped_broadcast,
    reduce,
    scatter,
)
from rdmacoll.ops._library import register
from rdmacoll.process_set import (
    global_process_set,
)
from rdmacoll.tensorflow import elastic

register()

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "gather",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_broadcast",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "process_sets",
    "rank",
    "rank_op",
    "reduce",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "scatter",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]
