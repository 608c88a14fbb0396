"""Marks programs that a rank starts: they are no ranks, and `init()` tells them so."""

from __future__ import annotations

from rdmacoll._start import bootstrap
from rdmacoll._start.bootstrap import clean_environment as clean_environment
from rdmacoll._world import world


def _mark(engine: int) -> None:
    running = world.current() if engine else None
    is_one_of_several = running is not None and running.topology[1] + running.servers > 1
    bootstrap.mark_children(world.rank() if is_one_of_several else None)


world.on_change(_mark)
