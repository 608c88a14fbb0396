"""Elastic jobs: `rdmacoll run --min-np` with workers that are lost, that come, and that are sent away."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import left_alive
from test_run_command import RUN, launch, script, ssh  # noqa: F401

import rdmacoll

# Counts steps with the others. `each` runs after each of them, `first` before init().
STEPS = """
import os, signal, subprocess, sys, time
import numpy as np, rdmacoll
worker = int(os.environ["_RDMACOLL_WORKER"])
{first}
rdmacoll.init()
step = 0
while step < {steps}:
    try:
        step = int(rdmacoll.engine.allreduce(np.array([step]), op=rdmacoll.Max)[0]) + 1
        assert rdmacoll.engine.allreduce(np.ones(1), op=rdmacoll.Sum)[0] == rdmacoll.size()
        {each}
    except rdmacoll.RankFailedError:
        rdmacoll.shutdown()
        rdmacoll.init()
place = rdmacoll.rank(), "of", rdmacoll.size(), os.environ["HOROVOD_SIZE"]
print("done: worker", worker, "rank", *place, step)
"""
KILLS_ITSELF = "worker == 1 and step == 10 and os.kill(os.getpid(), signal.SIGKILL)"
# Sums with tensors that are traced once: dense and sparse gradients, and a sum. Each rank's number counts.
TRAINING = """
import os, signal, sys, time
from pathlib import Path
import tensorflow as tf
import rdmacoll.tensorflow as hvd

alone = hvd.ProcessSet([0])
hvd.init(process_sets=[alone], tcp_streams=3)
worker, folder = int(os.environ["_RDMACOLL_WORKER"]), Path(sys.argv[1])
dense, rows = tf.Variable([0.0]), tf.Variable(tf.zeros((4, 2)))
optimizer = tf.keras.optimizers.SGD(1.0)
optimizer.build([dense, rows])

@tf.function
def update(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(dense * x) + tf.reduce_sum(tf.gather(rows, [0, 1]) * x)
    tape = hvd.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(loss, [dense, rows]), [dense, rows]))
    return hvd.allreduce(x, op=hvd.Sum), hvd.allreduce(tf.cast(x, tf.int32)), hvd.allgather(x)

state = hvd.elastic.TensorFlowState([dense, rows, *optimizer.variables], step=0, worlds=[])

def note():
    assert (alone.size(), alone.included()) == (1, hvd.rank() == 0)
    (folder / f"{worker}.world").write_text(str(hvd.size()))

state.register_reset_callbacks([note])

@hvd.elastic.run
def train(state):
    note()
    state.worlds.append(hvd.size())
    state.save()
    is_over = False
    while not is_over:
        size, mean = hvd.size(), (hvd.size() + 1) / 2
        before = dense.numpy()[0], rows.numpy()[0, 0]
        total, whole, gathered = update(tf.constant([float(hvd.rank() + 1)]))
        assert total.numpy()[0] == size * mean, (total, size)
        assert whole.numpy()[0] == int(mean), (whole, size)
        assert gathered.numpy().tolist() == [rank + 1.0 for rank in range(size)], gathered
        for old, new in zip(before, (dense.numpy()[0], rows.numpy()[0, 0])):
            assert abs(old - new - mean) < 1e-3, (old, new, size)
        state.step += 1
        if state.step % 10 == 0:
            state.commit()
            stops = tf.constant([float((folder / "stop").exists())])
            is_over = hvd.allreduce(stops, op=hvd.Max).numpy()[0]
        if worker == 1 and (folder / "kill").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)

