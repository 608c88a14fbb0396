"""What `rdmacoll sim scale` predicts, beside what is measured: allreduces of network namespaces whose cables
are shaped. Needs root.

    PYTHONPATH=$PWD:$PWD/tests python benchmarks/scale_check.py [--hosts 2,4,8] [--gbit 1] [--json FILE]

The links' own figures are measured in the same run, by plain TCP in a ring of as many hosts: the time of a
hop of a small message while every host sends one to the next, and what each stream carries while every host
sends and adds half of what it gets, as in an allreduce. These are less than the shaped cables give where the
machine's processors, which carry all hosts and their network, are the limit; so are the rates at which numpy
copies and adds while all hosts do. From these alone the model predicts. Each time is the median of a number
of calls, from the moment at which the last rank begins until the last one has ended.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from ranks import run

from rdmacoll.benchmarks.hosts import Hosts
from rdmacoll.cli.report import bytes_text, parse_bytes
from rdmacoll.engine.scale import Link, Model, simulate

# The processor's part of a hop, at each end.
_OVERHEAD_SHARE = 0.2

LINK = """
import os, socket, statistics, sys, threading, time
import numpy as np
from ranks import report
rank, size, volume = int(os.environ["RDMACOLL_RANK"]), int(os.environ["RDMACOLL_SIZE"]), int(sys.argv[1])
server = socket.create_server((f"10.77.0.{rank + 1}", 6100))
for attempt in range(400):
    try:
        after = socket.create_connection((f"10.77.0.{(rank + 1) % size + 1}", 6100))
        break
    except OSError:
        time.sleep(0.05)
before = server.accept()[0]
after.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
small = bytearray(64)
def pass_on():
    begin = time.perf_counter()
    for _ in range(size):
        after.sendall(small)
        assert before.recv_into(small, 64, socket.MSG_WAITALL) == 64
    return time.perf_counter() - begin
hops = [pass_on() / size for turn in range(220)][20:]
rates = []
data, into = bytearray(1 << 20), bytearray(1 << 20)
a, b = np.ones(1 << 18, np.float32), np.frombuffer(into, np.float32)
def send():
    for _ in range(volume >> 20):
        after.sendall(data)
for turn in range(3):
    pass_on()
    sender = threading.Thread(target=send)
    begin = time.perf_counter()
    sender.start()
    for part in range(volume >> 20):
        assert before.recv_into(into, len(into), socket.MSG_WAITALL) == len(into)
        if part % 2:
            np.add(a, b, out=a)
    rates.append(volume / (time.perf_counter() - begin))
    sender.join()
def rate(work):
    begin = time.perf_counter()
    for _ in range(200):
        work()
    return 200 * a.nbytes / (time.perf_counter() - begin) / 1e6
report({"one_way_us": statistics.median(hops) * 1e6, "bytes_per_us": statistics.median(rates) / 1e6,
        "copy": rate(lambda: np.copyto(a, b)), "sum": rate(lambda: np.add(a, b, out=a))}, rank=rank)
