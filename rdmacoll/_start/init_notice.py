"""The notice of a rank to the agent of `rdmacoll run` that it waits in `init` for the others. So the launcher
can name a rank that ends without calling `init`."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping

from rdmacoll._start.launch import INIT_PIPE, Launch

_MESSAGE = struct.Struct("=I")  # as in rdmacoll/_launch/agent.py, which is apart from the package


def tell_launcher(variables: Mapping[str, str], launch: Launch) -> None:
    """Tells the agent that has started this rank, if one has, and if the world is the agent's."""
    pipe = variables.get(INIT_PIPE, "")
    place = (variables.get("RDMACOLL_RANK"), variables.get("RDMACOLL_SIZE"))
    if not pipe or place != (str(launch.rank), str(launch.size)):
        return
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # the agent has gone
        return
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        file.write(_MESSAGE.pack(launch.rank))
