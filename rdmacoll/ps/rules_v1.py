"""The rules of TensorFlow 1's optimizers, `tf.compat.v1.train`. They compute what Keras' do, but

- Adagrad has no epsilon;
- RMSProp's averages of squares begin with ones;
- of momentum and RMSProp, rows without a gradient rest;
- momentum is of gradients, and the learning rate comes behind it.

The rate comes with each push: it may be a tensor, which the worker's graph computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rdmacoll._ps.session import Array
from rdmacoll.engine.errors import ConfigError
from rdmacoll.ps.rules import Rule


class _Known(NamedTuple):
    name: str  # the server's
    attributes: Mapping[str, str]  # of the optimizer, by the server's key
    fixed: str = ""  # lines of the record that are always so
    rate: str = "_learning_rate_tensor"  # the optimizer's attribute, since `_prepare`


_OPTIMIZERS: Mapping[str, _Known] = {
    "GradientDescentOptimizer": _Known("sgd", {}),
    "MomentumOptimizer": _Known(
        "sgd", {"momentum": "_momentum", "nesterov": "_use_nesterov"}, "lazy=1\nrate_behind_momentum=1\n"
    ),
    "AdamOptimizer": _Known(
        "adam", {"beta_1": "_beta1", "beta_2": "_beta2", "epsilon": "_epsilon"}, rate="_lr_t"
    ),
    "AdagradOptimizer": _Known(
        "adagrad", {"initial_accumulator_value": "_initial_accumulator_value"}, "epsilon=0\n"
    ),
    "RMSPropOptimizer": _Known(
        "rmsprop",
        {"rho": "_decay", "momentum": "_momentum", "epsilon": "_epsilon", "centered": "_centered"},
        "lazy=1\n",
    ),
}
_CAN = (
    f"Servers apply {', '.join(_OPTIMIZERS)} of tf.compat.v1.train, with learning rates of any kind and "
    "other numbers that stay, and Keras' SGD, Adam, AdamW, RMSprop and Adagrad"
)
# What makes the update; the rest is the worker's.
_UPDATING = (
    "_apply_dense",
    "_resource_apply_dense",
    "_apply_sparse",
    "_resource_apply_sparse",
    "_apply_sparse_duplicate_indices",
    "_resource_apply_sparse_duplicate_indices",
    "_create_slots",
    "_prepare",
    "_finish",
)


def rule_of(optimizer: Any) -> tuple[Rule, str]:
    """The rule of an optimizer of `tf.compat.v1.train`, and which attribute is the learning rate of a step,
    once that is prepared. Raises ConfigError for what servers cannot apply, with what they can."""
    name, known = _known(optimizer)
    lines = f"optimizer={known.name}\nschedule=pushed\n"
    for key, attribute in known.attributes.items():
        lines += f"{key}={_number(getattr(optimizer, attribute), attribute.strip('_'), name)!r}\n"
    return Rule(lines + known.fixed), known.rate


def slots_of(rule: Rule, values: Mapping[str, Array]) -> list[dict[str, Array]]:
    """What the optimizer has beside its variables before its first step, by slot; none where servers begin so
    by themselves."""
    names = rule.slot_names() if "optimizer=rmsprop" in rule.text else []
    return [
        {key: np.full_like(value, 1 if slot == "velocity" else 0) for key, value in values.items()}
        for slot in names
    ]


def _known(optimizer: Any) -> tuple[str, _Known]:
    for base in type(optimizer).__mro__:
        known = _OPTIMIZERS.get(base.__name__)
        if known is None or not base.__module__.startswith("tensorflow."):
            continue
        own = [name for name in _UPDATING if getattr(type(optimizer), name) is not getattr(base, name)]
        if own:
            raise ConfigError(
                f"{type(optimizer).__name__} changes {' and '.join(own)} of {base.__name__}: a server cannot "
                f"know how. {_CAN}."
            )
        return base.__name__, known
    raise ConfigError(f"an optimizer of class {type(optimizer).__name__} cannot be applied. {_CAN}.")


def _number(value: Any, what: str, name: str) -> float:
    if isinstance(value, (bool, int, float, np.number)):
        return float(value)
    raise ConfigError(
        f"{name} has a {what} of class {type(value).__name__}, which servers cannot compute: give a number. "
        f"{_CAN}."
    )
