"""Sends the root's variables to all ranks, after the ranks have agreed on the list of variables."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from rdmacoll._world import world
from rdmacoll.keras.callbacks import agreement, optimizers
from rdmacoll.keras.callbacks.exchange import gathered_unless_equal
from rdmacoll.keras.callbacks.variable_groups import MODEL, Group, groups_of, name_in_thread, wrapped_names
from rdmacoll.ops._labels import path_of
from rdmacoll.ops._typed_errors import typed_errors
from rdmacoll.ops.broadcast import broadcast_
from rdmacoll.optimizer import with_inner
from rdmacoll.optimizer.registry import plain_variable
from rdmacoll.process_set import ProcessSet, number_of
from rdmacoll.ps.calls import has_servers


@dataclass(frozen=True)
class FitBegin:
    """The beginning of `fit` on this rank. epoch: the first one; None if it has none. has_batch: whether
    there is a first batch."""

    epoch: int | None
    has_batch: bool
    steps_per_execution: int
    is_tuned: bool  # whether Keras changes that number meanwhile


class VariableBroadcast:
    """Makes the ranks of one `fit` equal. All ranks of the set call the same methods in the same order,
    for the same program."""

    def __init__(
        self, model: Any, root_rank: int, process_set: ProcessSet, local_variables: Sequence[Any] = ()
    ) -> None:
        """local_variables: are not sent, nor their slots. The list may grow."""
        self._local = local_variables
        self._model = model
        self._root = root_rank
        self._set = process_set
        self._sent: set[tuple[str, str]] = set()
        self._sent_ids: set[int] = set()
        self._can_send_again = False

    def begin(self, begin: FitBegin) -> None:
        """Sends all variables before the first batch. Raises ConfigError if ranks begin at different
        epochs, and MismatchError if they have different variables that cannot be created."""
        _build(self._model)
        groups, with_sums, descriptions = self._agree(vars(begin))
        agreed = {rank: vars(begin) for rank in self._set.ranks} if descriptions is None else descriptions
        agreement.check_tuning({rank: one["is_tuned"] for rank, one in agreed.items()})
        # Otherwise ranks reach the end of their first batch at different steps.
        is_even = descriptions is None or all(
            one["has_batch"] and one["steps_per_execution"] == begin.steps_per_execution
            for one in descriptions.values()
        )
        self._can_send_again = begin.has_batch and is_even and not has_servers()
        self._send(groups, with_sums)

    def send_new_variables(self, unreduced: Mapping[str, int]) -> None:
        """Sends everything after the first batch, if it has created variables: ranks may have begun with
        different values of those. unreduced: fingerprints of variables that no reduction has made equal.
        Raises MismatchError if these differ."""
        if not self._can_send_again:
            return
        _build(self._model)  # the first batch may have made the model, and several passes make an update
        groups, with_sums, descriptions = self._agree({"unreduced": unreduced})
        if descriptions is not None:
            agreement.check_unreduced(
                {rank: one["unreduced"] for rank, one in descriptions.items()},
                {key: path_of(one, key) for key, one in groups[MODEL].variables.items()},
            )
        if _keys_of(groups) - self._sent:
            self._send(groups, with_sums)

    def has_sent(self, variable: Any) -> bool:
        """Whether this variable was sent."""
        return id(plain_variable(variable)) in self._sent_ids

    def _agree(self, begin: Mapping[str, Any]) -> tuple[dict[str, Group], set[str], dict[int, Any] | None]:
        """Returns three values. First, the groups, equal on all ranks. Second, the keys of groups whose
        sums of gradients are sent. Third, the descriptions of all ranks, or None if these are equal."""
        groups = groups_of(self._model, local=self._local)
        exchanged = self._exchange({**begin, "problem": ""}, groups)
        if exchanged is None:
            return groups, set(), None
        descriptions = {rank: own for rank, (own, _) in exchanged.items()}
        agreement.check_begin({rank: one.get("epoch") for rank, one in descriptions.items()})
        missing_slots = agreement.slots_to_build({rank: one["groups"] for rank, one in descriptions.items()})
        if missing_slots:
            also = frozenset(missing_slots)
            problem = _build_slots(groups_of(self._model, also, self._local), missing_slots)
            groups = groups_of(self._model, also, self._local)
            exchanged = self._exchange({**begin, "problem": problem}, groups)
        if exchanged is not None:
            last = {rank: own for rank, (own, _) in exchanged.items()}
            agreement.check_wrapped({rank: one["wrapped"] for rank, one in last.items()})
            agreement.check_problems({rank: one["problem"] for rank, one in last.items()})
            agreement.check_equal(
                {rank: one["groups"] for rank, one in last.items()},
                {rank: labels for rank, (_, labels) in exchanged.items()},
            )
            descriptions = last
        counts = [one["counts"] for one in descriptions.values()]
        return groups, {key for key in groups if len({one.get(key) for one in counts}) > 1}, descriptions

    def _exchange(
        self, own: Mapping[str, Any], groups: Mapping[str, Group]
    ) -> dict[int, tuple[Any, Any]] | None:
        description = {
            **own,
            "wrapped": wrapped_names(groups),
            "groups": {
                key: [
                    group.built_for,
                    {name: _kind(one) for name, one in sorted(group.variables.items())},
                    {} if key == MODEL else optimizers.settings_of(group.owner),
                ]
                for key, group in sorted(groups.items())
            },
            "counts": {
                key: int(optimizers.calls_of(group.owner).numpy())
                for key, group in groups.items()
                if group.accumulators
            },
        }
        labels = {
            f"{key}: {name}": path_of(one, name)
            for key, group in groups.items()
            for name, one in group.variables.items()
        }
        return gathered_unless_equal(description, labels, self._name(groups), self._set)

    def _name(self, groups: Mapping[str, Group]) -> str:
        return name_in_thread("BroadcastGlobalVariablesCallback", groups)

    def _send(self, groups: Mapping[str, Group], with_sums: set[str]) -> None:
        variables = [
            variable
            for key, group in sorted(groups.items())
            for name, variable in sorted(group.variables.items())
            # The gradients of half an update stay here, unless the root goes on from another call.
            if name not in group.accumulators or key in with_sums
        ]
        name = f"{self._name(groups)}: variables"
        with typed_errors():
            if tf.executing_eagerly():
                broadcast_(variables, self._root, name, process_set=self._set)
            else:
                session_of(self._model).run(self._op_of_graph(variables, name))
        self._sent = _keys_of(groups)
        self._sent_ids |= {id(plain_variable(one)) for one in variables}

    def _op_of_graph(self, variables: list[Any], name: str) -> Any:
        """The broadcast in a graph of TensorFlow 1. A later `fit` that sends the same variables uses the
        same operation."""
        ops_of_graph = tf.compat.v1.get_default_graph().get_collection_ref("rdmacoll_broadcasts")
        key = (self._root, name, number_of(world.current(), self._set))
        for earlier, sent, op in ops_of_graph:
            if earlier == key and list(map(id, sent)) == list(map(id, variables)):
                return op
        op = tf.group(*broadcast_(variables, self._root, name, process_set=self._set))
        ops_of_graph.append((key, variables, op))
        return op


def _build(model: Any) -> None:
    """Builds the model's optimizer, so that its slots are sent. Keras would build it in the first batch."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not getattr(model, "built", False) or not model.trainable_variables:
        return
    if optimizers.can_be_built(optimizer) or optimizers.awaits_slots(optimizer):
        optimizers.build(optimizer, model.trainable_variables, model)


