"""Programs that a rank starts: they are no ranks, and hear so when they call `init()`."""

from __future__ import annotations

from rdmacoll.engine import bootstrap, world
from rdmacoll.engine.bootstrap import clean_environment as clean_environment


def _mark(engine: int) -> None:
    here = world.current() if engine else None
    is_one_of_several = here is not None and here.topology[1] + here.servers > 1
    bootstrap.mark_children(world.rank() if is_one_of_several else None)


world.on_change(_mark)
