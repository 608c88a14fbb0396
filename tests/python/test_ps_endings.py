"""Failures that end runs with parameter servers, and the errors of the ranks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ranks import Run, clean_environment, launcher_version, mpirun_command, run

PROGRAM = Path(__file__).resolve().parent.parent / "multiprocess" / "ps_training.py"


def test_servers_say_why_a_worker_has_left():
    program = """
import numpy as np, rdmacoll
from rdmacoll import ps
rdmacoll.init(mode="ps", sync=False)
ps.declare({"w": np.zeros(10, np.float32)}, ps.Rule("optimizer=sgd\\ninitial_learning_rate=0.1\\n"))
ps.push(np.ones(10, np.float32), "w")
if rdmacoll.rank() == 1:
    raise ValueError("nan")
"""
    outcome = run(program, 3, deadline_s=60)
    assert [rank.code for rank in outcome.ranks] == [0, 1, 0], outcome.text()
    logged = "worker 1 has left the job with an error (ValueError: nan)."
    assert logged in outcome.ranks[2].output, outcome.text()


PUSHING = """
import os, time
import numpy as np, rdmacoll
from ranks import report
from rdmacoll import ps
rdmacoll.init(mode="ps", sync=False)
ps.declare({"w": np.zeros(1000, np.float32)}, ps.Rule("optimizer=sgd\\ninitial_learning_rate=0.1\\n"))
report({"pid": os.getpid()})
while True:
    ps.push(np.ones(1000, np.float32), "w")
    if os.environ.get("FAILS") == str(rdmacoll.rank()):
        raise ValueError("nan")
"""


@pytest.mark.parametrize("interrupted", [2, 3])
def test_a_server_that_is_interrupted_ends_all_processes_by_its_name(interrupted):
    with Run(PUSHING, 4, env={"RDMACOLL_NUM_SERVERS": "2"}) as started:
        started.wait_for_reports([0, 1])
        pid = started.pid(interrupted)
        os.kill(pid, signal.SIGINT)
        outcome = started.finish(60)
    codes = [1, 1, 1, 1]
    codes[interrupted] = -signal.SIGINT
    assert [rank.code for rank in outcome.ranks] == codes, outcome.text()
    assert "KeyboardInterrupt" in outcome.ranks[interrupted].output
    text = outcome.ranks[5 - interrupted].output
    logged = [line for line in text.splitlines() if " error: " in line]
    assert len(logged) == 1, text
    assert "Traceback" not in text + outcome.ranks[interrupted].output
    assert f"server {interrupted - 2} (rank {interrupted}, " in logged[0]
    assert f"pid {pid}) has left the job (KeyboardInterrupt); the variables that it stored" in logged[0]
    for place in (0, 1):
        lines = outcome.ranks[place].output.splitlines()
        raised = [line for line in lines if line.startswith("rdmacoll.errors.RankFailedError: ")]
        assert raised, outcome.text()
        logged = [raised[-1]]
        if lines[-1].startswith(f"[rdmacoll rank {place}] error: "):
            logged.append(lines[-1])  # its push may fail before its engine hears the news
        assert lines[-1] == logged[-1], outcome.text()
        for line in logged:
            assert f"server {interrupted - 2} (rank {interrupted}, " in line, line
            assert f"pid {pid}) has left the job (KeyboardInterrupt)" in line


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_a_server_that_gets_sigterm_says_so_on_all_processes(is_asynchronous):
    summing = """
import os
import numpy as np, rdmacoll
from ranks import report
rdmacoll.init(mode="ps")
report({"pid": os.getpid()})
while True:
    rdmacoll.push_pull(np.ones(1000, np.float32), rdmacoll.Sum)
"""
    env = {"RDMACOLL_NUM_SERVERS": "2"}
    with Run(PUSHING if is_asynchronous else summing, 4, env=env) as started:
        started.wait_for_reports([0, 1])
        os.kill(started.pid(3), signal.SIGTERM)
        outcome = started.finish(60)
    assert [rank.code for rank in outcome.ranks] == [1, 1, 1, 128 + signal.SIGTERM], outcome.text()
    for rank in outcome.ranks[:3]:
        assert "has left the job (SIGTERM)" in rank.output, outcome.text()
    assert "SIGTERM: another program ended this server" in outcome.ranks[3].output
    assert "Traceback" not in outcome.ranks[3].output


@pytest.mark.parametrize("mishap", ["raises", "is killed"])
def test_servers_end_with_a_sentence_when_a_worker_of_a_synchronous_run_does_not(mishap):
    program = """
import os
import numpy as np, rdmacoll
from ranks import report
rdmacoll.init(mode="ps")
report({"pid": os.getpid()})
while True:
    rdmacoll.push_pull(np.ones(1000, np.float32), rdmacoll.Sum)
    if os.environ.get("FAILS") == str(rdmacoll.rank()):
        raise ValueError("nan")
