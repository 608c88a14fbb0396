"""Waits of workers of asynchronous parameter servers, and workers that need not wait."""

from __future__ import annotations

import os
import signal
import time

import pytest
from ranks import Run, run


def test_a_variable_that_worker_0_does_not_declare_keeps_nobody_else_and_is_said():
    program = """
import time
import numpy as np, rdmacoll
from ranks import report
from rdmacoll import ps
rdmacoll.init(mode="ps", sync=False, num_servers=2)
rule = ps.Rule("optimizer=sgd\\ninitial_learning_rate=1\\n")
rank = rdmacoll.rank()
w = np.full(10, 5 + rank, np.float32)
if rank < 2:
    ps.declare({"w": w} if rank == 0 else {"w": w, "extra": np.zeros(1, np.float32)}, rule)
else:
    time.sleep(1)  # behind the worker that waits
    ps.declare({"w": w}, rule)
    waits = [server["waiting_for"] for server in ps.stats()]
    begin = time.monotonic()
    while time.monotonic() < begin + 2:  # pushes of others do not end the wait for values
        ps.push(np.zeros(10, np.float32), "w")
    report([w.tolist(), sorted(waits)])
if rank == 0:
    time.sleep(4)
    ps.declare({"extra": np.full(1, 9, np.float32)}, rule)
"""
    outcome = run(program, 5, env={"RDMACOLL_STALL_WARNING_S": "1"}, deadline_s=60)
    values, waits = outcome.succeeded()[2]
    assert values == [5.0] * 10
    assert waits == ["", "values extra"]
    logged = "1 of 3 workers have waited for 1 s for worker 0 to give variable extra its first values"
    assert sum(server.output.count(logged) for server in outcome.ranks[3:]) == 1, outcome.text()


def test_a_worker_behind_one_that_waits_for_values_is_told_of_these_values():
    program = """
import time
import numpy as np, rdmacoll
from ranks import report
from rdmacoll import ps
rdmacoll.init(mode="ps", sync=False, staleness=2)
rule = ps.Rule("optimizer=sgd\\ninitial_learning_rate=1\\n")
w = np.zeros(10, np.float32)
ps.declare({"w": w}, rule)
if rdmacoll.rank() == 0:
    for step in range(10):
        if step == 2:
            time.sleep(4)
            ps.declare({"extra": np.ones(1, np.float32)}, rule)
        ps.push(w, "w")
elif rdmacoll.rank() == 1:
    for _ in range(10):
        ps.push(w, "w")
else:
    time.sleep(0.5)
    ps.declare({"extra": np.zeros(1, np.float32)}, rule)
    for _ in range(10):
        ps.push(w, "w")
"""
    outcome = run(program, 4, env={"RDMACOLL_STALL_WARNING_S": "1"}, deadline_s=60)
    outcome.succeeded()
    assert "for worker 0 to give variable extra its first values" in outcome.ranks[3].output, outcome.text()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_colocated_server_answers_while_its_worker_lets_python_do_nothing(transport):
    program = """
import ctypes, time
import numpy as np, rdmacoll
from ranks import report
from rdmacoll import ps
rdmacoll.init(mode="ps", sync=False, placement="colocated")
ps.declare({"w": np.zeros(100_000, np.float32)}, ps.Rule("optimizer=sgd\\ninitial_learning_rate=1\\n"))
rdmacoll.engine.barrier()
if rdmacoll.rank() == 1:
    ctypes.PyDLL(None).usleep(3_000_000)  # holds Python's lock
else:
    begin, pushes = time.monotonic(), 0
    while time.monotonic() < begin + 2:
        ps.push(np.ones(100_000, np.float32), "w")
        pushes += 1
    value = ps.pull("w")
    report([pushes, float(value.min()), float(value.max())])
rdmacoll.engine.barrier()
"""
    env = {"RDMACOLL_PEER_TIMEOUT_S": "1", "RDMACOLL_TRANSPORT": transport}
    pushes, least, most = run(program, 2, env=env, deadline_s=60).succeeded()[0]
    assert pushes > 10
    assert least == most == -pushes


def test_ctrl_c_ends_the_first_step_of_a_session_that_waits_for_worker_0():
    program = """
import time
import rdmacoll
import tensorflow.compat.v1 as tf
from ranks import report
rdmacoll.init(mode="ps", sync=False)
tf.disable_eager_execution()
w = tf.get_variable("w", (3,))
train = rdmacoll.DistributedOptimizer(tf.train.GradientDescentOptimizer(0.1)).minimize(tf.reduce_sum(w * w))
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    report("waits")
    if rdmacoll.rank() == 0:
        time.sleep(1000)
    try:
        session.run(train)
    except KeyboardInterrupt:
        report({"at": time.time()})
        raise
"""
    with Run(program, 3, preloaded=True) as started:
        started.wait_for_reports([0, 1])
        time.sleep(1)
        sent = time.time()
        os.kill(started.pid(1), signal.SIGINT)
        started.processes[1].wait(30)
        os.kill(started.pid(0), signal.SIGINT)
        outcome = started.finish(60)
    assert outcome.ranks[1].code in (130, -2), outcome.text()
    assert outcome.ranks[1].report["at"] - sent < 5
