"""The argument `process_set` of collectives."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

from rdmacoll.ops._names import names_used
from rdmacoll.ops._process_sets import in_process_set
from rdmacoll.ops._refusals import announce_refusal
from rdmacoll.process_set import ProcessSet, global_process_set


def takes_process_set(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the argument `process_set`: the ranks that take part. A root_rank stays a rank of the world. If
    the function refuses a call, these ranks are told."""

    @functools.wraps(function)
    def wrapper(*args: Any, process_set: ProcessSet = global_process_set, **kwargs: Any) -> Any:
        if process_set is global_process_set:
            return run(args, kwargs)
        with in_process_set(process_set):
            return run(args, kwargs)

    def run(args: Any, kwargs: Any) -> Any:
        before = names_used()
        try:
            return function(*args, **kwargs)
        except Exception as error:
            announce_refusal(function, before, error, args, kwargs)
            raise

    signature = inspect.signature(function)
    option = inspect.Parameter(
        "process_set", inspect.Parameter.KEYWORD_ONLY, default=global_process_set, annotation="ProcessSet"
    )
    parameters = [*signature.parameters.values(), option]
    wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return wrapper
