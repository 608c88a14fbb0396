"""`rdmacoll serve`: servers without a script, started by hand and by mpirun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ranks import clean_environment, free_port, mpirun_command
from test_by_hand import ByHand, served, wait_for_line

COMMAND = [sys.executable, "-m", "rdmacoll", "serve"]
WORKER = """
import sys
import numpy as np, rdmacoll
rdmacoll.init(mode="ps")
for step in range(50):
    rdmacoll.push_pull(np.ones(3000), rdmacoll.Sum, name="gradient")
sys.stdout.write(f"worker {rdmacoll.rank()} of {rdmacoll.size()}\\n")  # in one piece
"""


def test_servers_by_hand_say_whom_they_serve_and_what_they_did(tmp_path):
    hand = ByHand()
    lists = [f"--worker_hosts={','.join(hand.workers)}", f"--ps_hosts={','.join(hand.servers)}"]
    servers = {
        2 + task: ["serve", f"--task_index={task}", *lists, "--json", str(tmp_path / f"{task}.json")]
        for task in range(2)
    }
    with hand.run(tmp_path, arguments_of=servers, env={"ROUNDS": "20"}) as started:
        outcome = started.finish(240)
    served(outcome)
    received = 0
    for task in range(2):
        output, found = outcome.ranks[2 + task].output, json.loads((tmp_path / f"{task}.json").read_text())
        assert f"server {task} (rank {2 + task} of 4 over " in output
        assert f"serves 2 workers: {','.join(hand.workers)}\n" in output
        assert {name: found[name] for name in ("command", "ok", "rank", "server", "workers")} == {
            "command": "serve",
            "ok": True,
            "rank": 2 + task,
            "server": task,
            "workers": 2,
        }
        assert found["steps"] == 21
        received += found["bytes_received"]
        assert f"server {task}: 21 steps, " in output
        assert f"{found['bytes_received'] / 1000:.1f} kB received, " in output
        assert "0 workers waiting" in output
    assert received == 2 * 21 * 1000 * 8  # from two workers


def test_asynchronous_servers_by_hand_count_updates(tmp_path):
    hand = ByHand(2, 2)
    flags = {place: hand.flags(place, "--cross_replica_sync=false") for place in (0, 1, 3)}
    lists = [f"--worker_hosts={','.join(hand.workers)}", f"--ps_hosts={','.join(hand.servers)}"]
    path = tmp_path / "found.json"
    # The only variable is small, and so on the first server.
    reference = ["--variable_update=parameter_server", "--cross_replica_sync=false"]
    serve = ["serve", "--task_index=0", *lists, *reference, "--json", str(path)]
    env = {"ROUNDS": "20", "RDMACOLL_TRANSPORT": "tcp"}
    with hand.run(tmp_path, arguments_of={**flags, 2: serve}, env=env) as started:
        outcome = started.finish(240)
    reports = outcome.succeeded()[:2]
    assert [report["ends"] for report in reports] == [[40.0, 40.0]] * 2
    # Each worker listens at its address in the lists alone.
    assert [report["listening"] for report in reports] == [[host] for host in hand.workers]
    found = json.loads(path.read_text())
    assert {name: found[name] for name in ("ok", "server", "workers", "steps", "waiting_workers")} == {
        "ok": True,
        "server": 0,
        "workers": 2,
        "steps": 40,
        "waiting_workers": 0,
    }
    assert "server 0: 40 steps, " in outcome.ranks[2].output


def test_a_server_says_meanwhile_who_waits(tmp_path):
    hand = ByHand(2, 1)
    lists = [f"--worker_hosts={','.join(hand.workers)}", f"--ps_hosts={','.join(hand.servers)}"]
    path = tmp_path / "found.json"
    serve = ["serve", "--task_index=0", *lists, "--every", "0.1", "--json", str(path)]
    # The timeout is long, so that the stopped worker does not count as dead.
    env = {"ROUNDS": "1000000000", "RDMACOLL_PEER_TIMEOUT_S": "300"}
    with hand.run(tmp_path, arguments_of={2: serve}, env=env) as started:
        wait_for_line(started, 2, "0 workers waiting")
        # Outside of a plan no sum begins without the stopped worker, and none waits. The test then repeats.
        end = time.monotonic() + 180
        while "1 worker waiting" not in started.so_far().ranks[2].output:
            assert time.monotonic() < end, started.so_far().text()
            os.kill(started.pid(1), signal.SIGSTOP)
            time.sleep(0.5)
            os.kill(started.pid(1), signal.SIGCONT)
            time.sleep(0.2)
        os.kill(started.pid(1), signal.SIGKILL)
        outcome = started.finish(240)
    assert [rank.code for rank in outcome.ranks] == [1, -signal.SIGKILL, 1], outcome.text()
    found = json.loads(path.read_text())
    assert found["ok"] is False
    assert found["error"]["kind"] == "RankFailedError"
    assert f"rdmacoll serve: RankFailedError: {found['error']['message']}" in outcome.ranks[2].output
    assert "rank 1 (" in found["error"]["message"]
    # The report covers the work until the failure.
    assert {name: found[name] for name in ("rank", "server", "workers")} == {
        "rank": 2,
        "server": 0,
        "workers": 2,
    }
    assert found["steps"] > 0
    assert found["bytes_received"] > 0


def mpirun(first: list[str], ranks: int, then: list[str], more: int) -> tuple[int, str]:
    """Runs two programs in one job, and returns the exit code and the output."""
    command = [*mpirun_command(ranks), *first, ":", "-np", str(more), *then]
    done = subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=240, check=False
    )
    return done.returncode, done.stdout + done.stderr


def worker_of(folder: Path) -> list[str]:
    path = folder / "worker.py"
    path.write_text(WORKER, encoding="utf-8")
    return [sys.executable, str(path)]


def test_under_mpirun_servers_come_behind_the_workers(tmp_path):
    path = tmp_path / "found.json"
    serve = [*COMMAND, "--num-servers", "1", "--json", str(path)]
    code, output = mpirun(worker_of(tmp_path), 2, serve, 1)
    assert code == 0, output
    assert "worker 0 of 2" in output
    assert "worker 1 of 2" in output
    assert "server 0 (rank 2 of 3 over shm) serves 2 workers\n" in output
    found: dict[str, Any] = json.loads(path.read_text())
    assert (found["ok"], found["rank"], found["steps"]) == (True, 2, 50)


def test_a_rank_that_is_no_server_is_refused_and_all_hear_it(tmp_path):
    code, output = mpirun(COMMAND, 1, worker_of(tmp_path), 1)
    assert code == 1, output
    refusal = "rank 0 is no parameter server: the last 1 of 2 ranks are (Open MPI"
    assert f"rdmacoll serve: ConfigError: {refusal}" in output
    assert f"rank 0 could not start: {refusal}" in output


def alone(*options: str) -> tuple[int, str]:
    """Runs a server without any worker, and returns its exit code and its output."""
    done = subprocess.run(
        [*COMMAND, *options],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_server_that_serves_nobody_says_how_it_is_started():
    code, output = alone()
    assert code == 1, output
    assert "this server does not know its workers: give --task_index, --ps_hosts and --worker_hosts" in output
    assert "Traceback" not in output


def test_ctrl_c_ends_a_wait_for_workers_with_a_sentence():
    options = [f"--ps_hosts=127.0.0.1:{free_port()}", f"--worker_hosts=127.0.0.1:{free_port()}"]
    soon = "from rdmacoll._start import start_deadline; start_deadline.REPORT_EVERY_S = 0.3; "
    command = [sys.executable, "-c", soon + "from rdmacoll.cli.main import main; main()", "serve"]
    with subprocess.Popen(
        [*command, "--task_index=0", *options],
        env=clean_environment({"RDMACOLL_LOG": "debug"}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while "waiting for worker 0" not in lines[-1]:
            assert lines[-1], lines
            lines.append(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
        assert process.returncode == 130, rest
    assert "rdmacoll serve: interrupted (Ctrl-C) while it waited for the workers 127.0.0.1:" in rest
    assert "Traceback" not in rest


def test_wrong_options_are_said_by_the_server_itself():
    done = subprocess.run(
        [*COMMAND, "--task_indeks=1"],
        env=clean_environment({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2
    assert "--task_indeks" in done.stderr
