"""`tf.GradientTape` whose gradients are those of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from rdmacoll._abi.arguments import name as checked_name
from rdmacoll.errors import ConfigError
from rdmacoll.operators import ReduceOp
from rdmacoll.ops._library import not_converted
from rdmacoll.optimizer import plain_updates, single_reduction, tape_check
from rdmacoll.optimizer.accumulation import checked_passes
from rdmacoll.optimizer.model_names import name_of_named_tape, name_of_tape
from rdmacoll.optimizer.reduce import GradientReducer, refuse_servers
from rdmacoll.process_set import ProcessSet, global_process_set


class DistributedTape(tf.GradientTape):  # type: ignore[misc]
    """The class of wrapped tapes."""

    _rdmacoll_reduce: GradientReducer

    @not_converted
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Like `tf.GradientTape.gradient`, with gradients reduced over all ranks, in the structure of
        `sources`."""
        own_gradients = super().gradient(target, sources, output_gradients, unconnected_gradients)
        reduced = self._rdmacoll_reduced(tf.nest.flatten(own_gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(own_gradients, reduced)

    def _rdmacoll_reduced(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        reducer = self._rdmacoll_reduce
        tape_check.check_gradient(reducer, variables)
        reduced = reducer(gradients, variables)
        single_reduction.note(reduced, variables, reducer.process_set, is_early=True)
        return reduced


@not_converted
def DistributedGradientTape(
    tape: Any,
    *,
    op: int = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = None,
    sparse_as_dense: bool | str = False,
    bucket_bytes: int | None = None,
    backward_passes_per_step: int = 1,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
) -> Any:
    """Makes `tape.gradient()` return gradients that are reduced over all ranks. Returns the same tape.

    tape: a `tf.GradientTape`, recording or not. Options are those of `DistributedOptimizer`. name: equal on
    all ranks. It is for models that several threads train at the same time. Without a name, tapes of other
    threads than the main one are matched by the names and shapes of their sources.

    A wrapped tape or a wrapped optimizer is enough. A wrapped optimizer does not reduce gradients again that
    a wrapped tape has reduced for the same process set. The same holds for gradients that are made from these
    alone. Gradients that are also made from those of a plain tape are an error, unless the optimizer takes
    means. So are eager gradients that a program has changed as numpy arrays.

    Ranks compare the sources before updates, as RDMACOLL_CHECK_WEIGHTS says. Only `check_weights` compares
    slots of a plain optimizer. Nothing is compared in a graph of TensorFlow 1. If a call of a plain optimizer
    applies gradients of this rank beside reduced ones, a warning names their variables.

    Raises ConfigError for a tape that is wrapped already, and for several backward passes in a step, since a
    tape lives for one. It also does so with asynchronous parameter servers, which reduce nothing. If nothing
    distinguishes the tapes of two threads, this is an error as well, which ends the world.
    """
    return wrapped(
        tape,
        GradientReducer,
        backward_passes_per_step=backward_passes_per_step,
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        bucket_bytes=bucket_bytes,
        process_set=process_set,
    )


def wrapped(
    tape: Any,
    reducer_class: type[GradientReducer],
    *,
    backward_passes_per_step: int = 1,
    name: str | None = None,
    **options: Any,
) -> Any:
    """Like `DistributedGradientTape`, with a reducer of this class. options: its other arguments."""
    refuse_servers()
    if checked_passes(backward_passes_per_step) != 1:
        raise ConfigError(
            f"backward_passes_per_step={backward_passes_per_step} is not for a tape, which lives for one "
            "pass: sum the gradients of plain tapes and give the sums to a wrapped optimizer, or wrap the "
            f"optimizer with backward_passes_per_step={backward_passes_per_step}."
        )
    if isinstance(tape, DistributedTape):
        raise ConfigError("this tape is wrapped already: its gradients would be reduced twice.")
    if type(tape) is not tf.GradientTape:
        raise ConfigError(f"{type(tape).__name__} is no tf.GradientTape.")
    tape._rdmacoll_reduce = reducer_class(
        name="DistributedGradientTape" if name is None else checked_name(name),
        naming=name_of_tape if name is None else name_of_named_tape,
        **options,
    )
    tape._rdmacoll_reduce.is_of_tape = True
    plain_updates.watch()
    tape.__class__ = DistributedTape
    return tape