train(state)
print("done: worker", worker, "of", hvd.size(), "worlds", state.worlds, dense.numpy()[0], rows.numpy()[0, 0])
"""


def steps(folder: Path, *, each: str = "pass", first: str = "", count: int = 30) -> str:
    return script(folder, STEPS.format(each=each, first=first, steps=count))


def ends(output: str) -> list[str]:
    return sorted(re.findall(r"done: (.*)", output))


def test_workers_go_on_without_one_that_was_killed(tmp_path: Path) -> None:
    done = launch("-np", "3", "--min-np", "2", sys.executable, steps(tmp_path, each=KILLS_ITSELF))
    assert done.returncode == 0, done.stderr
    assert ends(done.stdout) == ["worker 0 rank 0 of 2 2 30", "worker 2 rank 1 of 2 2 30"]
    assert re.search(r"worker 1 \(localhost, pid \d+\) failed: killed by SIGKILL\.", done.stderr)
    assert "rdmacoll run: world 2 has 2 ranks (2 on localhost)." in done.stderr


def test_a_slot_is_used_again_after_its_cooldown(tmp_path: Path) -> None:
    """The worker in it is sent away if the others end before a world has it."""
    slow = f"{KILLS_ITSELF}; time.sleep(0.1)"
    words = ["-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "1", "1"]
    done = launch(*words, sys.executable, steps(tmp_path, each=slow, count=60))
    assert done.returncode == 0, done.stderr
    assert ends(done.stdout) == ["worker 0 rank 0 of 1 1 60"]
    assert "worker 2 (localhost) is sent away: the job ends." in done.stderr


def test_a_job_with_too_few_workers_ends_and_names_the_one_that_failed(tmp_path: Path) -> None:
    done = launch("-np", "2", "--min-np", "2", sys.executable, steps(tmp_path, each=KILLS_ITSELF))
    assert done.returncode == 137
    last = done.stderr[done.stderr.index("rdmacoll run: the job has ended") :]
    why = r"rdmacoll run: the job has ended: --min-np is 2, and there is 1 worker\. "
    assert re.match(why + r"Worker 1 \(localhost, pid \d+\) failed: killed by SIGKILL\.", last)


def test_an_error_of_the_program_ends_the_job_with_its_traceback(tmp_path: Path) -> None:
    words = ["-np", "2", "--min-np", "1", sys.executable]
    done = launch(*words, script(tmp_path, "import rdmacoll; rdmacoll.init(); 1 / 0"))
    assert done.returncode == 1
    assert "rdmacoll run: the job has ended: no worker is left. Worker" in done.stderr
    assert done.stderr.rstrip().endswith("ZeroDivisionError: division by zero")


def test_the_world_may_change_so_often(tmp_path: Path) -> None:
    words = ["-np", "3", "--min-np", "1", "--reset-limit", "0", sys.executable]
    done = launch(*words, steps(tmp_path, each=KILLS_ITSELF))
    assert done.returncode == 137
    assert "the job has ended: --reset-limit allows 0 changes of the world." in done.stderr


def test_a_lost_host_costs_its_workers_alone(tmp_path: Path, ssh: tuple[dict[str, str], Path]) -> None:  # noqa: F811
    """The agent of the host dies, as with the host."""
    # It waits for its own end: the agent ends a while after it was killed.
    lost = "worker == 2 and step == 10 and (os.kill(os.getppid(), signal.SIGKILL), time.sleep(600))"
    words = ["-H", "localhost:2,other-host:2", "--min-np", "2", sys.executable]
    done = launch(*words, steps(tmp_path, each=lost), env=ssh[0])
    assert done.returncode == 0, done.stderr
    assert ends(done.stdout) == ["worker 0 rank 0 of 2 2 30", "worker 1 rank 1 of 2 2 30"]
    assert "rdmacoll run: other-host is lost: " in done.stderr


def test_a_host_that_cannot_be_reached_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\necho 'no route to it' >&2\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    words = ["-H", "localhost:2,other-host:2", "--min-np", "2", sys.executable]
    done = launch(*words, steps(tmp_path), env=env)
    assert done.returncode == 0, done.stderr
    assert ends(done.stdout) == ["worker 0 rank 0 of 2 2 30", "worker 1 rank 1 of 2 2 30"]
    assert 'other-host is lost: no route to it. Try "ssh other-host true"' in done.stderr


@pytest.mark.parametrize("dying", [0, 1])
def test_a_worker_that_dies_at_the_start_of_a_world_is_done_without(tmp_path: Path, dying: int) -> None:
    """It has its place, and never meets the others. They do not wait for it until the start's time limit."""
    first = f"""
from rdmacoll._start import elastic_worker
take = elastic_worker.take_place
def taken(variables):
    take(variables)
    worker == {dying} and os._exit(9)
elastic_worker.take_place = taken
"""
    done = launch("-np", "3", "--min-np", "2", sys.executable, steps(tmp_path, first=first))
    assert done.returncode == 0, done.stderr
    assert ends(done.stdout) == [f"worker {1 - dying} rank 0 of 2 2 30", "worker 2 rank 1 of 2 2 30"]
    assert "world 1 does not begin: the launcher forms another one" in done.stderr
    assert "This worker waits for the next world." in done.stderr
    assert "did not come to the rendezvous" not in done.stderr
    assert "is ended" not in done.stderr  # no other worker is blamed


