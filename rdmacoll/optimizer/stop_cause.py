"""Remembers which callback has ended `fit`, for the messages of ranks that go on and wait for this one."""

from __future__ import annotations

import inspect
from typing import Any

from rdmacoll._base.exit_cause import note_last_action


def note_begin() -> None:
    """Call it when a `fit` begins."""
    note_last_action("")


def note_end(callback: Any, model: Any) -> None:
    """Call it when `fit` ends, from the callback's on_train_end."""
    if not getattr(model, "stop_training", False):
        return
    callbacks = callbacks_of_fit(callback)
    epochs = [one.epoch for one in callbacks if type(one).__name__ == "History" and one.epoch]
    names = _stoppers(callbacks)
    place = "in" if names == ["TerminateOnNaN"] else "after"  # it stops at a batch, others at an epoch's end
    epoch = f" {place} epoch {epochs[0][-1] + 1}" if epochs else ""
    note_last_action(f"{' or '.join(names)} had stopped fit{epoch}: {_cure(names)}")


def callbacks_of_fit(callback: Any) -> list[Any]:
    """All callbacks of this `fit`. Keras has no function for them, so they come from the list that calls
    this callback."""
    frame = inspect.currentframe()
    while frame is not None:
        found = getattr(frame.f_locals.get("self"), "callbacks", None)
        if isinstance(found, list) and any(one is callback for one in found):
            return found
        frame = frame.f_back
    return []


def _stoppers(callbacks: list[Any]) -> list[str]:
    """The class of the callback that has ended `fit`, or of those that may have."""
    known = [one for one in callbacks if getattr(one, "stopped_epoch", 0)]
    foreign = [one for one in callbacks if type(one).__module__.partition(".")[0] not in _KNOWN_PACKAGES]
    found = known or [one for one in callbacks if type(one).__name__ == "TerminateOnNaN"] or foreign
    return list(dict.fromkeys(type(one).__name__ for one in found)) or ["a callback"]


# Packages whose other callbacks never end `fit`.
_KNOWN_PACKAGES = ("keras", "tf_keras", "rdmacoll")


def _cure(names: list[str]) -> str:
    if names == ["TerminateOnNaN"]:
        return "it sees its own rank's loss alone, so stop by averaged metrics at an epoch's end"
    pronoun = "it" if len(names) == 1 else "them"
    return f"put MetricAverageCallback before {pronoun}, so that all ranks stop together"
