"""The methods that Horovod's optimizers have besides those of the plain optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from rdmacoll.optimizer import with_inner
from rdmacoll.optimizer.loss_scaling import scaled_by
from rdmacoll.optimizer.registry import plain_variable
from rdmacoll.optimizer.subclass import reduced_pairs, split

if TYPE_CHECKING:
    from rdmacoll._horovod.reducer import HorovodReducer


def methods_of(plain: type) -> dict[str, Any]:
    """The further attributes of a wrapped optimizer, whose own class is `plain`."""
    found: dict[str, Any] = {
        "register_local_var": register_local_var,
        "process_set": property(lambda self: self._rdmacoll_reduce.process_set),
        "scale_local_gradients": property(lambda self: self._rdmacoll_reduce.scale_local_gradients),
        "_agg_helper": property(_aggregation),
        "_allreduce": _allreduce,
        "_allreduce_grads": _allreduce_grads,
    }
    is_v1 = issubclass(plain, tf.compat.v1.train.Optimizer)
    if is_v1:
        found["_optimizer"] = Itself()
    if all(getattr(plain, name) is getattr(object, name) for name in ("__repr__", "__str__")):
        # By Horovod's module, programs recognize a wrapped optimizer (TensorFlow Recommenders Addons).
        found["__repr__"] = _shown_as("horovod.tensorflow" if is_v1 else "horovod._keras")
    is_of_keras_3 = not hasattr(plain, "compute_gradients") and not hasattr(plain, "_compute_gradients")
    if is_of_keras_3:
        found["compute_gradients"] = compute_gradients
    if not hasattr(plain, "_compute_gradients") and hasattr(plain, "get_config"):
        found["_compute_gradients"] = _compute_gradients
    return found


def _shown_as(module: str) -> Callable[[Any], str]:
    def shown(self: Any) -> str:
        plain = f"{type(self).__module__}.{type(self).__qualname__}"
        return f"<{plain} wrapped by rdmacoll, as by {module}, at {id(self):#x}>"

    return shown


class Itself:
    """The attribute `_optimizer`, Horovod's name for the optimizer that it wraps. An instance may have an
    attribute of this name, as loss scaling has."""

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            raise AttributeError("_optimizer")
        return instance


def register_local_var(self: Any, var: Any) -> None:
    """Declares that each rank has its own values of a variable: its gradient is not reduced. It is divided
    by the number of ranks unless `scale_local_gradients` is False."""
    self._rdmacoll_reduce.register_local(var)


def compute_gradients(self: Any, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
    """The pairs of reduced gradient and variable of an optimizer of Keras 3, which has no such method. With
    several passes in a step they are this rank's: `apply_gradients` reduces the sums.

    loss: a function, or a tensor that `tape` has recorded. It is not scaled. The gradients have the
    optimizer's loss scale, by which `apply_gradients` divides.

    Raises ValueError for a tensor without a tape.
    """
    if callable(loss):
        tape = tf.GradientTape() if tape is None else tape
        with tape:
            if not callable(var_list):
                tape.watch([plain_variable(one) for one in var_list])
            loss = loss()
    elif tape is None:
        raise ValueError("compute_gradients() of a tensor needs the tape that has recorded it.")
    variables = list(var_list() if callable(var_list) else var_list)
    scales = tf.nest.map_structure(lambda one: self.scale_loss(tf.ones_like(one)), loss)
    pairs = list(zip(tape.gradient(loss, variables, output_gradients=scales), variables))
    has_dynamic_scale = hasattr(self, "inner_optimizer")  # residuals have none of a constant scale
    with scaled_by(self._rdmacoll_reduce, self.scale_loss(1.0) if has_dynamic_scale else 1.0):
        return list(zip(_allreduce(self, *split(pairs)), variables))


def _compute_gradients(
    self: Any, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
) -> list[tuple[Any, Any]]:
    """Like `compute_gradients`, by the name of legacy optimizers of Keras. Only they take `grad_loss`."""
    if grad_loss is not None:
        raise ValueError(
            "grad_loss is for legacy optimizers of Keras: pass it to tape.gradient() as output_gradients, "
            "and the gradients to apply_gradients()."
        )
    return list(self.compute_gradients(loss, var_list, tape=tape))


def _allreduce(self: Any, grads: Any, variables: Any) -> list[Any]:
    """The reduced gradients of these variables. With several passes in a step they stay as they are."""
    reducer: HorovodReducer = self._rdmacoll_reduce
    pairs = list(zip(grads, variables))
    if reducer.backward_passes_per_step == 1:
        pairs = reduced_pairs(reducer, pairs, is_early=True)
    return [gradient for gradient, _ in pairs]


def _allreduce_grads(
    self: Any, grads: Any, variables: Any = None, use_generic_names: bool = False
) -> list[Any]:
    """The reduced gradients, also between two steps of several passes. use_generic_names: without effect."""
    if variables is None:
        return list(self._rdmacoll_reduce(list(grads)))
    return split(reduced_pairs(self._rdmacoll_reduce, zip(grads, variables), is_early=True))[0]


class Aggregation:
    """The attribute `_agg_helper` of optimizers with several passes in a step. counter: the number of passes
    since the last step, a tensor."""

    def __init__(self, optimizer: Any) -> None:
        reducer: HorovodReducer = optimizer._rdmacoll_reduce
        self.backward_passes_per_step = reducer.backward_passes_per_step
        self.average_aggregated_gradients = reducer.average_aggregated_gradients
        self.process_set = reducer.process_set
        self.register_local_var = reducer.register_local
        self._optimizer = optimizer

    @property
    def counter(self) -> Any:
        """The number of passes since the last step."""
        *_, inner = with_inner(self._optimizer)
        for name in ("_rdmacoll_accumulation", "_rdmacoll_sums"):
            if getattr(inner, name, None) is not None:
                return getattr(inner, name).counter()
        passes = tf.convert_to_tensor(getattr(inner, "_iterations", 0))  # in Keras 3
        return passes % self.backward_passes_per_step


def _aggregation(self: Any) -> Aggregation | None:
    return Aggregation(self) if self._rdmacoll_reduce.backward_passes_per_step > 1 else None