def test_a_worker_that_cannot_reach_the_others_is_done_without(tmp_path: Path) -> None:
    """The launcher reaches it, but its network does not."""
    first = """
from rdmacoll._start import elastic_worker
take = elastic_worker.take_place
def taken(variables):
    take(variables)
    if worker == 1:
        variables["RDMACOLL_RENDEZVOUS"] = "127.0.0.1:9"
elastic_worker.take_place = taken
"""
    words = ["-np", "3", "--min-np", "2", sys.executable]
    done = launch(*words, steps(tmp_path, first=first), env={"RDMACOLL_START_TIMEOUT_S": "3"})
    assert done.returncode == 0, done.stderr
    assert ends(done.stdout) == ["worker 0 rank 0 of 2 2 30", "worker 2 rank 1 of 2 2 30"]
    assert "rdmacoll run: worker 1 (localhost) is ended: others cannot reach it." in done.stderr


@pytest.mark.slow
def test_a_worker_that_stops_answering_is_ended(tmp_path: Path) -> None:
    stops = "worker == 1 and step == 10 and os.kill(os.getpid(), signal.SIGSTOP)"
    text = STEPS.format(each=stops, first="from rdmacoll._world import places", steps=30)
    text = text.replace("RankFailedError:", "RankFailedError as error:\n        places.blame(error.rank)")
    env = {"RDMACOLL_PEER_TIMEOUT_S": "5"}
    done = launch("-np", "3", "--min-np", "2", sys.executable, script(tmp_path, text), env=env)
    assert done.returncode == 0, done.stderr
    assert ends(done.stdout) == ["worker 0 rank 0 of 2 2 30", "worker 2 rank 1 of 2 2 30"]
    assert "worker 1 (localhost) is ended: others have lost it 30 s ago, and it does not come." in done.stderr


def test_a_program_that_a_worker_starts_is_no_worker(tmp_path: Path) -> None:
    child = "import rdmacoll; rdmacoll.init(); print(rdmacoll.size())"
    each = f"""
        if step == 5:
            program = [sys.executable, "-c", {child!r}]
            print("child:", subprocess.run(program, capture_output=True, text=True).stderr.splitlines()[-1])
            alone = subprocess.run(program, env=rdmacoll.clean_environment(), capture_output=True, text=True)
            print("alone:", alone.stdout)
"""
    done = launch("-np", "2", "--min-np", "1", sys.executable, steps(tmp_path, each=each))
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"this process was started by rank {rank} of a running job" in done.stdout
    assert done.stdout.count("alone: 1") == 2


def test_parameter_servers_are_refused(tmp_path: Path) -> None:
    program = script(tmp_path, 'import rdmacoll; rdmacoll.init(mode="ps", num_servers=1)')
    done = launch("-np", "2", "--min-np", "1", sys.executable, program)
    assert done.returncode == 1
    assert 'mode="ps" in an elastic job: a parameter server keeps its world.' in done.stderr


def test_a_function_returns_the_results_of_the_last_world() -> None:
    def count() -> tuple[int, int]:
        import os

        import numpy as np

        import rdmacoll

        rdmacoll.init()
        step = 0
        while step < 20:
            try:
                step = int(rdmacoll.engine.allreduce(np.array([step]), op=rdmacoll.Max)[0]) + 1
                rdmacoll.engine.allreduce(np.ones(1))
                if step == 5 and os.environ["_RDMACOLL_WORKER"] == "0":
                    os._exit(3)
            except rdmacoll.RankFailedError:
                rdmacoll.shutdown()
                rdmacoll.init()
        return rdmacoll.rank(), rdmacoll.size()

    assert rdmacoll.run(count, num_proc=3, min_num_proc=2) == [(0, 2), (1, 2)]
    with pytest.raises(
        rdmacoll.RankFailedError, match=r"--min-np is 2, and there is 1 worker\. Worker 0 "
    ) as raised:
        rdmacoll.run(count, num_proc=2, min_num_proc=2)
    assert (raised.value.rank, raised.value.cause) == (0, "exit code 3")


