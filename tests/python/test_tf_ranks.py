"""The TensorFlow ops and the tape on real ranks: one start, many checks (the import is the cost)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from marks import slow  # every rank loads TensorFlow, which takes seconds
from ranks import ROOT, Run, run

PROGRAMS = ROOT / "tests" / "multiprocess"


def run_checks(program: str, ranks: int, *, servers: int = 0, first: str = "", **options: object) -> None:
    """Runs the checks of `program`. first: a program whose checks `program` runs, too."""
    path: Path = PROGRAMS / program
    texts = [(PROGRAMS / name).read_text() for name in (first, program) if name]
    checks = [line for text in texts for line in text.splitlines() if line.startswith("def check_")]
    is_warm = options.get("launcher", "tcp") == "tcp"
    reports = run(path, ranks + servers, deadline_s=900, preloaded=is_warm, **options).succeeded()
    assert len(checks) > 4
    assert reports[ranks:] == [None] * servers
    for report in reports[:ranks]:
        assert len(report["done"]) == len(checks)


@pytest.mark.parametrize(
    ("ranks", "launcher", "inter_op_threads"), [slow(1, "tcp", 1), slow(2, "mpirun", 1), (3, "tcp", 2)]
)
def test_ops_are_right_on_every_rank(ranks: int, launcher: str, inter_op_threads: int) -> None:
    run_checks("tf_ops.py", ranks, launcher=launcher, arguments=[str(inter_op_threads)])


@pytest.mark.parametrize(("ranks", "inter_op_threads"), [slow(1, 1), slow(4, 2), (3, 1)])
def test_ops_that_give_or_get_parts_are_right(ranks: int, inter_op_threads: int) -> None:
    run_checks("tf_parts.py", ranks, arguments=[str(inter_op_threads)])


@pytest.mark.parametrize("ranks", [slow(2), 3, slow(4)])
def test_the_least_and_the_greatest_are_right(ranks: int) -> None:
    run_checks("tf_min_max.py", ranks)


@pytest.mark.parametrize(
    ("is_shared", "env"),
    [
        ("yes", {}),
        slow("yes", {"RDMACOLL_CANONICAL": "1", "RDMACOLL_ONE_COPY": "false"}),
        slow("yes", {"RDMACOLL_SEGMENT_BYTES": "64K", "RDMACOLL_COMPUTE_WORKERS": "2"}),
        slow("no", {"RDMACOLL_SHARE_RESULTS": "false"}),
        slow("no", {"RDMACOLL_TRANSPORT": "tcp"}),
    ],
)
def test_large_sums_are_shared_within_a_node(is_shared: str, env: dict[str, str]) -> None:
    run_checks("tf_shared_results.py", 3, arguments=[is_shared], env=env)


@pytest.mark.parametrize(
    ("is_shared", "servers", "env"),
    [
        ("yes", 2, {}),
        slow("yes", 1, {"RDMACOLL_CANONICAL": "1", "RDMACOLL_ONE_COPY": "false"}),
        slow("yes", 1, {"RDMACOLL_SERVER_PLACEMENT": "colocated"}),
        slow("no", 1, {"RDMACOLL_TRANSPORT": "tcp"}),
    ],
)
def test_large_sums_of_servers_are_shared_within_a_node(
    is_shared: str, servers: int, env: dict[str, str]
) -> None:
    env = {"RDMACOLL_MODE": "ps", "RDMACOLL_NUM_SERVERS": str(servers), **env}
    processes = 0 if "RDMACOLL_SERVER_PLACEMENT" in env else servers
    run_checks("tf_shared_results.py", 3, servers=processes, arguments=[is_shared], env=env)


@pytest.mark.parametrize(("ranks", "inter_op_threads"), [slow(2, 2), (3, 1)])
def test_what_is_wrong_is_refused_on_every_rank(ranks: int, inter_op_threads: int) -> None:
    run_checks("tf_refusals.py", ranks, arguments=[str(inter_op_threads)])


@pytest.mark.parametrize(
    ("ranks", "transport"), [slow(1, "shm"), slow(2, "tcp"), slow(3, "shm"), (3, "tcp"), slow(4, "shm")]
)
def test_gradients_travel_as_16_bits_and_by_rows(ranks: int, transport: str) -> None:
    run_checks("tf_gradients.py", ranks, env={"RDMACOLL_TRANSPORT": transport})


@pytest.mark.parametrize("ranks", [slow(1), 2, slow(3)])
def test_the_rest_of_an_incomplete_gradient_comes_with_the_next_one(ranks: int) -> None:
    run_checks("tf_lossy_compression.py", ranks)


DEADLINE_S = 5.0  # five times what is promised


@pytest.mark.parametrize(
    ("how", "where"),
    [
        slow("kill", "graph"),
        ("exception", "eager"),
        ("kill", "fit"),
        slow("exit", "fit"),
        slow("exception", "session"),
        ("kill", "session"),
    ],
)
def test_a_rank_that_ends_is_named_on_the_others(how: str, where: str) -> None:
    outcome = run(PROGRAMS / "tf_failure.py", 3, arguments=[how, where], deadline_s=200, preloaded=True)
    *survivors, ended = outcome.ranks
    assert ended.code != 0, outcome.text()
    for survivor in survivors:
        assert survivor.code == 1, outcome.text()
        assert survivor.report["class"] == (
            "RankFailedError" if where in ("eager", "session") else "UnknownError"
        )
        assert survivor.report["rank"] == 2
        assert "rank 2" in survivor.report["text"]
        assert survivor.report["at"] - ended.report["ended_at"] < DEADLINE_S
        if how == "exception":
            assert "ValueError" in survivor.report["cause"]


def test_an_error_in_a_graph_is_told_by_its_reason_on_the_others() -> None:
    program = """
