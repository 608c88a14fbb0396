"""Hooks for the sessions of TensorFlow 1."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from rdmacoll.engine.process_set import ProcessSet, global_process_set
from rdmacoll.ops._arguments import check_root
from rdmacoll.ops._library import typed_errors
from rdmacoll.ops.broadcast import broadcast_global_variables


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Gives all ranks the global variables of rank `root_rank` when a session begins, initialised or
    restored: `MonitoredTrainingSession(hooks=[rdmacoll.BroadcastGlobalVariablesHook(0)])`.

    Only rank `root_rank` needs the checkpoint that training goes on from. Other hooks that create variables
    come before this one. process_set: whose ranks train together; nothing happens on other ranks.
    """

    def __init__(self, root_rank: int = 0, *, process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self.root_rank = check_root(root_rank)
        self.process_set = process_set
        self._broadcast: Any = None

    def begin(self) -> None:
        """The graph is complete, and not final yet."""
        if self.process_set.included():
            self._broadcast = broadcast_global_variables(self.root_rank, process_set=self.process_set)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """The variables have their values."""
        # Typed, since the session would take the status of a rank that failed for a reason to try again.
        with typed_errors():
            if self._broadcast is not None:
                session.run(self._broadcast)
