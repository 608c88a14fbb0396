"""Runs a program under mpirun with one device of RDMACOLL_DEVICE for each local rank.

Usage: own_device.py PROGRAM [ARGUMENT...]
"""

from __future__ import annotations

import os
import runpy
import sys

_DEVICES = os.environ["RDMACOLL_DEVICE"].split(",")
_LOCAL_RANK = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") or os.environ["MPI_LOCALRANKID"])

if __name__ == "__main__":
    os.environ["RDMACOLL_DEVICE"] = _DEVICES[_LOCAL_RANK % len(_DEVICES)]
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
