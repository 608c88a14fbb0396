"""Averages metrics over the ranks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rdmacoll._world import world
from rdmacoll.keras.callbacks.agreement import ranks_text
from rdmacoll.keras.callbacks.base import Callback
from rdmacoll.keras.callbacks.exchange import gathered
from rdmacoll.keras.callbacks.variable_groups import groups_of, name_in_thread
from rdmacoll.process_set import ProcessSet, global_process_set

Value = Any  # a float, or nested lists of floats
Logs = Mapping[str, Value]
_COUNTER = re.compile(r"_(\d+)$")


class MetricAverageCallback(Callback):
    """Averages the metrics of each epoch over all ranks, for the callbacks that come after this one
    (schedules, early stopping, checkpoints: their decisions then agree).

    Metrics are matched by name, without the counter that Keras puts after it: `auc_1` of one rank and `auc_9`
    of another are one metric. Several metrics that differ in the counter alone are matched in its order.
    Arrays are averaged by element. A metric that some ranks do not have, or in another shape, keeps each
    rank's own value, and is named once in a warning.
    device: without effect. process_set: the ranks that train together; nothing happens on other ranks.
    allow_unwrapped: allows a first epoch that reduces no gradient of the model. Otherwise this is a
    ConfigError, since ranks would train apart.
    """

    def __init__(
        self,
        device: str = "",
        *,
        allow_unwrapped: bool = False,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(process_set, allow_unwrapped=allow_unwrapped)
        self._named: set[str] = set()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replaces the numbers in `logs`."""
        if self._is_single_rank():
            return
        super().on_epoch_end(epoch, logs)
        logs = {} if logs is None else logs
        own = numbers_of(logs)
        name = name_in_thread("MetricAverageCallback", groups_of(self.model))
        logs_of_ranks = gathered(own, name, self.process_set)
        means, missing = averages(logs_of_ranks)
        for metric, mean in means[world.rank()].items():
            logs[metric] = mean if np.ndim(mean) == 0 else np.asarray(mean, np.asarray(logs[metric]).dtype)
        new = [name for name in missing if name not in self._named]
        if new:
            self._named.update(new)
            self._warn(
                f"MetricAverageCallback does not average {', '.join(missing[name] for name in new)}. Give "
                "all ranks the same metrics, in the same order, and validation data on all ranks or on none."
            )


def numbers_of(logs: Mapping[str, Any]) -> dict[str, Value]:
    """The logs that are real numbers, or arrays of them. Callbacks may add texts, lists or None.

    >>> numbers_of({"loss": 1, "note": "1", "best": None, "curve": [1.0], "phase": 1j})
    {'loss': 1.0}
    >>> numbers_of({"f1": np.array([0.5, 1])})
    {'f1': [0.5, 1.0]}
    """
    found: dict[str, Value] = {}
    for name, value in logs.items():
        if np.ndim(value) == 0 and not isinstance(value, (str, bytes)):
            with contextlib.suppress(TypeError, ValueError):
                found[name] = float(value)
        elif hasattr(value, "__array__") and np.asarray(value).dtype.kind in "fiu":
            found[name] = np.asarray(value, np.float64).tolist()
    return found


def averages(logs: Mapping[int, Logs]) -> tuple[dict[int, Logs], dict[str, str]]:
    """Returns the means of metrics that all ranks have, by rank and the rank's own name. Also returns the
    metrics that some ranks lack, or have in another shape: their names without counters, and a phrase for
    people. logs: the metrics of each rank.

    >>> averages({0: {"loss": 1.0, "auc": 0.5}, 1: {"loss": 3.0, "auc_9": 0.7}})
    ({0: {'loss': 2.0, 'auc': 0.6}, 1: {'loss': 2.0, 'auc_9': 0.6}}, {})
    >>> averages({0: {"loss": 1.0, "val_loss": 2.0}, 1: {"loss": 3.0}})
    ({0: {'loss': 2.0}, 1: {'loss': 2.0}}, {'val_loss': 'val_loss (missing on rank 1)'})
    >>> averages({0: {"f1": [0.0, 1.0], "top": [1.0]}, 1: {"f1": [1.0, 1.0], "top": 2.0}})
    ({0: {'f1': [0.5, 1.0]}, 1: {'f1': [0.5, 1.0]}}, {'top': 'top (in different shapes)'})
    """
    names = {rank: _by_base(own) for rank, own in logs.items()}
    means: dict[int, dict[str, Value]] = {rank: {} for rank in logs}
    missing: dict[str, str] = {}
    for base in dict.fromkeys(base for own in names.values() for base in own):
        lists = {rank: own.get(base, []) for rank, own in names.items()}
        most = max(map(len, lists.values()))
        lacking = [rank for rank, one in lists.items() if len(one) < most]
        if lacking:
            missing[base] = f"{base} ({'fewer' if most > 1 else 'missing'} on {ranks_text(lacking)})"
            continue
        for matched in zip(*([(rank, name) for name in one] for rank, one in lists.items())):
            values = [np.asarray(logs[rank][name]) for rank, name in matched]
            if len({value.shape for value in values}) > 1:
                missing[base] = f"{base} (in different shapes)"
                continue
            mean = np.asarray(sum(values) / len(values)).tolist()
            for rank, name in matched:
                means[rank][name] = mean
    return dict(means), missing


def _by_base(names: Iterable[str]) -> dict[str, list[str]]:
    """The names without Keras' counter, with the metrics in the order of the counters, which is that of
    the program. Keras sorts `auc_10` before `auc_9`."""
    result: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        counter = _COUNTER.search(name)
        base, number = (name, 0) if counter is None else (name[: counter.start()], int(counter[1]))
        result.setdefault(base, []).append((number, name))
    return {base: [name for _, name in sorted(found)] for base, found in result.items()}
