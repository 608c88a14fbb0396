"""The update rule of a parameter server: the user's Keras optimizer, as a plain record.

The record is a text of lines "key=value", with the names of Keras' arguments. cpp/ps/update_rule.h reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rdmacoll._abi.arguments import Array, address_of
from rdmacoll._abi.library import load
from rdmacoll._ps.session import DTYPES
from rdmacoll.errors import ConfigError

# Keras' classes, the servers' names for them, and the arguments that the record holds.
_ADAM = ("beta_1", "beta_2", "epsilon", "amsgrad")
_OPTIMIZERS: Mapping[str, tuple[str, Sequence[str]]] = {
    "SGD": ("sgd", ("momentum", "nesterov")),
    "Adam": ("adam", _ADAM),
    "AdamW": ("adam", _ADAM),
    "RMSprop": ("rmsprop", ("rho", "momentum", "epsilon", "centered")),
    "Adagrad": ("adagrad", ("initial_accumulator_value", "epsilon")),
}
_SCHEDULES: Mapping[str, tuple[str, Sequence[str]]] = {
    "ExponentialDecay": (
        "exponential_decay",
        ("initial_learning_rate", "decay_steps", "decay_rate", "staircase"),
    ),
    "PiecewiseConstantDecay": ("piecewise_constant_decay", ("boundaries", "values")),
    "CosineDecay": (
        "cosine_decay",
        ("initial_learning_rate", "decay_steps", "alpha", "warmup_target", "warmup_steps"),
    ),
    "CosineDecayRestarts": (
        "cosine_decay_restarts",
        ("initial_learning_rate", "first_decay_steps", "t_mul", "m_mul", "alpha"),
    ),
    "PolynomialDecay": (
        "polynomial_decay",
        ("initial_learning_rate", "decay_steps", "end_learning_rate", "power", "cycle"),
    ),
    "InverseTimeDecay": (
        "inverse_time_decay",
        ("initial_learning_rate", "decay_steps", "decay_rate", "staircase"),
    ),
}
# Arguments that servers do not support, each with an alternative.
_REFUSED = {
    "clipnorm": "a server with a part of a gradient does not know its norm; clip by value (clipvalue), "
    "or clip gradients before they are pushed, as DistributedOptimizer does",
    "global_clipnorm": "no server sees all gradients; clip by value (clipvalue), or clip gradients before "
    "they are pushed, as DistributedOptimizer does",
    "use_ema": "servers keep no moving average of weights; leave it out",
    "gradient_accumulation_steps": "servers update at each push; push sums of gradients instead",
    "loss_scale_factor": "servers take gradients as they are; divide them before they are pushed",
}
_CLIPPING = ("clipnorm", "global_clipnorm")
_CAN = (
    f"Servers apply Keras' {', '.join(_OPTIMIZERS)}, but no legacy ones; learning rates are numbers or "
    f"{', '.join(_SCHEDULES)}"
)


@dataclass(frozen=True)
class Rule:
    """An update rule. `text` is its record. `rule_of` makes a rule from a Keras optimizer."""

    text: str

    def slot_names(self) -> list[str]:
        """The names of a server's slots for each variable, in order. Raises ConfigError."""
        return load().ps_rule_slots(self.text)[0]

    def slots(self, values: Array) -> dict[str, Array]:
        """A server's initial slots for `values`: arrays of the same shape and dtype.

        Raises ConfigError if servers do not support the record.
        """
        names, initial = load().ps_rule_slots(self.text)
        return {name: np.full_like(values, initial) for name in names}

    def apply(
        self,
        values: Array,
        slots: Mapping[str, Array],
        gradient: Array,
        *,
        step: int,
        decays: bool = True,
        learning_rate: float | None = None,
    ) -> None:
        """Updates `values` and `slots` in place, as a server does.

        step: the number of this update of this variable, from 0. All arrays have one shape, are float32 or
        float64, and C-contiguous. decays: whether the rule's weight decay applies to this variable.
        learning_rate: the rate of the push, or None: the rule's. Raises ConfigError.
        """
        names, _ = load().ps_rule_slots(self.text)
        if set(slots) != set(names):
            raise ConfigError(f"slots are {sorted(slots)}, and those of this rule {names}: give these.")
        arrays = [values, *slots.values(), gradient]
        if any(a.dtype != values.dtype or a.shape != values.shape for a in arrays):
            shapes = ", ".join(f"{a.dtype}{list(a.shape)}" for a in arrays)
            raise ConfigError(f"values, slots and gradient are {shapes}: give them one shape and dtype.")
        if values.dtype not in DTYPES or not all(a.flags.c_contiguous for a in arrays):
            raise ConfigError(
                f"arrays of {values.dtype} to update: give float32 or float64, C-contiguous in memory."
            )
        load().ps_update(
            self.text,
            dtype=DTYPES[values.dtype],
            step=step,
            decays=decays,
            count=values.size,
            values=address_of(values),
            slots=[address_of(slots[name]) for name in names],
            gradient=address_of(gradient),
            rate=learning_rate,
        )


