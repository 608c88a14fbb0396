"""The errors of rdmacoll, as a small tree under `RdmacollError`.

The code that first sees the cause writes the message, mostly in the C++ engine. Here it only gets its class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Part of an operation's name, if another thread than the main one trains a model under no name of its own.
UNNAMED = "without name="
_UNNAMED_CURE = (
    " Ranks match such a model of a thread by the names and shapes of its variables. Give all ranks the same "
    'model, or name its optimizer or tape: DistributedOptimizer(optimizer, name="actor").'
)

# Part of the name of an operation without `name` in a tf.function.
_IN_FUNCTION = re.compile(r"/collective_\d+\b")
_IN_FUNCTION_CURE = (
    " Operations without a name are matched by their place in the outermost tf.function: give them name= if "
    "ranks call or trace their functions differently."
)


class RdmacollError(RuntimeError):
    """Any error that rdmacoll reports. The message holds the event, the values and the cure."""

    # Eager TensorFlow ops raise errors that are also of a class of TensorFlow. This is the error without it.
    of_own_class: RdmacollError | None = None

    def plain(self) -> RdmacollError:
        """The error with its own class alone."""
        return self if self.of_own_class is None else self.of_own_class


class NotInitializedError(RdmacollError, ValueError):
    """A call that needs a world came before `init()` or after `shutdown()`."""


class ConfigError(RdmacollError, ValueError):
    """A wrong argument, setting or environment. The message names the variable, its value and the range."""

    # Ranks that this one could not meet in time at the start of a world.
    unmet_ranks: tuple[int, ...] = ()


class MismatchError(RdmacollError):
    """Ranks disagree about a tensor: its shape, dtype, operator, root, or the operation itself."""


class DuplicateNameError(RdmacollError):
    """An explicit name was submitted again while the first operation of that name was in flight."""


class RankFailedError(RdmacollError):
    """Another rank died, left or stopped answering. `.rank`, `.host` and `.cause` name it and the reason."""

    def __init__(self, message: str = "", *, rank: int = -1, host: str = "", cause: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.host = host
        self.cause = cause


class StalledError(RdmacollError):
    """Some ranks, `.missing_ranks`, never submitted `.tensor`."""

    def __init__(self, message: str = "", *, tensor: str = "", missing_ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.tensor = tensor
        self.missing_ranks = tuple(missing_ranks)


class ShutdownError(RdmacollError):
    """The operation was still pending when this rank's engine was shut down."""


_CLASSES: Mapping[str, type[RdmacollError]] = {
    cls.__name__: cls
    for cls in (
        RdmacollError,
        NotInitializedError,
        ConfigError,
        MismatchError,
        DuplicateNameError,
        RankFailedError,
        StalledError,
        ShutdownError,
    )
}
# A kernel's status holds only text, so kernels append the other fields after this mark. No other code writes
# it.
_MARK = re.compile(r"\s*\[rdmacoll (?=\{)")
_KIND = re.compile(r"\b(" + "|".join(_CLASSES) + r"): ")


def _build(kind: str, message: str, detail: Mapping[str, Any]) -> RdmacollError:
    cls = _CLASSES.get(kind, RdmacollError)
    if cls is RankFailedError:
        return RankFailedError(
            message,
            rank=int(detail.get("rank", -1)),
            host=str(detail.get("host", "")),
            cause=str(detail.get("cause", "")),
        )
    if cls is StalledError:
        missing = [int(rank) for rank in detail.get("ranks", ())]
        tensor = str(detail.get("tensor", ""))
        cure = (
            _UNNAMED_CURE if UNNAMED in tensor else _IN_FUNCTION_CURE if _IN_FUNCTION.search(tensor) else ""
        )
        cure = "" if cure in message else cure
        return StalledError(message.rstrip() + cure, tensor=tensor, missing_ranks=missing)
    if cls is ConfigError and "unmet" in detail:
        return unmet_error(message, [int(rank) for rank in detail["unmet"]])
    return cls(message)


def unmet_error(message: str, ranks: Iterable[int]) -> ConfigError:
    """The error of a start in which some ranks were not met."""
    error = ConfigError(message)
    error.unmet_ranks = tuple(sorted(ranks))
    return error


def error_from_json(text: str) -> RdmacollError:
    """The typed error for the JSON that crosses the C boundary.

    >>> error = error_from_json('{"kind": "RankFailedError", "message": "rank 3 left", "rank": 3}')
    >>> type(error).__name__, error.rank, str(error)
    ('RankFailedError', 3, 'rank 3 left')
    """
    try:
        fields = json.loads(text)
    except ValueError:
        return RdmacollError(text)
    if not isinstance(fields, dict):
        return RdmacollError(text)
    return _build(str(fields.get("kind", "")), str(fields.get("message", text)), fields)


def error_to_fields(error: BaseException) -> dict[str, Any]:
    """The fields that `error_from_json` reads. A rank sends them to the others when its start fails."""
    if not isinstance(error, RdmacollError):
        return {"kind": "RdmacollError", "message": f"{type(error).__name__}: {error}"}
    fields: dict[str, Any] = {"kind": type(error).__name__, "message": str(error)}
    if isinstance(error, RankFailedError):
        fields.update(rank=error.rank, host=error.host, cause=error.cause)
    if isinstance(error, StalledError):
        fields.update(tensor=error.tensor, ranks=list(error.missing_ranks))
    if isinstance(error, ConfigError) and error.unmet_ranks:
        fields.update(unmet=list(error.unmet_ranks))
    return fields


def _from_text(text: str) -> RdmacollError | None:
    mark = _MARK.search(text)
    if mark is None:
        return None
    try:
        fields, _ = json.JSONDecoder().raw_decode(text, mark.end())
    except ValueError:
        fields = {}
    # TensorFlow may put nodes and functions before the class.
    named = _KIND.search(text, 0, mark.start())
    if named is None:
        return _build(str(fields.get("kind", "")), str(fields.get("message", text)), fields)
    return _build(named.group(1), text[named.end() : mark.start()], fields)


def error_from(exception: BaseException | None) -> RdmacollError | None:
    """The typed error behind `exception`, or None when rdmacoll has no part in it.

    A kernel in a TensorFlow graph can only set a status, so the class and its attributes travel in the text.
    This function reads them back. It also searches the causes (`raise ... from`) of the exception.

    >>> error_from(RuntimeError('{{node a}} RankFailedError: rank 3 left. [rdmacoll {"rank": 3}]')).rank
    3
    >>> error_from(RuntimeError("another package's ConfigError: bad")) is None
    True
    """
    seen: set[int] = set()
    while exception is not None and id(exception) not in seen:
        seen.add(id(exception))
        if isinstance(exception, RdmacollError):
            return exception.plain()
        found = _from_text(str(exception))
        if found is not None:
            return found
        exception = exception.__cause__
    return None