def _build_slots(groups: Mapping[str, Group], missing_slots: Mapping[str, list[str]]) -> str:
    """Creates slots that other ranks have. Returns the error, for all ranks to hear; empty: none."""
    variables = groups[MODEL].variables
    for key, names in missing_slots.items():
        group = groups.get(key)
        if group is None or not (
            group.built_for is None or optimizers.is_legacy(with_inner(group.owner)[-1])
        ):
            continue
        if not set(names) <= set(variables):
            continue  # the next exchange shows what is missing here
        try:
            optimizers.build(group.owner, [variables[name] for name in names], groups[MODEL].owner)
        except Exception as error:  # all ranks hear of it
            return f"{type(group.owner).__name__}.build: {type(error).__name__}: {error}"
    return ""


def _keys_of(groups: Mapping[str, Group]) -> set[tuple[str, str]]:
    return {(key, name) for key, group in groups.items() for name in group.variables}


def _kind(variable: Any) -> str:
    return f"{tf.as_dtype(variable.dtype).base_dtype.name} {tuple(variable.shape)}"


def session_of(model: Any) -> Any:
    """The session of Keras 2 in a graph of TensorFlow 1, which holds the values of its variables."""
    packages = [base.__module__.partition(".")[0] for base in type(model).__mro__]
    package = next(name for name in packages if name in ("tf_keras", "keras"))
    return sys.modules[f"{package}.src.backend"].get_session()
