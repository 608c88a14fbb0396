"""Wrappers that average gradients over all ranks: optimizers and the gradient tape."""

from __future__ import annotations

import itertools
import sys
import threading
from typing import TYPE_CHECKING, Any

from rdmacoll._abi.arguments import name as checked_name
from rdmacoll.errors import ConfigError
from rdmacoll.operators import ReduceOp
from rdmacoll.optimizer import registry
from rdmacoll.process_set import ProcessSet, global_process_set
from rdmacoll.ps.calls import has_servers

if TYPE_CHECKING:
    from rdmacoll.optimizer.reduce import GradientReducer
    from rdmacoll.optimizer.tape import DistributedGradientTape

__all__ = ["DistributedGradientTape", "DistributedOptimizer", "bucket_count"]

_LOCK = threading.RLock()  # wrapping patches functions of Keras and TensorFlow
_NUMBERS: dict[str, itertools.count[int]] = {}  # a counter for each label
# the number of optimizers that the main thread has wrapped, by name
_NAMED: dict[str, itertools.count[int]] = {}


def __getattr__(name: str) -> Any:
    # TensorFlow is imported when it is needed; `optimizer.buckets` does without.
    if name == "DistributedGradientTape":
        from rdmacoll.optimizer.tape import DistributedGradientTape

        return DistributedGradientTape
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def DistributedOptimizer(
    optimizer: Any,
    *,
    op: int = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = None,
    sparse_as_dense: bool | str = False,
    bucket_bytes: int | None = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
) -> Any:
    """Makes `optimizer` reduce gradients over all ranks before it clips and applies them. Returns the same
    object.

        rdmacoll.init()
        optimizer = rdmacoll.DistributedOptimizer(keras.optimizers.Adam(1e-3 * rdmacoll.size()))
        model.compile(optimizer, loss="mse")
        model.fit(x, y, callbacks=[rdmacoll.keras.callbacks.BroadcastGlobalVariablesCallback(0)])

    optimizer: of Keras 3, of Keras 2 (TensorFlow 2.15, `tf_keras`; new or legacy), or of
    `tf.compat.v1.train`, whose `compute_gradients` then returns the reduced gradients. All ranks wrap their
    optimizers in the same order.

    op: rdmacoll.Average, Sum, Min, Max or Product. Gradients are multiplied by `prescale_factor` before the
    reduction and by `postscale_factor` after it. compression: `Compression.fp16` or `bf16` sends gradients as
    16 bits; under dynamic loss scaling the scale falls until they fit. `Compression.topk(0.01)` sends the
    largest hundredth of each gradient, and `Compression.onebit` one bit for each element. This rank adds the
    rest to the next gradient. It is in checkpoints of TensorFlow and in files of Keras 3. bucket_bytes:
    replaces RDMACOLL_BUCKET_BYTES.

    sparse_as_dense: False gathers the rows of `tf.IndexedSlices`. True makes them dense. "auto" gathers the
    rows, or sums the rows of each index if this sends less. Sums change the result of optimizers that square
    each row: Keras 3's Adam, or a clipped norm.

    backward_passes_per_step: the number of calls in a step. Gradients are summed on each rank. The last call
    reduces and applies the sums, or with `average_aggregated_gradients` the means. The sums include those of
    several replicas in a rank (`tf.distribute`). Several replicas cannot accumulate in sessions, nor with
    Keras 3's `use_ema`, whose averages move in each call. In a graph of TensorFlow 1 the sums are local
    variables, and Keras 2 trains there with its legacy optimizers alone. Passes for several sets of variables
    in turn, as in a GAN, are an error in Keras 3: give each set an optimizer of its own.

    Variables of Keras 3 with `overwrite_with_gradient` (float8) get the maximum of all ranks and passes.

    process_set: the ranks that train together. They wrap their optimizers of this set in the same order.
    name: equal on all ranks. It replaces the number by that order, for threads that wrap optimizers at the
    same time. Without a name, optimizers of other threads than the main one are matched by the names and
    shapes of their variables. Ranks with different models then wait until the stall limit, and the message
    has "without name=". If names and shapes of two models are equal, this is an error, which ends the world.

    With `gradient_accumulation_steps` ranks communicate once for each update, and in each pass if parts of a
    MultiOptimizer have this option. Under loss scaling (mixed_float16) they communicate at every step, since
    all ranks must agree whether its gradients are finite.

    Copies and pickles of the optimizer are wrapped too, and so is the result of `from_config` of its class.
    Each has a state of its own. Ranks make them in the same order. Files that Keras saves hold the plain
    optimizer, and so do copies and pickles of an object around it (a model, Keras's loss scaling). So the
    optimizer of a model that `load_model` returns has to be wrapped again. A file of Keras 3 tells the number
    of passes, and not whether they were summed: give `backward_passes_per_step` again. Without it updates go
    on as means, with a warning.

    Raises ConfigError for an optimizer that is wrapped already.
    """
    return wrapped(
        optimizer,
        "DistributedOptimizer",
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        bucket_bytes=bucket_bytes,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        process_set=process_set,
    )