"""
    with Run(
        program, 4, env={"RDMACOLL_NUM_SERVERS": "2", "FAILS": "1" if mishap == "raises" else ""}
    ) as started:
        started.wait_for_reports([0, 1])
        if mishap != "raises":
            os.kill(started.pid(1), signal.SIGKILL)
        outcome = started.finish(60)
    for server in outcome.ranks[2:]:
        assert server.code == 1, outcome.text()
        (line,) = server.output.splitlines()
        assert " error: " in line
        assert "rank 1 (" in line


def test_a_death_that_is_survived_is_a_warning_with_who_goes_on():
    until = "while rdmacoll.rank() == 1 or not all(server['lost'] for server in ps.stats()):"
    program = PUSHING.replace("while True:", until)
    program += """
try:
    rdmacoll.engine.barrier()  # fails once this worker has seen the death, too
except rdmacoll.RankFailedError:
    pass
"""
    with Run(program, 5, env={"RDMACOLL_NUM_SERVERS": "2"}) as started:
        started.wait_for_reports([0, 1, 2])
        os.kill(started.pid(1), signal.SIGKILL)
        outcome = started.finish(60)
    assert [rank.code for rank in outcome.ranks] == [0, -signal.SIGKILL, 0, 0, 0], outcome.text()
    for place, logged in ((0, "Training goes on with 2 workers"), (3, "The server goes on with 2 workers")):
        lines = [line for line in outcome.ranks[place].output.splitlines() if "rank 1 (" in line]
        assert len(lines) == 1, outcome.text()
        assert lines[0].startswith(f"[rdmacoll rank {place}] warning: rank 1 (")
        assert logged in lines[0]


def test_servers_whose_workers_have_all_died_have_failed():
    with Run(PUSHING, 4, env={"RDMACOLL_NUM_SERVERS": "2"}) as started:
        started.wait_for_reports([0, 1])
        for worker in (0, 1):
            os.kill(started.pid(worker), signal.SIGKILL)
        outcome = started.finish(60)
    assert [rank.code for rank in outcome.ranks] == [-signal.SIGKILL, -signal.SIGKILL, 1, 1], outcome.text()
    for server in outcome.ranks[2:]:
        assert "It was the last worker, so the server ends." in server.output, outcome.text()
        assert "Traceback" not in server.output


# As the page in docs says, Open MPI ends a job with its first process, unless an option forbids that.
@pytest.mark.skipif("Open MPI) 4" not in launcher_version(), reason="needs Open MPI 4")
def test_a_death_is_survived_under_a_launcher_that_allows_it(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        """
import os, signal, time
import numpy as np, rdmacoll
from rdmacoll import ps
rdmacoll.init(mode="ps", sync=False, num_servers=1)
ps.declare({"w": np.zeros(10, np.float32)}, ps.Rule("optimizer=sgd\\ninitial_learning_rate=1\\n"))
for step in range(300):
    ps.push(np.ones(10, np.float32), "w")
    time.sleep(0.005)
    if step == 50 and rdmacoll.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
try:
    rdmacoll.engine.barrier()
except rdmacoll.RankFailedError:
    pass
line = f"worker {rdmacoll.rank()} has {float(ps.pull('w')[0])}\\n"
os.write(1, line.encode())  # at once: the other's may come between the parts of it
"""
    )
    command = [*mpirun_command(4), "--enable-recovery", sys.executable, str(program)]
    done = subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    values = re.findall(r"worker [02] has -(\d+)\.0", done.stdout)
    assert len(values) == 2, done.stdout + done.stderr
    # The last worker finds 300 pushes of each survivor and 51 of the dead worker.
    assert max(map(int, values)) == 651, values


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_worker_that_was_stopped_hears_that_it_was_itself(transport):
    env = {"RDMACOLL_PEER_TIMEOUT_S": "1", "RDMACOLL_TRANSPORT": transport}
    with Run(PUSHING, 3, env=env) as started:
        started.wait_for_reports([0, 1])
        pid = started.pid(1)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2.5)
        os.kill(pid, signal.SIGCONT)
        started.processes[1].wait(30)
        os.kill(started.pid(0), signal.SIGINT)
        outcome = started.finish(60)
    assert [rank.code for rank in outcome.ranks] == [-signal.SIGINT, 1, 0], outcome.text()
    # The failed push and the engine both print the sentence. Each may write into the other's lines.
    logged = re.findall(
        rf"rror: rank 1 \([^()]*pid {pid}\) did not run for about 2\.\d+ s \([^()]*\): after 1 s the others "
        r"went on without it\. Where that may happen, raise RDMACOLL_PEER_TIMEOUT_S\.\n",
        outcome.ranks[1].output,
    )
    assert logged, outcome.text()
    assert outcome.ranks[1].output.endswith("raise RDMACOLL_PEER_TIMEOUT_S.\n"), outcome.text()
    assert "server 0 (" not in outcome.ranks[1].output, outcome.text()


def test_colocated_all_others_name_the_worker_that_fails_and_its_error():
    env = {"RDMACOLL_SERVER_PLACEMENT": "colocated", "FAILS": "1"}
    with Run(PUSHING, 3, env=env) as started:
        pid = started.pid(1)
        outcome = started.finish(60)
    assert [rank.code for rank in outcome.ranks] == [1, 1, 1], outcome.text()
    for place in (0, 2):
        output = outcome.ranks[place].output
        last = output.splitlines()[-1]
        assert last.startswith("rdmacoll.errors.RankFailedError: rank 1 ("), outcome.text()
        assert f"pid {pid}) has left the job (ValueError: nan)" in last
        assert "stopped answering" not in output, output  # no other rank is blamed


def test_colocated_who_stays_says_who_has_left_by_an_error():
    program = """
