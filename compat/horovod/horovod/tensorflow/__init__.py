"""The module `horovod.tensorflow` over rdmacoll."""

import tensorflow as tf

from horovod.common.util import gpu_available, split_list
from horovod.tensorflow import compression, elastic as elastic, functions, mpi_ops, util
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.mpi_ops import (
    _allreduce,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
    check_num_rank_power_of_2,
    handle_average_backwards_compatibility,
)
from horovod.tensorflow.util import _cache, _executing_eagerly, _make_subgraph, refs_to_vars, vars_to_refs
from rdmacoll._horovod.tapes import reduction_function as _make_allreduce_grads_fn
from rdmacoll.tensorflow import *  # noqa: F403

_make_cached_allreduce_grads_fn = _make_allreduce_grads_fn
_LegacyOptimizer = tf.compat.v1.train.Optimizer  # the base class of optimizers that programs write themselves

__all__ = [
    "LocalGradientAggregationHelper",
    "_LegacyOptimizer",
    "_allreduce",
    "_cache",
    "_executing_eagerly",
    "_grouped_allreduce",
    "_grouped_reducescatter",
    "_make_allreduce_grads_fn",
    "_make_cached_allreduce_grads_fn",
    "_make_subgraph",
    "_reducescatter",
    "check_num_rank_power_of_2",
    "compression",
    "functions",
    "gpu_available",
    "handle_average_backwards_compatibility",
    "mpi_ops",
    "refs_to_vars",
    "split_list",
    "util",
    "vars_to_refs",
]
