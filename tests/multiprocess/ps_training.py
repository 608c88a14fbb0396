"""Trains a linear model with asynchronous parameter servers. Arguments: the number of servers or "colocated",
and the planted failure."""

import os
import sys
import time

import numpy as np
from ranks import report

import rdmacoll
from rdmacoll import RdmacollError, ps

SERVERS, MISHAP = sys.argv[1:]
ROWS, FEATURES, STEPS = 256, 40, 60
SGD = ps.Rule("optimizer=sgd\nschedule=constant\ninitial_learning_rate=0.1\n")

bound = {"staleness": 2} if MISHAP == "stale" else {}
if SERVERS == "colocated":
    rdmacoll.init(mode="ps", sync=False, placement="colocated", **bound)
else:
    rdmacoll.init(mode="ps", sync=False, num_servers=int(SERVERS), **bound)
me, workers = rdmacoll.rank(), rdmacoll.size()
random = np.random.default_rng(me)
truth = np.random.default_rng(99).normal(size=FEATURES).astype(np.float32)
weights = {
    "w": np.full(FEATURES, me, np.float32),  # the first worker's are zeros
    "b": np.full((), me, np.float64),
    "words": np.full((1000, 8), me, np.float32),
}
ps.declare(weights, SGD, by_rows=["words"])

steps = 0
error = ""
try:
    while steps < STEPS:
        x = random.normal(size=(ROWS, FEATURES)).astype(np.float32)
        gradient = x.T @ (x @ (weights["w"] - truth)) / ROWS
        place = {"w": weights["w"]} if steps % 2 else None  # returns its argument
        fresh = ps.exchange({"w": gradient}, place)
        assert place is None or fresh["w"] is weights["w"]
        weights.update(fresh)
        steps += 1
        if MISHAP == "worker dies" and me == 1 and steps == 5:
            os._exit(7)
        if MISHAP == "server dies" and steps == 5:
            report({"pid": os.getpid(), "steps": steps}, me)
            time.sleep(0.05)
    rows = [3, 3, me + 10]
    ps.push_rows(rows, np.full((3, 8), -1, np.float32), "words")
    ps.push(np.float64(-1), "b")
except RdmacollError as failed:
    error = f"{type(failed).__name__}: {failed}"
    report({"steps": steps, "error": error}, me)
    os._exit(0)
deadline = time.monotonic() + 60
alive = workers - (MISHAP == "worker dies")
while abs(float(ps.pull("b")) - 0.1 * alive) > 1e-6 and time.monotonic() < deadline:
    time.sleep(0.01)
while MISHAP == "worker dies" and not all(server["lost"] for server in ps.stats()):
    time.sleep(0.01)  # a worker that left before the servers see the death would count as less alive
weights["w"] = ps.pull("w")
try:
    total = float(rdmacoll.engine.allreduce(np.ones(3), rdmacoll.Sum)[0])
except RdmacollError as failed:
    total = f"{type(failed).__name__}: {failed}"
found = {
    "sum": total,
    "steps": steps,
    "distance": float(np.abs(weights["w"] - truth).max()),
    "b": float(ps.pull("b")),
    "words": [float(value) for value in ps.pull_rows([3, 10, 999], "words")[:, 0]],
    "stats": ps.stats(),
    "sharding": ps.sharding(),
}
report(found, me)
rdmacoll.shutdown()
