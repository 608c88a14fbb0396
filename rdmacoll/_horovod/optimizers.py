"""Optimizers and hooks with the arguments of Horovod's, in their order.

Without effect: devices, `use_locking`, names, and `groups` (gradients travel in buckets). `num_groups` is the
older form of `groups`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rdmacoll import hooks, optimizer as own
from rdmacoll._base.external_values import shown
from rdmacoll._horovod.adasum import is_adasum
from rdmacoll._horovod.adasum_updates import UpdateReducer
from rdmacoll._horovod.calls import operator_of
from rdmacoll._horovod.errors import UnsupportedError
from rdmacoll._horovod.reducer import HorovodReducer, layers_of
from rdmacoll.errors import ConfigError
from rdmacoll.operators import Average, Sum
from rdmacoll.ops import Compression
from rdmacoll.optimizer import v1
from rdmacoll.process_set import ProcessSet, global_process_set


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    **options: Any,
) -> Any:
    """`rdmacoll.DistributedOptimizer` with Horovod's arguments; `options` are those that Horovod does not
    have. The optimizer also has `register_local_var`.

    compression: of Compression, or a class with `compress` and `decompress`. gradient_predivide_factor: with
    Average, gradients are divided by it before they are summed, and multiplied by it after that. On a rank
    outside of `process_set` gradients stay as they are. scale_local_gradients: divides gradients of local
    variables by the number of ranks.

    With Adasum, an optimizer of TensorFlow 1 applies the gradients of its rank, and the ranks combine the
    changes of their weights.

    Raises ValueError for a factor with another operator than Average, for wrong groups, and for Adasum with
    an optimizer of Keras or with means of passes. Raises NotImplementedError for Adasum with a process set.
    """
    if is_adasum(op):
        _check_adasum(optimizer, average_aggregated_gradients, process_set)
    return own.wrapped(
        optimizer,
        "DistributedOptimizer",
        reducer_class=UpdateReducer if is_adasum(op) else HorovodReducer,
        scale_local_gradients=scale_local_gradients,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        process_set=process_set,
        **reducing_options(op, gradient_predivide_factor, num_groups, groups, options),
    )


def DistributedTensorflowKerasOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    **options: Any,
) -> Any:
    """`DistributedOptimizer` with the order of `horovod.tensorflow.keras`."""
    return DistributedOptimizer(
        optimizer,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        **options,
    )


def DistributedKerasOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    num_groups: int = 0,
    groups: Any = None,
    **options: Any,
) -> Any:
    """`DistributedOptimizer` with the order of `horovod.keras`."""
    return DistributedOptimizer(
        optimizer,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        num_groups=num_groups,
        groups=groups,
        **options,
    )


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    **options: Any,
) -> Any:
    """`DistributedOptimizer` that does not reduce gradients of the weights of `local_layers`, a layer or
    several. These may be built later.

    Raises ValueError for anything else than layers.
    """
    layers = layers_of(local_layers)
    wrapped = DistributedOptimizer(
        optimizer,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        **options,
    )
    for part in own.with_inner(wrapped):
        if isinstance(reducer := own.reducer_of(part), HorovodReducer):
            reducer.register_local_layers(layers)
    return wrapped


class BroadcastGlobalVariablesHook(hooks.BroadcastGlobalVariablesHook):
    """`rdmacoll.BroadcastGlobalVariablesHook` with Horovod's arguments."""

    def __init__(
        self, root_rank: int, device: str = "", *, process_set: ProcessSet = global_process_set
    ) -> None:
        super().__init__(root_rank, process_set=process_set)


_OWN_OPTIONS = ("prescale_factor", "postscale_factor", "bucket_bytes")  # those that Horovod does not have


def reducing_options(
    op: Any, predivide_factor: Any, num_groups: Any, groups: Any, options: dict[str, Any]
) -> dict[str, Any]:
    """The options of rdmacoll's reduction for Horovod's arguments. Raises ConfigError."""
    for name in options:
        if name not in _OWN_OPTIONS:
            raise TypeError(f"DistributedOptimizer and DistributedGradientTape have no argument {name!r}.")
    reduce_op = Sum if is_adasum(op) else operator_of(op)
    _check_groups(num_groups, groups)
    options = {**options, "op": reduce_op}
    if predivide_factor != 1.0:
        if reduce_op is not Average:
            raise ConfigError(
                f"gradient_predivide_factor={shown(predivide_factor)} needs op=Average, not "
                f"{reduce_op}. Give prescale_factor and postscale_factor instead."
            )
        if not isinstance(predivide_factor, (int, float)) or not predivide_factor > 0:
            raise ConfigError(f"gradient_predivide_factor={shown(predivide_factor)}: give a number above 0.")
        options["prescale_factor"] = options.get("prescale_factor", 1.0) / predivide_factor
        options["postscale_factor"] = options.get("postscale_factor", 1.0) * predivide_factor
    return options


def _check_adasum(optimizer: Any, is_mean: bool, process_set: ProcessSet) -> None:
    if own.family_of(optimizer) is not v1:
        raise ConfigError(
            "op=Adasum cannot be used with an optimizer of Keras: use one of tf.compat.v1.train, or a "
            "DistributedGradientTape."
        )
    if is_mean:
        raise ConfigError(
            "op=Adasum and average_aggregated_gradients=True exclude each other: leave one out."
        )
    if process_set is not global_process_set:
        raise UnsupportedError(
            "op=Adasum combines gradients of all ranks, not of a process set: leave process_set out."
        )


def _check_groups(num_groups: Any, groups: Any) -> None:
    if type(num_groups) is not int or num_groups < 0:
        raise ConfigError(f"num_groups={shown(num_groups)}: give a whole number from 0.")
    if groups is None:
        return
    is_number = type(groups) is int and groups >= 0
    is_lists = not isinstance(groups, (str, dict)) and isinstance(groups, Iterable)
    if not is_number and not (is_lists and all(isinstance(one, (list, tuple)) for one in groups)):
        raise ConfigError(
            f"groups={shown(groups)}: give a number of groups, or a list of lists of variables."
        )
