"""Hooks for the sessions of TensorFlow 1."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from rdmacoll.ops._arguments import check_root
from rdmacoll.ops._typed_errors import typed_errors
from rdmacoll.ops.broadcast import broadcast_global_variables
from rdmacoll.process_set import ProcessSet, global_process_set


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Gives all ranks the global variables of rank `root_rank` when a session begins, initialised or
    restored: `MonitoredTrainingSession(hooks=[rdmacoll.BroadcastGlobalVariablesHook(0)])`.

    Only rank `root_rank` needs the checkpoint from which training continues. Put other hooks that create
    variables before this one. process_set: the ranks that train together. Nothing happens on other ranks.
    """

    def __init__(self, root_rank: int = 0, *, process_set: ProcessSet = global_process_set) -> None:
        # TensorFlow warns of a call of the base's initializer, which does nothing.
        self.root_rank = check_root(root_rank)
        self.process_set = process_set
        self._broadcast: Any = None

    def begin(self) -> None:
        """Adds the broadcast to the graph, which is complete and not yet final."""
        if self.process_set.included():
            self._broadcast = broadcast_global_variables(self.root_rank, process_set=self.process_set)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Broadcasts the variables, which have their values now."""
        # Typed errors, since a session would retry after the status of a failed rank.
        with typed_errors():
            if self._broadcast is not None:
                session.run(self._broadcast)
