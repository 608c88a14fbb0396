"""Horovod's elastic states: they are saved, restored and made equal. In an elastic job they outlive a world.

`rdmacoll run --min-np` starts elastic jobs. In other jobs nobody joins or replaces a rank. There `run` calls
its function once, and a failed rank ends the job.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rdmacoll import engine
from rdmacoll._base.log import Log
from rdmacoll._base.text import counted
from rdmacoll._horovod import collectives
from rdmacoll._horovod.keras_collectives import graph_session
from rdmacoll._horovod.objects import broadcast_object
from rdmacoll._horovod.world import init_again
from rdmacoll._world import places, world
from rdmacoll.errors import ConfigError, RankFailedError, error_from
from rdmacoll.operators import ReduceOp
from rdmacoll.ops._sessions import set_value
from rdmacoll.optimizer import with_inner
from rdmacoll.optimizer.accumulation import restart_all

# Horovod's error of a failed collective.
HorovodInternalError = RankFailedError


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818
    """The hosts of an elastic job have changed, so another world is to begin. skip_sync: without effect,
    since workers that have come need the state."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


class State:
    """A state that can be saved, restored, and made equal to rank 0's."""

    def __init__(self) -> None:
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Adds functions that `on_reset` calls."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Calls `reset` and the registered functions, in each new world."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Saves the state, and then `check_host_updates`."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks if workers have come to an elastic job, or are to leave.

        Every rank calls it. In other jobs it does nothing.
        """
        if not places.is_elastic():
            return
        is_to_end = np.array([places.is_world_to_end()], np.int32)
        # A rank that has joined takes part in sums, as zero.
        if engine.allreduce(is_to_end, op=ReduceOp.SUM, name="rdmacoll/elastic/updates")[0]:
            raise HostsUpdatedInterrupt()

    def reset(self) -> None:
        """Prepares for another world. Derived classes may need it."""

    def save(self) -> None:
        """Keeps a copy of the state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to the kept copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Makes the state equal to rank 0's. Every rank calls it."""
        raise NotImplementedError


