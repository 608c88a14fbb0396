"""Makes all ranks equal when `fit` begins."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from rdmacoll._base.external_values import shown
from rdmacoll._world import world
from rdmacoll.errors import ConfigError
from rdmacoll.keras.callbacks.base import Callback
from rdmacoll.keras.callbacks.reduction_check import (
    BeforeTraining,
    before_training,
    check_reduced,
    prints_of_unreduced,
)
from rdmacoll.keras.callbacks.variable_broadcast import FitBegin, VariableBroadcast
from rdmacoll.keras.callbacks.variable_groups import is_variable
from rdmacoll.ops._arguments import check_root
from rdmacoll.optimizer import fit_state
from rdmacoll.optimizer.compared_values import short_path
from rdmacoll.process_set import ProcessSet, global_process_set
from rdmacoll.ps.calls import has_servers


class BroadcastGlobalVariablesCallback(Callback):
    """Gives all ranks the variables of rank `root_rank`, when the first batch of each `fit` begins.

    At that time Keras has called `on_train_begin` of every callback. So only the root needs the files of an
    earlier training. `BackupAndRestore` and loaders of your own may be in the root's list alone.

    All variables are sent: weights, statistics of batch normalisation, states of seed generators, and the
    optimizers' variables. Variables of models, layers and lists that are attributes of the model are sent,
    too. Slots that only some ranks have are created on the others. Variables that the first batch creates are
    sent after it. Metrics stay each rank's own, and so do half-filled sums of gradients
    (`gradient_accumulation_steps`). If the root goes on from another step than other ranks, all get its sums.

    device: without effect. local_variables: a variable or several that are not sent, nor their slots. Each
    rank may have others: parts of the model. process_set: the ranks that train together; nothing happens on
    other ranks. allow_unwrapped: allows a first batch that reduces no gradient of the model, or none of the
    variables that one of its optimizers updates. Otherwise this is a ConfigError, since ranks would train
    apart.

    Raises ConfigError if ranks begin at different epochs, and MismatchError with the first variable that not
    all ranks have, or that the first batch has changed on each rank by itself.
    """

    def __init__(
        self,
        root_rank: int = 0,
        device: str = "",
        local_variables: Iterable[Any] | None = None,
        *,
        allow_unwrapped: bool = False,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(process_set, allow_unwrapped=allow_unwrapped)
        self.root_rank = check_root(root_rank)
        if self.root_rank not in process_set.ranks:
            raise ConfigError(f"root_rank={root_rank} is not in {process_set!r}: name a rank of the set.")
        self.local_variables: list[Any] = []
        self._reset()
        for one in _listed(local_variables):
            self.register_local_var(one)

    def register_local_var(self, var: Any) -> None:
        """Adds to `local_variables`. Raises ConfigError if the variable has been sent already."""
        (variable,) = _listed(var)
        if self._variables is not None and self._variables.has_sent(variable):
            raise ConfigError(
                f"register_local_var() of {short_path(variable)!r} comes too late: the variables are sent "
                "before the first batch of fit. Call it before fit, or give the variable as local_variables."
            )
        self.local_variables.append(variable)

    def _reset(self) -> None:
        self._epoch: int | None = None
        self._thread = 0
        self._before: BeforeTraining | None = None
        self._variables: VariableBroadcast | None = None
        self._is_done = False
        self._has_trained = False
        self._is_judged = True

    def on_train_begin(self, logs: Any = None) -> None:
        """Forgets an earlier `fit`. Callbacks after this one may still restore variables."""
        super().on_train_begin(logs)
        self._reset()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the first epoch of `fit`."""
        if self._epoch is None:
            self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sends all variables before the first batch."""
        super().on_train_batch_begin(batch, logs)
        if self._variables is None:
            self._thread = threading.get_ident()
            self._begin(has_batch=True)
            self._before = None if self._is_done else before_training(self.model)
        else:
            self._end_first_batch()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Sends the variables that the first batch has created."""
        super().on_train_batch_end(batch, logs)
        self._has_trained = True
        # Keras 3 calls this from another thread, during the next batch, where `callbacks` is no list.
        if threading.get_ident() == self._thread:
            self._end_first_batch()

    def on_test_begin(self, logs: Any = None) -> None:
        """Ends the first batch, which may be the only one of its epoch."""
        if self._has_trained:
            self._end_first_batch()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Ends the first batch, as on_test_begin does. Raises ConfigError if there was none: Keras 3 begins a
        batch before it finds that the data is empty. The other ranks would wait in their first batch, and
        this rank for the end of it."""
        if self._variables is not None and not self._is_done and not self._has_trained:
            raise ConfigError(
                f"rank {world.rank()} got no batch in fit: its data is empty. Give every rank at least one "
                "batch. To train without data on a rank, call broadcast_variables before fit in place of "
                f"{type(self).__name__}, and join() after fit."
            )
        self._end_first_batch()
        if self._before is not None and not self._is_judged:
            self._is_judged = check_reduced(self.model, self._before, type(self).__name__)

    def on_train_end(self, logs: Any = None) -> None:
        """Meets the other ranks if this rank has no data or no epoch, since they wait for it."""
        if self._variables is None:
            self._begin(has_batch=False)
            self._is_done = True
        super().on_train_end(logs)

    def _begin(self, *, has_batch: bool) -> None:
        self._variables = VariableBroadcast(
            self.model, self.root_rank, self.process_set, self.local_variables
        )
        if self._is_single_rank():
            self._is_done = True
            return
        is_tuned = bool(getattr(self.model, "autotune_steps_per_execution", False)) and not has_servers()
        begin = FitBegin(self._epoch, has_batch, fit_state.steps_per_execution(self.model), is_tuned)
        self._variables.begin(begin)

    def _end_first_batch(self) -> None:
        if self._is_done or self._variables is None:
            return
        self._is_done = True
        unreduced: dict[str, int] = {}
        # This comes before the ranks meet again: a rank that reduces would wait for this one.
        if self._before is not None and not self.allow_unwrapped and not has_servers():
            self._is_judged = check_reduced(self.model, self._before, type(self).__name__)
            unreduced = prints_of_unreduced(self.model, self._before)
        self._variables.send_new_variables(unreduced)


def _listed(local_variables: Any) -> list[Any]:
    """The variables of the argument: None, one or several. Raises ConfigError for anything else."""
    found = [local_variables] if is_variable(local_variables) else list(local_variables or ())
    for one in found:
        if not is_variable(one):
            raise ConfigError(f"local_variables has {shown(one)}: give variables.")
    return found