def rule_of(optimizer: Any, variables: Iterable[Any] = (), *, is_clipped: bool = False) -> Rule:
    """The rule of an optimizer of Keras 3 or Keras 2: its class, its numbers, its learning rate or schedule.

    variables: the variables that it will update; a constraint on any of them is refused. is_clipped:
    gradients arrive clipped, so the rule omits clipping. Raises ConfigError for an optimizer that servers
    cannot apply, with a list of those that they can.
    """
    name, keys = _known_class(optimizer)
    config = optimizer.get_config()
    for key, cure in _REFUSED.items():
        if config.get(key) and not (is_clipped and key in _CLIPPING):
            raise ConfigError(f"{type(optimizer).__name__} has {key}={config[key]}: {cure}. {_CAN}.")
    for variable in variables:
        if getattr(variable, "constraint", None) is not None:
            raise ConfigError(
                f"variable {getattr(variable, 'path', variable.name)} has a constraint, which servers do not "
                f"apply. {_CAN}."
            )
    lines = [("optimizer", name), *_learning_rate(config["learning_rate"])]
    keys_to_send = [*keys, "weight_decay", *(() if is_clipped else ["clipvalue"])]
    lines += [(key, _number(config[key])) for key in keys_to_send if config.get(key)]
    # Arguments that are off must be in the record, since the server's default may be on.
    lines += [(key, "0") for key in keys if not config.get(key)]
    return Rule("".join(f"{key}={value}\n" for key, value in lines))


def _known_class(optimizer: Any) -> tuple[str, Sequence[str]]:
    for known in type(optimizer).__mro__:
        if known.__module__.startswith(("keras.", "tf_keras.")) and known.__name__ in _OPTIMIZERS:
            if ".legacy." in known.__module__ or getattr(optimizer, "adaptive_epsilon", False):
                break
            changed = [name for name in ("update_step", "build") if _differs(optimizer, known, name)]
            if changed:
                raise ConfigError(
                    f"{type(optimizer).__name__} changes {' and '.join(changed)} of {known.__name__}: "
                    f"servers cannot apply these changes. {_CAN}."
                )
            return _OPTIMIZERS[known.__name__]
    legacy = "legacy " if ".legacy." in type(optimizer).__module__ else ""
    raise ConfigError(f"an optimizer of class {legacy}{type(optimizer).__name__} cannot be applied. {_CAN}.")


def _differs(optimizer: Any, known: type, name: str) -> bool:
    return getattr(type(optimizer), name) is not getattr(known, name)


def _learning_rate(rate: Any) -> list[tuple[str, str]]:
    """The learning rate's lines of the record, from an optimizer's `get_config()`."""
    if isinstance(rate, (int, float, np.floating)):
        return [("schedule", "constant"), ("initial_learning_rate", _number(rate))]
    name = str(rate.get("class_name")) if isinstance(rate, Mapping) else type(rate).__name__
    if not isinstance(rate, Mapping) or name not in _SCHEDULES or rate.get("registered_name"):
        raise ConfigError(f"a learning rate of class {name} cannot be computed by servers. {_CAN}.")
    schedule, keys = _SCHEDULES[name]
    config = rate["config"]
    if config.get("warmup_target") is not None and not config["warmup_steps"]:
        config = {**config, "initial_learning_rate": config["warmup_target"]}  # as in Keras
    lines = [("schedule", schedule)]
    for key in keys:
        value = config[key]
        if key == "warmup_steps" and config["warmup_target"] is None:
            continue  # Keras ignores warmup_steps without a target
        if isinstance(value, (list, tuple)):
            lines.append((key, ",".join(map(_number, value))))
        elif value is not None:
            lines.append((key, _number(value)))
    return lines


def _number(value: Any) -> str:
    # All digits, so that the server has the same number.
    return repr(float(value))
