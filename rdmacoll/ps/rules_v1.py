"""The rules of TensorFlow 1's optimizers, `tf.compat.v1.train`. They compute the same as Keras', but

- Adagrad has no epsilon;
- RMSProp's averages of squares begin with ones;
- momentum and RMSProp leave rows without a gradient unchanged;
- momentum accumulates gradients, and the learning rate is applied after it.

The rate comes with each push: it may be a tensor, which the worker's graph computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rdmacoll._abi.arguments import Array
from rdmacoll.errors import ConfigError
from rdmacoll.ps.rules import Rule


class _KnownOptimizer(NamedTuple):
    name: str  # the server's name for it
    attributes: Mapping[str, str]  # the optimizer's attribute for each of the server's keys
    fixed: str = ""  # lines that are always in the record
    rate: str = "_learning_rate_tensor"  # the optimizer's attribute, which `_prepare` sets


_OPTIMIZERS: Mapping[str, _KnownOptimizer] = {
    "GradientDescentOptimizer": _KnownOptimizer("sgd", {}),
    "MomentumOptimizer": _KnownOptimizer(
        "sgd", {"momentum": "_momentum", "nesterov": "_use_nesterov"}, "lazy=1\nrate_behind_momentum=1\n"
    ),
    "AdamOptimizer": _KnownOptimizer(
        "adam", {"beta_1": "_beta1", "beta_2": "_beta2", "epsilon": "_epsilon"}, rate="_lr_t"
    ),
    "AdagradOptimizer": _KnownOptimizer(
        "adagrad", {"initial_accumulator_value": "_initial_accumulator_value"}, "epsilon=0\n"
    ),
    "RMSPropOptimizer": _KnownOptimizer(
        "rmsprop",
        {"rho": "_decay", "momentum": "_momentum", "epsilon": "_epsilon", "centered": "_centered"},
        "lazy=1\n",
    ),
}
_CAN = (
    f"Servers apply {', '.join(_OPTIMIZERS)} of tf.compat.v1.train, with learning rates of any kind and "
    "other numbers that stay, and Keras' SGD, Adam, AdamW, RMSprop and Adagrad"
)
# Methods that make the update. The worker runs the other methods.
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
    """The rule of an optimizer of `tf.compat.v1.train`, and the attribute with a step's learning rate.

    The attribute is set once the step is prepared. Raises ConfigError for an optimizer that servers cannot
    apply, with a list of those that they can.
    """
    name, known = _known_optimizer(optimizer)
    lines = f"optimizer={known.name}\nschedule=pushed\n"
    for key, attribute in known.attributes.items():
        lines += f"{key}={_number(getattr(optimizer, attribute), attribute.strip('_'), name)!r}\n"
    return Rule(lines + known.fixed), known.rate


def slots_of(rule: Rule, values: Mapping[str, Array]) -> list[dict[str, Array]]:
    """The optimizer's initial slots beside its variables, a dict for each slot.

    Empty if servers begin with the same values by themselves.
    """
    names = rule.slot_names() if "optimizer=rmsprop" in rule.text else []
    return [
        {key: np.full_like(value, 1 if slot == "velocity" else 0) for key, value in values.items()}
        for slot in names
    ]


def _known_optimizer(optimizer: Any) -> tuple[str, _KnownOptimizer]:
    for base in type(optimizer).__mro__:
        known = _OPTIMIZERS.get(base.__name__)
        if known is None or not base.__module__.startswith("tensorflow."):
            continue
        changed = [name for name in _UPDATING if getattr(type(optimizer), name) is not getattr(base, name)]
        if changed:
            raise ConfigError(
                f"{type(optimizer).__name__} changes {' and '.join(changed)} of {base.__name__}: servers "
                f"cannot apply these changes. {_CAN}."
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
