"""Runs the seeds of its input. It reads lines of "first end" and prints a line of JSON for each, until the
input ends."""

from __future__ import annotations

import json
import resource
import sys

from rdmacoll._abi.library import load
from rdmacoll.cli.seeds import CPU_LIMIT_S


def main() -> None:
    """The process ends by SIGXCPU if one line takes more than CPU_LIMIT_S of processor time."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    library = load()
    for line in sys.stdin:
        first, end = map(int, line.split())
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime) + CPU_LIMIT_S
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        _, fields = library.sim_faults(first, end, verbose=False)
        print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
