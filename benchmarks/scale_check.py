"""What `rdmacoll sim scale` predicts, beside what is measured: allreduces of network namespaces whose cables
are shaped. Needs root.

    PYTHONPATH=$PWD:$PWD/tests python benchmarks/scale_check.py [--hosts 2,3,4,8] [--per-host 1] [--gbit 1]
        [--algorithms auto,ring] [--step resnet50] [--json FILE]

The links' own figures are measured in the same run, by plain TCP in a ring of as many hosts: the time of a
hop of a small message while every host sends one to the next, and what each stream carries while every host
sends and adds half of what it gets, as in an allreduce. These are less than the shaped cables give where the
machine's processors, which carry all hosts and their network, are the limit; so are the rates at which numpy
copies and adds while all hosts do. From these alone the model predicts. Each time is the median of a number
of calls, from the moment at which the last rank begins until the last one has ended. A step submits the
buckets of a model's gradients as a backward pass would have them, which waits instead of computing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ranks import run

from rdmacoll._abi.scale import Link, Model, simulate
from rdmacoll._base.text import bytes_text
from rdmacoll.benchmarks import gradients
from rdmacoll.benchmarks.hosts import Hosts
from rdmacoll.cli.bench_step import DEFAULT_BUCKET
from rdmacoll.cli.report import parse_bytes
from rdmacoll.cli.scale import step_of

# The processor's part of a hop, at each end.
_OVERHEAD_SHARE = 0.2
AUTO = "auto"
# Room for one packet of the largest size that TCP hands over. More would pass at once wherever a host had
# nothing to send, and not be in any model of a cable.
BURST_BYTES = 70_000
Operation = tuple[int, float]  # bytes, and when they are there, in us

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

SUMS = """
import json, statistics, sys, time
import numpy as np, rdmacoll
from rdmacoll import engine
from ranks import report
rdmacoll.init()
found = {}
for what, calls, operations in json.loads(sys.argv[1]):
    arrays = [np.empty(size // 4, np.float32) for size, _ in operations]
    times = []
    for call in range(calls + 5):
        for data in arrays:
            data[:] = rdmacoll.rank() + 1
        engine.barrier()
        begin = time.perf_counter()
        handles = []
        for number, (data, (_, ready_us)) in enumerate(zip(arrays, operations)):
            time.sleep(max(0.0, begin + ready_us / 1e6 - time.perf_counter()))
            handles.append(engine.allreduce_async(data, op=rdmacoll.Sum, name=f"data{number}", out=data))
        for handle in handles:
            handle.wait()
        # All namespaces have the machine's clock.
        last = engine.allreduce(np.array([begin, time.perf_counter()]), op=rdmacoll.Max)
        for data in arrays:
            assert data.min() == data.max() == rdmacoll.size() * (rdmacoll.size() + 1) / 2
        if call >= 5:
            times.append(float(last[1] - last[0]))
    found[what] = [statistics.median(times), min(times), max(times)]
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


@dataclass(frozen=True)
class World:
    """Hosts with as many ranks each, and the model of them."""

    hosts: Hosts
    count: int
    per_host: int
    model: Model

    @property
    def ranks(self) -> int:
        """Of all hosts."""
        return self.count * self.per_host


def compare(
    world: World, works: dict[str, list[Operation]], calls: int, algorithm: str
) -> list[dict[str, Any]]:
    """A row for each of the works; "auto" is what the engine chooses."""
    wanted = json.dumps([[what, calls, operations] for what, operations in works.items()])
    forced = None if algorithm == AUTO else algorithm
    reports = run(
        SUMS,
        world.ranks,
        arguments=[wanted],
        env={"RDMACOLL_ALLREDUCE_ALGORITHM": forced} if forced else {},
        prefix_of=world.hosts.prefixes([rank // world.per_host for rank in range(world.ranks)]),
        rendezvous="10.77.0.1:5099",
        deadline_s=170,
    ).succeeded()
    rows = []
    for what, operations in works.items():
        seconds, least, most = reports[0][what]
        found = simulate(
            world.model,
            ranks=world.ranks,
            per_node=world.per_host,
            operations=operations,
            algorithm=forced,
        )
        predicted = found["time_us"] / 1e6
        rows.append(
            {
                "hosts": world.count,
                "ranks": world.ranks,
                "algorithm": algorithm,
                "what": what,
                "measured_s": seconds,
                "measured_s_min": least,
                "measured_s_max": most,
                "predicted_s": predicted,
                "deviation": predicted / seconds - 1,
            }
        )
    return rows


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['ranks']:>6}{row['algorithm']:>20}{row['what']:>10}"
        f"{row['measured_s'] * 1e3:>14.2f}{row['measured_s_min'] * 1e3:>10.2f}"
        f"{row['measured_s_max'] * 1e3:>10.2f}{row['predicted_s'] * 1e3:>12.2f}"
        f"{row['deviation'] * 100:>8.1f}%"
    )


def main() -> None:
    """Exits with 1 where a prediction is further off than --within."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="2,3,4,8")
    parser.add_argument("--per-host", type=int, default=1)
    parser.add_argument("--sizes", default="1M,4M,16M")
    parser.add_argument("--step", choices=list(gradients.MODELS), help="a step of this model, too")
    parser.add_argument("--backward-ms", type=float, default=120.0)
    parser.add_argument("--algorithms", default="auto,ring,halving_doubling,recursive_doubling,direct")
    parser.add_argument("--gbit", type=float, default=1.0)
    parser.add_argument("--calls", type=int, default=9)
    parser.add_argument("--within", type=float, default=0.15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    worlds = [int(count) for count in options.hosts.split(",")]
    works: dict[str, list[Operation]] = {
        bytes_text(size): [(size, 0.0)] for size in map(parse_bytes, options.sizes.split(","))
    }
    if options.step:
        _, shapes = gradients.MODELS[options.step]
        works["step"] = step_of(shapes, options.backward_ms * 1e3, DEFAULT_BUCKET)
    hosts = Hosts(max(2, *worlds))
    rows: list[dict[str, Any]] = []
    links: dict[int, dict[str, float]] = {}
    try:
        hosts.open()
        hosts.shape(options.gbit, both_ways=True, queue_ms=400, burst_bytes=BURST_BYTES)
        print(f"{options.gbit:g} Gbit/s, {os.cpu_count()} cores")
        print(
            f"{'ranks':>6}{'algorithm':>20}{'bytes':>10}{'measured ms':>14}{'min':>10}{'max':>10}"
            f"{'predicted':>12}{'off by':>9}"
        )
        for count in worlds:
            model, link = measured_model(hosts, count, int(16 * options.gbit + 1) << 20)
            links[count] = link
            print(
                f"{count:>6} hosts, plain TCP in a ring: {link['one_way_us']:.1f} us a hop, "
                f"{link['bytes_per_us']:.1f} MB/s a link; "
                f"numpy copies {link['copy']:.0f} and adds {link['sum']:.0f}"
            )
            world = World(hosts, count, options.per_host, model)
            for algorithm in options.algorithms.split(","):
                for row in compare(world, works, options.calls, algorithm):
                    rows.append(row)
                    print(_line(row), flush=True)
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