def wrapped(optimizer: Any, label: str, *, name: str | None = None, **options: Any) -> Any:
    """Wraps the optimizer and returns the same object. The name of its reductions is `name`, or `label`
    with a number. The option `reducer_class` replaces GradientReducer. Raises ConfigError."""
    with _LOCK:
        return _wrapped(optimizer, label, name, options)


def _wrapped(optimizer: Any, label: str, name: str | None, options: dict[str, Any]) -> Any:
    from rdmacoll.optimizer import history, plain_updates, single_reduction
    from rdmacoll.optimizer.model_names import is_main_thread, name_in_thread
    from rdmacoll.optimizer.reduce import GradientReducer

    parts = with_inner(optimizer)
    for part in parts:
        if reducer_of(part) is not None or getattr(part, "_rdmacoll_is_inside", False):
            raise ConfigError(
                f"this {type(optimizer).__name__}, a part of it or the optimizer around it is wrapped "
                "already: its gradients would be reduced twice. Wrap an optimizer once."
            )
    reducer_class = options.pop("reducer_class", GradientReducer)
    family = reducer_class.family_of(optimizer) or family_of(optimizer)
    one = options.get("process_set", global_process_set)
    if name is not None:
        label = checked_name(name)
    elif is_main_thread():
        label += f"_{next(_NUMBERS.setdefault(f'{label} of {one!r}', itertools.count()))}"
    else:
        options["naming"] = name_in_thread
    if has_servers():
        from rdmacoll.optimizer import server_updates

        server_updates.wrap(optimizer, family, label, options)
    else:
        reducer = reducer_class(name=label, **options)
        family.wrap(optimizer, reducer)
        plain_updates.watch()
        if not single_reduction.repeats(reducer):
            history.enable()
        label = reducer.name  # with its process set
    for part in parts[1:]:
        part._rdmacoll_is_inside = True
    if is_main_thread():
        number = next(_NAMED.setdefault(label, itertools.count(1)))
        label += f" ({number})" if number > 1 else ""
    registry.note_wrapped(optimizer, label, is_own=is_main_thread() or name is not None)
    return optimizer


def with_inner(optimizer: Any) -> list[Any]:
    """The optimizer and all optimizers inside of it. Loss scaling (of Keras, and of TensorFlow 1) has one
    inside, and so has Keras 2's wrapper for optimizers of TensorFlow 1. A MultiOptimizer has several."""
    parts = [optimizer]
    for outer in parts:  # the list grows in the loop
        inner = getattr(outer, "inner_optimizer", None) or getattr(outer, "_optimizer", None)
        if type(outer).__name__ == "TFOptimizer":
            inner = outer.optimizer
        parts += [] if inner is None or inner is outer else [inner]
        parts += getattr(outer, "_inner_optimizers", [])
    return parts


def reducer_of(optimizer: Any) -> Any:
    """The reducer of an optimizer that is wrapped itself; otherwise None."""
    return getattr(type(optimizer), "_rdmacoll_reduce", None)


def bucket_count(optimizer: Any) -> int:
    """The number of buckets of a wrapped optimizer's gradients, as they were traced last."""
    for part in with_inner(optimizer):
        reducer: GradientReducer | None = reducer_of(part)
        if reducer is not None:
            return len(reducer.buckets)
    return 0


def family_of(optimizer: Any) -> Any:
    """The module that wraps optimizers like this one, by its base classes' packages."""
    from rdmacoll.optimizer import keras2, keras3, v1

    packages = {base.__module__.partition(".")[0] for base in type(optimizer).__mro__}
    for package in ("keras", "tf_keras"):
        if package in packages and hasattr(optimizer, "apply_gradients"):
            version = int(sys.modules[package].__version__.partition(".")[0])
            return keras3 if version >= 3 else keras2
    if "tensorflow" in packages and hasattr(optimizer, "compute_gradients"):
        return v1
    raise ConfigError(
        f"DistributedOptimizer takes an optimizer of Keras or tf.compat.v1.train, not "
        f"{type(optimizer).__name__} of {type(optimizer).__module__}; for other training loops there is "
        "DistributedGradientTape."
    )