@contextlib.contextmanager
def job_on(hosts: Path, program: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A job on the hosts that a file names, beside the test. Its program gets the folder of this file."""
    options = ["--min-np", "1", *words, "--host-discovery-script", f"cat {hosts}"]
    command = [*RUN, *options, sys.executable, script(hosts.parent, program), str(hosts.parent)]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield job
    finally:
        job.kill()
        job.wait()


def wait_for(job: subprocess.Popen[str], path: Path, text: str) -> None:
    end = time.monotonic() + 200
    while not path.exists() or path.read_text() != text:
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < end, path
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_launcher_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Its workers are not said to have failed. One of them waits for a place, and one does not start."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    program = """
import os, sys, time
import rdmacoll
open(f"{sys.argv[1]}/{os.environ['_RDMACOLL_WORKER']}.pid", "w").write(str(os.getpid()))
if os.environ["_RDMACOLL_WORKER"] == "0":
    time.sleep(600)
rdmacoll.init()
"""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:2\n")
    with job_on(hosts, program, "-np", "2") as job:
        files = [tmp_path / f"{worker}.pid" for worker in range(2)]
        end = time.monotonic() + 60
        while not all(file.exists() and file.read_text() for file in files):
            assert time.monotonic() < end
            time.sleep(0.05)
        job.send_signal(number)
        errors = job.communicate(timeout=60)[1]
    assert left_alive([int(file.read_text()) for file in files], within_s=20) == []
    end = time.monotonic() + 20
    while list((tmp_path / "tmp").iterdir()) and time.monotonic() < end:
        time.sleep(0.05)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert "failed" not in errors


def test_training_is_right_in_each_world(tmp_path: Path) -> None:
    """A worker comes, one is killed, and one is sent away. Functions were traced in the first world."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:2\n")
    with job_on(hosts, TRAINING, "-np", "2") as job:
        wait_for(job, tmp_path / "1.world", "2")
        hosts.write_text("localhost:4\n")
        wait_for(job, tmp_path / "3.world", "4")
        (tmp_path / "kill").touch()
        wait_for(job, tmp_path / "3.world", "3")
        hosts.write_text("localhost:2\n")
        wait_for(job, tmp_path / "0.world", "2")
        (tmp_path / "stop").touch()
        output, errors = job.communicate(timeout=100)
    assert job.returncode == 0, errors
    found = ends(output)
    assert len(found) == 2, output
    assert all("of 2 worlds [2, 4, 3, 2] " in line for line in found), found
    assert len({line.partition("worlds")[2] for line in found}) == 1, "ranks are apart"


FIT = """
import os, sys, time
from pathlib import Path
import keras
import numpy as np
import rdmacoll.tensorflow.keras as hvd

hvd.init()
worker, folder = os.environ["_RDMACOLL_WORKER"], Path(sys.argv[1])
keras.utils.set_random_seed(int(worker))
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
state = hvd.elastic.KerasState(model, batch=0, epoch=0)
x = np.random.default_rng(1).normal(size=(96, 3)).astype("float32")

class Watch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        (folder / f"{worker}.world").write_text(str(hvd.size()))
        time.sleep(0.1)

@hvd.elastic.run
def train(state):
    mine = slice(hvd.rank(), None, hvd.size())
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.elastic.CommitStateCallback(state, 2),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        Watch(),
    ]
    model.fit(x[mine], x[mine].sum(1), 8, 12 - state.epoch, verbose=0, callbacks=callbacks)

train(state)
weights = [variable.numpy().tobytes().hex() for variable in model.variables]
print("done: of", hvd.size(), "epoch", state.epoch, int(model.optimizer.iterations), *weights)
"""


@pytest.mark.slow
def test_fit_takes_in_a_worker(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:1\n")
    with job_on(hosts, FIT) as job:
        wait_for(job, tmp_path / "0.world", "1")
        hosts.write_text("localhost:2\n")
        wait_for(job, tmp_path / "1.world", "2")
        output, errors = job.communicate(timeout=200)
    assert job.returncode == 0, errors
    found = ends(output)
    assert len(found) == 2, output
    assert found[0] == found[1], "ranks are apart"
    assert found[0].startswith("of 2 epoch 12 ")
