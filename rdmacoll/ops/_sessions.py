"""Sessions of TensorFlow 1: values of variables, and MonitoredTrainingSession, which makes a new session
after an error that it takes for a preemption.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from rdmacoll.ops._typed_errors import typed_errors


def raise_typed_errors() -> None:
    """Makes sessions raise our typed errors from `run`, so that these end the training. Otherwise a session
    takes the status of a failed rank for a preemption, and restarts for ever."""
    # These are internal to TensorFlow, and the same from 2.15 to 2.21.
    with contextlib.suppress(ImportError, AttributeError):
        from tensorflow.python.training.monitored_session import _CoordinatedSession

        for name in ("run", "run_step_fn"):
            setattr(_CoordinatedSession, name, _raising_typed(getattr(_CoordinatedSession, name)))


def _raising_typed(plain: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with typed_errors():
            return plain(*args, **kwargs)

    return run


def set_value(variable: Any, value: Any, session: Any) -> None:
    """Gives a variable its value in the session, also if the graph is final.

    `Variable.load` does the same, and warns that it is deprecated.
    """
    session.run(variable.initializer, {variable.initializer.inputs[1]: value})
