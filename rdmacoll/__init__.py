"""rdmacoll: the communication backend of distributed TensorFlow, with an engine of its own.

    import rdmacoll
    rdmacoll.init()
    optimizer = rdmacoll.DistributedOptimizer(optimizer)
    model.fit(..., callbacks=[rdmacoll.keras.callbacks.BroadcastGlobalVariablesCallback(0)])

Importing it needs only numpy. TensorFlow is imported when one of its names is first used.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

try:
    importlib.import_module("numpy")
except ImportError as error:
    raise ImportError(
        f"rdmacoll needs numpy, which cannot be imported: {(str(error).strip().splitlines() or ['?'])[0]}. "
        "Reinstall it: pip install --force-reinstall numpy"
    ) from error

from rdmacoll import engine, errors, ps
from rdmacoll._launch.functions import run
from rdmacoll._world.children import clean_environment
from rdmacoll._world.world import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    metrics,
    rank,
    shutdown,
    size,
)
from rdmacoll.engine.joining import join
from rdmacoll.engine.process_sets import add_process_set, process_sets, remove_process_set
from rdmacoll.errors import (
    ConfigError,
    DuplicateNameError,
    MismatchError,
    NotInitializedError,
    RankFailedError,
    RdmacollError,
    ShutdownError,
    StalledError,
    error_from,
)
from rdmacoll.operators import Average, Max, Min, Product, Sum
from rdmacoll.process_set import ProcessSet, global_process_set
from rdmacoll.pushing import pull, push, push_pull
from rdmacoll.version import __version__

if TYPE_CHECKING:
    from rdmacoll import keras, tensorflow
    from rdmacoll.hooks import BroadcastGlobalVariablesHook
    from rdmacoll.keras import callbacks
    from rdmacoll.ops import (
        Compression,
        allgather,
        allreduce,
        alltoall,
        barrier,
        broadcast,
        broadcast_,
        broadcast_global_variables,
        broadcast_variables,
        gather,
        grouped_allgather,
        grouped_allreduce,
        grouped_broadcast,
        grouped_reducescatter,
        reduce,
        reducescatter,
        scatter,
    )
    from rdmacoll.optimizer import DistributedGradientTape, DistributedOptimizer
    from rdmacoll.weights_check import check_weights, declare_local

# Name -> module that defines the name.
_LAZY = {
    "Compression": "rdmacoll.ops",
    "BroadcastGlobalVariablesHook": "rdmacoll.hooks",
    "allgather": "rdmacoll.ops",
    "allreduce": "rdmacoll.ops",
    "alltoall": "rdmacoll.ops",
    "barrier": "rdmacoll.ops",
    "broadcast": "rdmacoll.ops",
    "broadcast_": "rdmacoll.ops",
    "broadcast_global_variables": "rdmacoll.ops",
    "broadcast_variables": "rdmacoll.ops",
    "gather": "rdmacoll.ops",
    "grouped_allgather": "rdmacoll.ops",
    "grouped_allreduce": "rdmacoll.ops",
    "grouped_broadcast": "rdmacoll.ops",
    "grouped_reducescatter": "rdmacoll.ops",
    "reduce": "rdmacoll.ops",
    "reducescatter": "rdmacoll.ops",
    "scatter": "rdmacoll.ops",
    "DistributedGradientTape": "rdmacoll.optimizer",
    "DistributedOptimizer": "rdmacoll.optimizer",
    "check_weights": "rdmacoll.weights_check",
    "declare_local": "rdmacoll.weights_check",
}
_LAZY_MODULES = {
    "keras": "rdmacoll.keras",
    "callbacks": "rdmacoll.keras.callbacks",
    "tensorflow": "rdmacoll.tensorflow",
}
# Module -> names of Horovod that it has, and that users look for in `rdmacoll`.
_ELSEWHERE = {
    "rdmacoll.tensorflow": "Adasum PartialDistributedGradientTape SyncBatchNormalization allgather_object "
    "broadcast_object broadcast_object_fn ccl_built cuda_built ddl_built elastic gloo_built gloo_enabled "
    "is_homogeneous local_rank_op local_size_op mpi_built mpi_enabled mpi_threads_supported nccl_built "
    "process_set_included_op rank_op rocm_built size_op start_timeline stop_timeline",
    "rdmacoll.keras": "load_model",
}
try:
    _HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
except ImportError:  # raised by a finder of the program's own, which refuses TensorFlow
    _HAS_TENSORFLOW = False


def __getattr__(name: str) -> Any:
    if (name in _LAZY_MODULES or name in _LAZY) and not _HAS_TENSORFLOW:
        raise AttributeError(
            f"rdmacoll.{name} needs TensorFlow, which is not installed: pip install 'rdmacoll[tensorflow]'. "
            "rdmacoll.engine works without TensorFlow."
        )
    if name in _LAZY_MODULES:
        value: Any = importlib.import_module(_LAZY_MODULES[name])
    elif name in _LAZY:
        importlib.import_module("rdmacoll.optimizer.plain_updates")  # it listens to broadcasts
        value = getattr(importlib.import_module(_LAZY[name]), name)
    else:
        places = [module for module, names in _ELSEWHERE.items() if name in names.split()]
        hint = "".join(f": use {module}.{name}" for module in places)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


__all__ = [
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "ConfigError",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "DuplicateNameError",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "ProcessSet",
    "Product",
    "RankFailedError",
    "RdmacollError",
    "ShutdownError",
    "StalledError",
    "Sum",
    "__version__",
    "add_process_set",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "check_weights",
    "clean_environment",
    "cross_rank",
    "cross_size",
    "declare_local",
    "engine",
    "error_from",
    "errors",
    "gather",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_broadcast",
    "grouped_reducescatter",
    "init",
    "is_initialized",
    "join",
    "keras",
    "local_rank",
    "local_size",
    "metrics",
    "process_sets",
    "ps",
    "pull",
    "push",
    "push_pull",
    "rank",
    "reduce",
    "reducescatter",
    "remove_process_set",
    "run",
    "scatter",
    "shutdown",
    "size",
    "tensorflow",
]
if not _HAS_TENSORFLOW:  # import *, pydoc and inspect list all names, and find only available ones then
    __all__ = [name for name in __all__ if name not in _LAZY and name not in _LAZY_MODULES]