class ObjectState(State):
    """Python values, which are attributes of the state.

    bcast_object: sends an object from rank 0. get_rank: this rank's number. kwargs: the attributes.
    """

    def __init__(
        self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        super().__init__()
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._saved_state = kwargs
        self._set_attributes()

    def save(self) -> None:
        """Keeps copies of the attributes."""
        self._saved_state = {name: copy.deepcopy(getattr(self, name)) for name in self._saved_state}

    def restore(self) -> None:
        """Sets the attributes to the kept values."""
        self._set_attributes()

    def sync(self) -> None:
        """Sets the attributes to rank 0's, and keeps them."""
        if self._saved_state:
            self._saved_state = self._bcast_object({name: getattr(self, name) for name in self._saved_state})
            self._set_attributes()

    def _set_attributes(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, copy.deepcopy(value))


class _VariablesState(ObjectState):
    """Variables, and attributes beside them.

    session: where a graph of TensorFlow 1 has their values. If None, the default session, or that of Keras 2.
    """

    def __init__(self, session: Any = None, /, **kwargs: Any) -> None:
        super().__init__(broadcast_object, world.rank, **kwargs)
        self._session = session
        self._broadcast_of_graph: Any = None
        self._kept: list[Any] = []
        self._keep()

    def variables(self) -> list[Any]:
        """The variables of this state, the same ones on all ranks."""
        raise NotImplementedError

    def save(self) -> None:
        """Keeps copies of variables and attributes."""
        self._keep()
        super().save()

    def restore(self) -> None:
        """Goes back to the kept values. Raises ConfigError if variables were made since then."""
        variables = self.variables()
        if len(variables) != len(self._kept):
            raise ConfigError(
                f"the state has {len(variables)} variables, and its last commit {len(self._kept)}: make the "
                "state when model and optimizer are built, or commit it after the first batch."
            )
        for variable, value in zip(variables, self._kept):
            self._assign(variable, value)
        super().restore()

    def sync(self) -> None:
        """Makes variables and attributes equal to rank 0's, and keeps them. Raises ConfigError on all ranks
        if they do not have the same number of variables."""
        variables = self.variables()
        counts = engine.allgather(np.array([len(variables)]), name="rdmacoll/elastic/variables").tolist()
        other = next((rank for rank, count in enumerate(counts) if count != counts[0]), None)
        if other is not None:
            raise ConfigError(
                f"the state has {counted(counts[0], 'variable')} on rank 0, and {counts[other]} on rank "
                f"{other}: build the model before its state is made (keras.layers.Input, or model.build), so "
                "that all ranks have its variables."
            )
        self._broadcast(variables)
        self._keep()
        super().sync()

    def _keep(self) -> None:
        if tf.executing_eagerly():
            self._kept = [variable.numpy() for variable in self.variables()]
        else:
            self._kept = self._graph_session().run(self.variables())

    def _assign(self, variable: Any, value: Any) -> None:
        if tf.executing_eagerly():
            variable.assign(value)
        else:
            set_value(variable, value, self._graph_session())

    def _broadcast(self, variables: list[Any]) -> None:
        if tf.executing_eagerly():
            collectives.broadcast_variables(variables, 0)
        else:
            if self._broadcast_of_graph is None:  # once: its name counts the operations of the graph
                self._broadcast_of_graph = collectives.broadcast_variables(variables, 0)
            self._graph_session().run(self._broadcast_of_graph)

    def _graph_session(self) -> Any:
        return self._session or graph_session()


class TensorFlowState(_VariablesState):
    """Variables of TensorFlow. variables: all global ones of the graph, if None. session: where a graph of
    TensorFlow 1 has their values; the default session, if None."""

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        self._variables = list(tf.compat.v1.global_variables() if variables is None else variables)
        super().__init__(session, **kwargs)

    def variables(self) -> list[Any]:
        """The variables that the state was made with."""
        return self._variables


class TensorFlowKerasState(_VariablesState):
    """A model of Keras and its optimizer. optimizer: the model's own, if None. backend: without effect.

    If the model is built, its optimizer gets its variables here, so that all ranks have the same ones.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        if self.optimizer is not None and getattr(model, "built", False):
            _make_variables(self.optimizer, model.trainable_variables)
        super().__init__(**kwargs)

    def reset(self) -> None:
        """Lets `fit` and the like trace their functions again, for the ranks of the new world. A graph of
        TensorFlow 1 stays: its operations have their names by their order."""
        if not tf.executing_eagerly():
            return
        for name in ("train_function", "test_function", "predict_function"):
            if getattr(self.model, name, None) is not None:
                setattr(self.model, name, None)

    def variables(self) -> list[Any]:
        """The variables of the model and of its optimizer."""
        of_optimizer = getattr(self.optimizer, "variables", [])
        found = [*self.model.variables, *(of_optimizer() if callable(of_optimizer) else of_optimizer)]
        for one in _beside_list(self.optimizer):
            if not any(one is other for other in found):
                found.append(one)
        return found


def _beside_list(optimizer: Any) -> list[Any]:
    """Variables that an optimizer of Keras 2 has beside its list: learning rates, other numbers, and the
    scale of losses."""
    found: list[Any] = []
    for part in with_inner(optimizer):
        found += [getattr(part, name, None) for name in ("_learning_rate", "_current_learning_rate")]
        found += getattr(part, "_hyper", {}).values()
        found += getattr(getattr(part, "_loss_scale", None), "_weights", {}).values()
    return [one for one in found if hasattr(one, "assign")]


def _make_variables(optimizer: Any, weights: list[Any]) -> None:
    """Makes the variables that an optimizer of Keras otherwise makes in its first update."""
    if hasattr(optimizer, "_create_all_weights"):  # the older optimizers of Keras 2
        optimizer._create_all_weights(weights)
    elif not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
        optimizer.build(weights)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a training function, whose first argument is a state: makes the state equal on all ranks, and
    calls the function.

    In an elastic job a failed rank does not end the others. They go back to the last commit, form a world
    without it, and call the function again. When workers have come, ranks do so after a commit, and keep what
    they have. Rank 0 is always a rank of the world before. Each world begins with the arguments of the first
    `init`. The functions that the state has registered are called in each new world.
    """

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        is_reset = False
        while True:
            try:
                if is_reset:
                    world.shutdown()
                    init_again()
                    if tf.executing_eagerly():
                        restart_all()
                    state.on_reset()
                state.sync()
                places.note_state()
                return func(state, *args, **kwargs)
            except HostsUpdatedInterrupt:
                is_reset = True
            except Exception as error:
                failure = error_from(error)
                if not places.is_elastic() or not isinstance(failure, RankFailedError):
                    raise
                text = str(failure).rstrip(".")
                Log(rank=world.rank()).warning(f"{text}. The state goes back to its last commit.")
                places.blame(failure.rank)
                state.restore()
                is_reset = True

    return wrapper
