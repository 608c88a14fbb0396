"""Compares the predictions of `rdmacoll sim scale` with measured allreduces. Needs root.

The hosts are network namespaces with shaped cables.

    PYTHONPATH=$PWD:$PWD/tests python benchmarks/scale_check.py [--hosts 2,3,4,8] [--per-host 1] [--gbit 1]
        [--algorithms auto,ring] [--step resnet50] [--json FILE]

The same run measures the model's inputs, by plain TCP in a ring of as many hosts. The latency is the time of
one hop of a small message, while every host sends one to the next. The bandwidth is the rate of each stream,
while every host sends and adds half of the received bytes, as in an allreduce. All hosts and their network
share the machine's processors. If the processors are the limit, the measured bandwidth is below that of the
shaped cables. numpy's rates of copying and adding are measured while all hosts copy and add. The model has no
other measured inputs.

A reported time is the median over several calls. It lasts from the last rank's begin to the last rank's end.
A step submits the buckets of a model's gradients at the times of a backward pass. It sleeps instead of
computing.
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
from rdmacoll.cli.algorithm_option import algorithms, names as algorithm_names
from rdmacoll.cli.bench_step import DEFAULT_BUCKET
from rdmacoll.cli.report import parse_bytes
from rdmacoll.cli.scale import step_of

# The processor's share of a hop, at each end.
_OVERHEAD_SHARE = 0.2
AUTO = "auto"
# Room for one packet of the largest size that TCP hands to the device. A larger burst would pass the shaper
# at once after an idle time. No model of a cable has such bursts.
BURST_BYTES = 70_000
Operation = tuple[int, float]  # bytes, and the time at which they are ready, in us

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
    """Measures plain TCP and numpy on these hosts. Returns the model and the measured values."""
    where = hosts.prefixes(list(range(ranks)))
    reports = run(LINK, ranks, arguments=[str(volume)], prefix_of=where).succeeded()
    found = {key: sum(report[key] for report in reports) / ranks for key in reports[0]}
    overhead = _OVERHEAD_SHARE * found["one_way_us"]
    link = Link(found["one_way_us"] - 2 * overhead, overhead, overhead / 4, found["bytes_per_us"])
    model = Model(link, via_nic=False, copy_bytes_per_us=found["copy"], reduce_bytes_per_us=found["sum"])
    return model, found


@dataclass(frozen=True)
class World:
    """Hosts with the same number of ranks each, and their model."""

    hosts: Hosts
    count: int
    per_host: int
    model: Model

    @property
    def ranks(self) -> int:
        """The number of ranks on all hosts."""
        return self.count * self.per_host


def compare(
    world: World, works: dict[str, list[Operation]], calls: int, algorithm: str
) -> list[dict[str, Any]]:
    """Measures and predicts each of `works`. Returns a row for each.

    With the algorithm "auto", the engine chooses.
    """
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
    """Exits with 1 if a prediction deviates by more than --within."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="2,3,4,8")
    parser.add_argument("--per-host", type=int, default=1)
    parser.add_argument("--sizes", default="1M,4M,16M")
    parser.add_argument("--step", choices=list(gradients.MODELS), help="a step of this model, too")
    parser.add_argument("--backward-ms", type=float, default=120.0)
    parser.add_argument("--algorithms", type=algorithms, help="default: auto, and all that can be forced")
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
    rows: list[dict[str, Any]] = []
    links: dict[int, dict[str, float]] = {}
    with Hosts(max(2, *worlds)) as hosts:
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
            for algorithm in options.algorithms or algorithm_names():
                for row in compare(world, works, options.calls, algorithm):
                    rows.append(row)
                    print(_line(row), flush=True)
    ok = all(abs(row["deviation"]) <= options.within for row in rows)
    if options.json:
        fields = {"command": "scale_check", "ok": ok, "machine": platform.platform(), "cores": os.cpu_count()}
        options.json.write_text(
            json.dumps({**fields, "gbit": options.gbit, "links": links, "rows": rows}, indent=1)
        )
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