import numpy as np, rdmacoll
from rdmacoll import ps
rdmacoll.init(mode="ps", sync=False, placement="colocated")
ps.declare({"w": np.zeros(1000, np.float32)}, ps.Rule("optimizer=sgd\\ninitial_learning_rate=0.1\\n"))
ps.push(np.ones(1000, np.float32), "w")
if rdmacoll.rank() == 1:
    import time
    time.sleep(1)
    raise ValueError("nan")
"""
    outcome = run(program, 2, deadline_s=60)
    assert [rank.code for rank in outcome.ranks] == [0, 1], outcome.text()
    logged = "worker 1 has left the job with an error (ValueError: nan)."
    assert logged in outcome.ranks[0].output, outcome.text()


def errors_when_rank_2_dies(program: str, ranks: int, **options: Any) -> list[str]:
    """Kills rank 2 once workers 0 and 1 have reported, and returns the error of each of these workers."""
    with Run(program, ranks, **options) as started:
        started.wait_for_reports([0, 1])
        os.kill(started.pid(2), signal.SIGKILL)
        outcome = started.finish()
    assert [worker.code for worker in outcome.ranks[:2]] == [0, 0], outcome.text()
    return [worker.report["error"] for worker in outcome.ranks[:2]]


def test_a_server_that_dies_is_named_on_all_workers():
    for error in errors_when_rank_2_dies(PROGRAM, 4, arguments=["2", "server dies"]):
        assert error.startswith("RankFailedError: server 0 (rank 2, ")
        assert "the variables that it stored are lost" in error


@pytest.mark.parametrize("killed", [2, 3])
def test_the_other_server_says_nothing_but_which_server_has_died(killed):
    with Run(PUSHING, 4, env={"RDMACOLL_NUM_SERVERS": "2"}) as started:
        started.wait_for_reports([0, 1])
        os.kill(started.pid(killed), signal.SIGKILL)
        outcome = started.finish(60)
    assert [outcome.ranks[place].code for place in (0, 1, 5 - killed)] == [1, 1, 1], outcome.text()
    (line,) = outcome.ranks[5 - killed].output.splitlines()
    assert f" error: server {killed - 2} (rank {killed}, " in line


@pytest.mark.parametrize(("transport", "killed"), [("shm", 3), ("tcp", 4)])
def test_a_server_that_dies_after_a_worker_ends_the_other_one_too(transport, killed):
    env = {"RDMACOLL_NUM_SERVERS": "2", "RDMACOLL_TRANSPORT": transport}
    with Run(PUSHING, 5, env=env) as started:
        started.wait_for_reports([0, 1, 2])
        os.kill(started.pid(0), signal.SIGKILL)
        time.sleep(1)
        os.kill(started.pid(killed), signal.SIGKILL)
        outcome = started.finish(60)
    left = outcome.ranks[7 - killed]
    assert [rank.code for rank in (*outcome.ranks[1:3], left)] == [1, 1, 1], outcome.text()
    worker, server = left.output.splitlines()
    assert " warning: rank 0 (" in worker
    assert "The server goes on with 2 workers" in worker
    assert f" error: server {killed - 3} (rank {killed}, " in server


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_server_that_dies_in_the_middle_of_large_pushes_is_named(transport):
    program = """
import numpy as np
import rdmacoll
from ranks import report
from rdmacoll import ps

rdmacoll.init(mode="ps", sync=False, num_servers=1)
gradient = np.zeros(4 << 20, np.float32)
ps.declare({"w": gradient}, ps.Rule("optimizer=sgd\\ninitial_learning_rate=1\\n"))
ps.push(gradient, "w")
report("pushes")
try:
    while True:
        ps.push(gradient, "w")
except rdmacoll.RankFailedError as error:
    report({"error": str(error)})
"""
    for error in errors_when_rank_2_dies(program, 3, env={"RDMACOLL_TRANSPORT": transport}):
        assert error.startswith("server 0 (rank 2, ")


def test_a_worker_that_is_interrupted_anywhere_in_its_calls_can_leave():
    program = """
import signal
import numpy as np, rdmacoll
from rdmacoll import ps
rdmacoll.init(mode="ps", sync=False)
ps.declare({"w": np.zeros(10, np.float32)}, ps.Rule("optimizer=sgd\\ninitial_learning_rate=0.1\\n"))
signal.signal(signal.SIGALRM, signal.default_int_handler)
for interrupted in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001 + interrupted * 1e-5)
        while True:
            ps.push(np.ones(10, np.float32), "w")
    except KeyboardInterrupt:
        pass
rdmacoll.shutdown()
"""
    outcome = run(program, 2, deadline_s=60)
    assert [rank.code for rank in outcome.ranks] == [0, 0], outcome.text()
