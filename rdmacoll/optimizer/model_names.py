"""Names of models that train at the same time. A name is the same on all ranks, and no two models share one.

The main thread runs one program on all ranks, so its models are numbered in that order. Other threads have no
common order, so their models are identified by the names and shapes of their variables.
"""

from __future__ import annotations

import itertools
import threading
import weakref
import zlib
from collections.abc import Sequence
from typing import Any, NoReturn

from rdmacoll.errors import UNNAMED
from rdmacoll.ops._labels import label_of, without_counters
from rdmacoll.ops._name_claims import NameClaims, refuse, threads_text
from rdmacoll.ops._names import in_replica, replica_count

_CLAIMS = NameClaims()


def is_main_thread() -> bool:
    """Whether this is the thread that runs the program."""
    return threading.current_thread() is threading.main_thread()


def content_of(variables: Sequence[Any]) -> str:
    """A digest of names and shapes that does not depend on their order. Ranks that list the same variables
    in another order have to meet, so that they get an error. In threads of replicas the digest covers
    shapes alone. Such a thread may work for the main thread, whose ranks may give equal variables
    different names."""
    labels = ["" if replica_count() > 1 else without_counters(label_of(one)) for one in variables]
    shapes = (str(getattr(variable, "shape", "")) for variable in variables)
    dtypes = (str(getattr(variable, "dtype", "")) for variable in variables)
    rows = sorted(zip(labels, shapes, dtypes))
    return f"{zlib.crc32(repr(rows).encode()):08x}"


def by_content(name: str, variables: Sequence[Any]) -> str:
    """The name of a model in another thread that the program has not named. Messages show that it has no
    name of its own."""
    return f"{name} {UNNAMED} of {content_of(variables)}"


class Numbers:
    """Numbers the main thread's models by their variables."""

    def __init__(self) -> None:
        self._next = itertools.count()
        self._numbers_of: dict[Any, tuple[int, list[weakref.ref[Any]]]] = {}

    def number(self, variables: Sequence[Any]) -> int:
        """The number of the model with these variables: the number of different models before it. Tensors
        are new at each step, so they are compared by their shapes."""
        are_variables = all(hasattr(variable, "assign") for variable in variables)
        # The order does not matter: ranks with another order have to meet, so that they get an error.
        key: Any = tuple(sorted(map(id, variables))) if are_variables else content_of(variables)
        number, references = self._numbers_of.get(key, (-1, []))
        if number < 0 or any(reference() is None for reference in references):
            number = next(self._next)
            references = [weakref.ref(variable) for variable in variables] if are_variables else []
            self._numbers_of[key] = number, references
        return number


_TAPES: dict[str, Numbers] = {}


def own_name(name: str, variables: Sequence[Any], reducer: Any) -> str:
    """The name of an optimizer that was given a name or a number. Raises ConfigError as `claim_name`."""
    return claim_name(name, variables, [reducer])


def name_in_thread(name: str, variables: Sequence[Any], reducer: Any) -> str:
    """The name of an optimizer that another thread than the main one has wrapped. Raises ConfigError as
    `claim_name`."""
    return claim_name(by_content(name, variables), variables, [reducer])


def name_of_tape(name: str, variables: Sequence[Any], _: Any) -> str:
    """The name of a tape that was given none. A tape is new at each step. Raises ConfigError as
    `claim_name`."""
    if not is_main_thread():
        return claim_name(by_content(name, variables), variables, variables)
    number = _TAPES.setdefault(name, Numbers()).number(variables)
    return f"{name}_{number}" if number else name


def name_of_named_tape(name: str, variables: Sequence[Any], _: Any) -> str:
    """The name of a tape that was given one. Raises ConfigError as `claim_name`."""
    return claim_name(name, variables, variables)


def claim_name(name: str, variables: Sequence[Any], objects: Sequence[Any]) -> str:
    """Returns the name. Raises ConfigError, and ends the world, if another living thread reduces gradients
    of other things under this name."""
    other = _CLAIMS.claim(in_replica(name), objects)
    if other is not None:
        _refuse(other, name, variables)
    return name


def _refuse(other: str, name: str, variables: Sequence[Any]) -> NoReturn:
    labels = [label for label in map(label_of, variables[:3]) if label]
    inside = f" ({', '.join(labels)}{', ...' if len(variables) > 3 else ''})" if labels else ""
    refuse(
        f"{threads_text(other)} reduce gradients of different models as {name!r}{inside}, and a rank could "
        "confuse the two models. Give each of them a name of its own, the same on all ranks: "
        'DistributedGradientTape(tape, name="actor"), or DistributedOptimizer(optimizer, name="actor").'
    )
