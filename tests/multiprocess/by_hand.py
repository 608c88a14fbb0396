"""One process of a run that is started by hand: its flags say which. PLACE is its rank in the job; it reports
the sum it got, that it has served, or its error."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
from ranks import report

import rdmacoll
from rdmacoll.engine import patience

patience.REPORT_EVERY_S = 0.3
place = int(os.environ["PLACE"])
try:
    rdmacoll.init(argv=True, **json.loads(os.environ.get("ARGUMENTS", "{}")))
except SystemExit:
    report([name for name in ("tensorflow", "mpi4py.MPI") if name in sys.modules], rank=place)
    raise
except rdmacoll.RdmacollError as error:
    report([type(error).__name__, str(error)], rank=place)
    raise
got = rdmacoll.push_pull(np.full(1000, rdmacoll.rank() + 1.0), rdmacoll.Sum)
ends = [float(got[0]), float(got[-1])]
report({"rank": rdmacoll.rank(), "size": rdmacoll.size(), "ends": ends, "argv": sys.argv[1:]}, rank=place)