import tensorflow as tf
import rdmacoll, rdmacoll.tensorflow as hvd
from ranks import report
rdmacoll.init()
@tf.function
def step(indices):
    return hvd.allreduce(tf.gather(tf.ones([5]), indices))
try:
    for number in range(4):
        step(tf.constant([number + 5 * (number == 2) * rdmacoll.rank()]))
except Exception as error:
    report(rdmacoll.error_from(error).cause if rdmacoll.rank() == 0 else str(error))
    raise
"""
    cause, plain = run(program, 2, preloaded=True, deadline_s=200).reports
    assert "Detected at node" in plain, plain
    assert "indices[0] = 7 is not in [0, 5)" in cause, cause
    assert cause.startswith("left the job: InvalidArgumentError: "), cause
    assert not any(noise in cause for noise in ("\n", "Detected at node", "[Op:", "File ")), cause


@pytest.mark.parametrize(
    ("where", "number"),
    [
        slow("eager", "SIGINT"),
        slow("graph", "SIGINT"),
        ("fit", "SIGINT"),
        slow("session", "SIGINT"),
        ("graph", "SIGTERM"),
        slow("session", "SIGTERM"),
    ],
)
def test_a_signal_ends_a_wait_in_tensorflow(where: str, number: str) -> None:
    with Run(PROGRAMS / "tf_interrupt.py", 2, arguments=[where, number], preloaded=True) as started:
        started.wait_for_reports((0, 1), 100)
        time.sleep(0.7)
        assert started.reported(0) == {"pid": started.pid(0)}
        sent = time.time()
        os.kill(started.pid(0), signal.Signals[number])
        outcome = started.finish(30)
    interrupted, other = outcome.ranks
    is_ctrl_c = number == "SIGINT"
    assert interrupted.code in ((130, -2) if is_ctrl_c else (7,)), outcome.text()
    name = "KeyboardInterrupt" if is_ctrl_c else "SystemExit"
    assert interrupted.report["class"] == name, outcome.text()
    assert interrupted.report["at"] - sent < DEADLINE_S
    assert other.report["rank"] == 0, outcome.text()
    assert ("KeyboardInterrupt" if is_ctrl_c else "SIGTERM") in other.report["cause"]
    assert other.report["at"] - sent < DEADLINE_S


STALL = """
import os, sys, time, tensorflow as tf, keras, rdmacoll
from ranks import report
rdmacoll.init(stall_warning_s=0.5, stall_error_s=1.5)
keras.utils.set_random_seed(1)  # `fit` compares ranks
layers = [keras.layers.Input((4,)), keras.layers.Dense(3, name="hidden"), keras.layers.Dense(2, name="last")]
model = keras.Sequential(layers, name="net")
model.compile(rdmacoll.DistributedOptimizer(keras.optimizers.SGD()), "mse")
data = tf.ones((4, 4)), tf.ones((4, 2))
model.fit(*data, batch_size=4, verbose=0)  # a slow start of one rank may be a warning, too
print("all have trained", file=sys.stderr, flush=True)
try:
    if rdmacoll.rank() == MISSING:
        time.sleep(4)
    else:
        model.fit(*data, batch_size=4, verbose=0)
except tf.errors.DeadlineExceededError as error:
    typed = rdmacoll.error_from(error)
    report({"tensor": typed.tensor, "missing": typed.missing_ranks, "text": str(typed)})
"""


@pytest.mark.parametrize("missing", [0, slow(1)])
def test_stalls_name_the_gradients_also_when_the_root_is_missing(missing: int) -> None:
    outcome = run(STALL.replace("MISSING", str(missing)), 2, deadline_s=200, preloaded=True)
    waiting = outcome.ranks[1 - missing]
    bucket, labels = "DistributedOptimizer_0/step_0/bucket_0", "net/last/bias, net/last/kernel and 2 more"
    assert waiting.report["tensor"] == f"{bucket} ({labels})", outcome.text()
    assert waiting.report["missing"] == [missing]
    start = f"'{bucket}' ({labels}; allreduce of float32"
    assert start in waiting.report["text"]
    said = outcome.ranks[0].output.partition("all have trained")[2]
    warnings = [line for line in said.splitlines() if "still waiting" in line]
    assert len(warnings) == 1, outcome.text()
    assert start in warnings[0]
    assert f"not by rank {missing} (" in warnings[0]


@pytest.mark.parametrize("ranks", [3])
def test_what_one_rank_refuses_shifts_nothing(ranks: int) -> None:
    run_checks("refused_calls.py", ranks)


@pytest.mark.parametrize("ranks", [3])
def test_refusals_of_one_name_and_groups_that_differ_shift_nothing(ranks: int) -> None:
    run_checks("refused_calls_by_name.py", ranks)
