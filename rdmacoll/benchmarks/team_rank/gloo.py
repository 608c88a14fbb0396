"""Starts ranks of Horovod on Gloo: `python -m team_rank.gloo JSON`. Horovod's own launcher would use ssh for
other hosts. This one gets the prefix of a command for each host.

JSON: {"hosts": [[prefix of a command, ...], ...] one for each rank, "names": [a host's name for each rank],
"address": the address of rank 0's host, "interface", "command": [...]}
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def main() -> None:
    """Serves the rendezvous until all ranks have ended."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    options: dict[str, Any] = json.loads(sys.argv[1])
    names: list[str] = options["names"]
    slots = {name: names.count(name) for name in names}
    plan = get_host_assignments(
        parse_hosts(",".join(f"{name}:{count}" for name, count in slots.items())), len(names)
    )
    server = RendezvousServer(verbose=0)
    port = server.start()
    server.init(plan)
    processes = []
    for slot in plan:
        settings = {
            "HOROVOD_HOSTNAME": slot.hostname,
            "HOROVOD_RANK": slot.rank,
            "HOROVOD_SIZE": slot.size,
            "HOROVOD_LOCAL_RANK": slot.local_rank,
            "HOROVOD_LOCAL_SIZE": slot.local_size,
            "HOROVOD_CROSS_RANK": slot.cross_rank,
            "HOROVOD_CROSS_SIZE": slot.cross_size,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": options["address"],
            "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
            "HOROVOD_GLOO_IFACE": options["interface"],
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            # Ranks are stopped while others measure.
            "HOROVOD_GLOO_TIMEOUT_SECONDS": 3600,
        }
        variables = [f"{name}={value}" for name, value in settings.items()]
        processes.append(
            subprocess.Popen([*options["hosts"][slot.rank], "env", *variables, *options["command"]])
        )
    for process in processes:
        process.wait()
    server.stop()


if __name__ == "__main__":
    main()
