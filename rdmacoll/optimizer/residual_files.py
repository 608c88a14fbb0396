"""Residuals in files of Keras 3. A file has them beside the plain optimizer's variables, so a process that
does not know them loads it, too."""

from __future__ import annotations

import weakref
from typing import Any

from keras.src.saving.keras_saveable import KerasSaveable

from rdmacoll.optimizer.residuals import residual_of, set_residual


class SavedResiduals(KerasSaveable):  # type: ignore[misc]
    """A part of an optimizer, which Keras finds among its attributes, saves and loads."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)

    def _obj_type(self) -> str:
        return "Loss"  # one of the types that Keras knows; it chooses which attributes Keras looks at

    def save_own_variables(self, store: Any) -> None:
        """Keeps the residuals under the numbers of their variables."""
        for number, variable in enumerate(self._variables()):
            found = residual_of(variable)
            if found is not None:
                store[str(number)] = found.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Gives the variables their residuals of a file."""
        for number, variable in enumerate(self._variables()):
            if str(number) in store:
                set_residual(variable, store[str(number)])

    def _variables(self) -> list[Any]:
        return list(getattr(self._optimizer(), "_trainable_variables", ()))