"""

ALLREDUCE = """
import json, statistics, sys, time
import numpy as np, rdmacoll
from rdmacoll import engine
from ranks import report
rdmacoll.init()
found = {}
for size, calls in json.loads(sys.argv[1]):
    data = np.empty(size // 4, np.float32)
    times = []
    for call in range(calls + 5):
        data[:] = rdmacoll.rank() + 1
        engine.barrier()
        begin = time.perf_counter()
        result = engine.allreduce(data, op=rdmacoll.Sum, name="data", out=data)
        # All namespaces have the machine's clock.
        last = engine.allreduce(np.array([begin, time.perf_counter()]), op=rdmacoll.Max)
        assert data.min() == data.max() == rdmacoll.size() * (rdmacoll.size() + 1) / 2
        if call >= 5:
            times.append(float(last[1] - last[0]))
    found[str(size)] = [statistics.median(times), min(times), max(times)]
report(found)
rdmacoll.shutdown()
"""


def measured_model(hosts: Hosts, ranks: int, volume: int) -> tuple[Model, dict[str, float]]:
    """The model with what plain TCP and numpy do here, and these figures."""
    where = hosts.prefixes(list(range(ranks)))
    reports = run(LINK, ranks, arguments=[str(volume)], prefix_of=where).succeeded()
    found = {key: sum(report[key] for report in reports) / ranks for key in reports[0]}
    overhead = _OVERHEAD_SHARE * found["one_way_us"]
    link = Link(found["one_way_us"] - 2 * overhead, overhead, overhead / 4, found["bytes_per_us"])
    model = Model(link, is_rdma=False, copy_bytes_per_us=found["copy"], reduce_bytes_per_us=found["sum"])
    return model, found


def compare(hosts: Hosts, ranks: int, sizes: list[int], calls: int, model: Model) -> list[dict[str, Any]]:
    """A row for each size."""
    wanted = json.dumps([[size, calls] for size in sizes])
    reports = run(
        ALLREDUCE,
        ranks,
        arguments=[wanted],
        prefix_of=hosts.prefixes(list(range(ranks))),
        rendezvous="10.77.0.1:5099",
        deadline_s=170,
    ).succeeded()
    rows = []
    for size in sizes:
        seconds, least, most = reports[0][str(size)]
        predicted = simulate(model, ranks=ranks, operations=[(size, 0.0)])["time_us"] / 1e6
        rows.append(
            {
                "ranks": ranks,
                "bytes": size,
                "measured_s": seconds,
                "measured_s_min": least,
                "measured_s_max": most,
                "predicted_s": predicted,
                "deviation": predicted / seconds - 1,
            }
        )
    return rows


def main() -> None:
    """Exits with 1 where a prediction is further off than --within."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="2,4,8")
    parser.add_argument("--sizes", default="1M,4M,16M")
    parser.add_argument("--gbit", type=float, default=1.0)
    parser.add_argument("--calls", type=int, default=9)
    parser.add_argument("--within", type=float, default=0.15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    worlds = [int(count) for count in options.hosts.split(",")]
    sizes = [parse_bytes(size) for size in options.sizes.split(",")]
    hosts = Hosts(max(2, *worlds))
    rows: list[dict[str, Any]] = []
    links: dict[int, dict[str, float]] = {}
    try:
        hosts.open()
        hosts.shape(options.gbit, both_ways=True, queue_ms=400)
        print(f"{options.gbit:g} Gbit/s, {os.cpu_count()} cores")
        print(
            f"{'ranks':>6}{'bytes':>8}{'measured ms':>14}{'min':>10}{'max':>10}{'predicted':>12}{'off by':>9}"
        )
        for ranks in worlds:
            model, link = measured_model(hosts, ranks, int(16 * options.gbit + 1) << 20)
            links[ranks] = link
            print(
                f"{ranks:>6} hosts, plain TCP in a ring: {link['one_way_us']:.1f} us a hop, "
                f"{link['bytes_per_us']:.1f} MB/s a link; "
                f"numpy copies {link['copy']:.0f} and adds {link['sum']:.0f}"
            )
            for row in compare(hosts, ranks, sizes, options.calls, model):
                rows.append(row)
                print(
                    f"{ranks:>6}{bytes_text(row['bytes']):>8}{row['measured_s'] * 1e3:>14.2f}"
                    f"{row['measured_s_min'] * 1e3:>10.2f}{row['measured_s_max'] * 1e3:>10.2f}"
                    f"{row['predicted_s'] * 1e3:>12.2f}{row['deviation'] * 100:>8.1f}%",
                    flush=True,
                )
    finally:
        hosts.close()
    ok = all(abs(row["deviation"]) <= options.within for row in rows)
    if options.json:
        fields = {"command": "scale_check", "ok": ok, "machine": platform.platform(), "cores": os.cpu_count()}
        options.json.write_text(
            json.dumps({**fields, "gbit": options.gbit, "links": links, "rows": rows}, indent=1)
        )
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
