"""The notice of a rank to the agent of `rdmacoll run` that it waits in `init` for the others. So the launcher
can name a rank that ends without calling `init`. In an elastic job the notice asks for a place in the next
world."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping

from rdmacoll._start.inherited import ELASTIC_WORKER
from rdmacoll._start.launch import INIT_PIPE, Launch

_MESSAGE = struct.Struct("=I")  # as in rdmacoll/_launch/agent.py, which is apart from the package


def tell_launcher(variables: Mapping[str, str], launch: Launch) -> None:
    """Tells the agent that has started this rank, if one has, and if the world is the agent's. A worker of an
    elastic job has told it before."""
    place = (variables.get("RDMACOLL_RANK"), variables.get("RDMACOLL_SIZE"))
    if place == (str(launch.rank), str(launch.size)) and ELASTIC_WORKER not in variables:
        write_notice(variables, launch.rank)


def write_notice(variables: Mapping[str, str], number: int) -> None:
    """Writes the number of a rank, or of a worker of an elastic job, to the agent's pipe, if there is one."""
    pipe = variables.get(INIT_PIPE, "")
    if not pipe:
        return
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # the agent has gone
        return
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        file.write(_MESSAGE.pack(number))
