"""Every rank refuses calls and settings that do not fit, at once and with the values."""

from __future__ import annotations

import time

import pytest
from rank_program import program, refused_start
from ranks import run

from rdmacoll._abi.library import load
from rdmacoll._abi.settings import Values
from rdmacoll._start import bootstrap
from rdmacoll._start.launch import Launch
from rdmacoll.errors import ConfigError


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("engine.allreduce(np.ones(3 + me))", ["rank 0", "rank 2", "3", "5"]),
        ("engine.allreduce(np.ones(6).reshape((2, 3) if me else (3, 2)))", ["2", "3"]),
        ("engine.allreduce(np.ones(3, np.float64 if me == 1 else np.float32))", ["float32", "float64"]),
        ("engine.allreduce(np.ones(3), rdmacoll.Sum if me == 2 else rdmacoll.Max)", ["sum", "max"]),
        ("engine.broadcast(np.ones(3), me % 2)", ["root"]),
        (
            "engine.allreduce(np.ones(3)) if me else engine.broadcast(np.ones(3), 0)",
            ["allreduce", "broadcast"],
        ),
        ("engine.allgather(np.ones((2, 3 + me)))", ["rank 0", "rank 2"]),
        ("engine.allreduce(np.ones(3 + me), name='conv1/kernel')", ["conv1/kernel"]),
        ("engine.allreduce(np.ones(3), prescale_factor=1.0 + me)", ["scale"]),
    ],
)
def test_a_mismatch_is_an_error_everywhere_with_each_ranks_value(body, words):
    after = "assert engine.allreduce(np.ones(2), rdmacoll.Sum).tolist() == [size, size]"
    outcome = run(program(body, after=after), 3)
    for entry in outcome.succeeded():
        assert entry["error"] == "MismatchError", entry
        assert entry["seconds"] < 5, entry
        for word in words:
            assert word.lower() in entry["text"].lower(), (word, entry["text"])


def test_a_name_twice_in_flight_is_an_error_and_the_first_one_ends():
    body = """
first = engine.allreduce_async(np.ones(5), rdmacoll.Sum, name="twice") if me == 0 else None
if me == 0:
    try:
        engine.allreduce(np.ones(5), rdmacoll.Sum, name="twice")
    finally:
        engine.barrier()
        assert first.wait().tolist() == [size] * 5
else:
    engine.barrier()
    engine.allreduce(np.ones(5), rdmacoll.Sum, name="twice")
"""
    # The barrier of rank 0 comes while "twice" waits for the others.
    found = run(program(body), 2).succeeded()
    assert found[0]["error"] == "DuplicateNameError"
    assert "twice" in found[0]["text"]
    assert found[1]["error"] is None


def test_wrong_arguments_are_refused_before_anybody_waits():
    body = """
import pytest
with pytest.raises(rdmacoll.ConfigError, match="use op=rdmacoll.Sum"):
    engine.allreduce(np.ones(3, np.int32))
with pytest.raises(rdmacoll.ConfigError, match="cannot be reduced"):
    engine.allreduce(np.array(["text"]), rdmacoll.Sum)
with pytest.raises(rdmacoll.ConfigError, match="cannot be sent"):
    engine.broadcast(np.array(["text"]), 0)
with pytest.raises(rdmacoll.ConfigError, match="no reduction"):
    engine.allreduce(np.ones(3), 77)
with pytest.raises(rdmacoll.ConfigError, match="root_rank=9"):
    engine.broadcast(np.ones(3), 9)
with pytest.raises(rdmacoll.ConfigError, match="root_rank=-1"):
    engine.broadcast(np.ones(3), -1)
with pytest.raises(rdmacoll.ConfigError, match="9 dimensions"):
    engine.allreduce(np.ones((1,) * 9))
with pytest.raises(rdmacoll.ConfigError, match="out has shape"):
    engine.allreduce(np.ones(3), out=np.ones(4))
with pytest.raises(rdmacoll.ConfigError, match="read-only"):
    locked = np.ones(3)
    locked.flags.writeable = False
    engine.allreduce(locked, out=locked)
with pytest.raises(rdmacoll.ConfigError, match="not a finite"):
    engine.allreduce(np.ones(3), prescale_factor=float("nan"))
with pytest.raises(rdmacoll.ConfigError, match="already initialised"):
    rdmacoll.init(transport="tcp")
rdmacoll.init()
with pytest.raises(TimeoutError):
    waiting = engine.allreduce_async(np.ones(3), rdmacoll.Sum, name="late") if me == 0 else None
    if me == 1:
        raise TimeoutError
    waiting.wait(timeout_s=0.05)
engine.barrier()
if me == 1:
    engine.allreduce(np.ones(3), rdmacoll.Sum, name="late")
else:
    assert waiting.wait().tolist() == [2.0, 2.0, 2.0]
"""
    assert [entry["error"] for entry in run(program(body), 2).succeeded()] == [None, None]


def test_every_call_before_init_and_after_shutdown_is_refused():
    body = """
import time
import numpy as np, rdmacoll
from rdmacoll import engine
from ranks import report
calls = [rdmacoll.rank, rdmacoll.size, rdmacoll.local_rank, rdmacoll.local_size, rdmacoll.cross_rank,
         rdmacoll.cross_size, rdmacoll.metrics, engine.barrier, lambda: engine.allreduce(np.ones(1)),
         lambda: engine.allgather(np.ones(1)), lambda: engine.broadcast(np.ones(1), 0),
         lambda: engine.grouped_allreduce([np.ones(1)]), lambda: engine.empty(3),
         lambda: engine.prepare_allreduce(np.ones(1))]
def refused():
    count = 0
    for call in calls:
        try:
            call()
        except rdmacoll.NotInitializedError as error:
            assert "rdmacoll.init()" in str(error)
            count += 1
    return count
before = refused()
rdmacoll.shutdown()
assert not rdmacoll.is_initialized()
rdmacoll.init()
assert rdmacoll.is_initialized()
run = engine.prepare_allreduce(np.ones(1))
kept = engine.empty(1000)
pending = engine.allreduce_async(np.ones(4), name="never")
me = rdmacoll.rank()
engine.barrier()
time.sleep(1)     # the barrier is over on the others too before this one leaves with work undone
rdmacoll.shutdown()
kept[:] = 1
after = refused()
for late in (run, pending.wait):
    try:
        late()
        assert late is not run
    except rdmacoll.RdmacollError as error:
        print(type(error).__name__, error)
report([before, after, len(calls)], rank=me)
"""
    for before, after, count in run(body, 2).succeeded():
        assert before == after == count


def test_settings_that_differ_are_listed():
    outcome = run(
        refused_start(),
        3,
        env={"RDMACOLL_BUCKET_BYTES": "1000000"},
        env_of={1: {"RDMACOLL_BUCKET_BYTES": "2000000"}},
    )
    for text in outcome.succeeded():
        assert text is not None, outcome.text()
        assert "RDMACOLL_BUCKET_BYTES" in text
        assert "1000000" in text
        assert "2000000" in text


def test_a_failed_start_of_one_rank_is_every_ranks_error():
    environ = {2: {"RDMACOLL_INTERFACE": "no-such-interface"}}
    outcome = run(refused_start(), 3, env_of=environ, env={"RDMACOLL_TRANSPORT": "tcp"}, deadline_s=30)
    for rank, text in enumerate(outcome.succeeded()):
        assert text is not None, outcome.text()
        assert "no-such-interface" in text
        assert ("rank 2 could not start" in text) == (rank != 2)


@pytest.mark.parametrize("wrong", ["env", "argument"])
def test_a_wrong_setting_of_one_rank_is_every_ranks_error(wrong):
    entry_program = """
import rdmacoll, os, sys
from ranks import report
rank = int(os.environ["RDMACOLL_RANK"])
settings = {"nonsense": 3} if rank == 1 and sys.argv[1] == "argument" else {"order": "canonical"}
try:
    rdmacoll.init(**settings)
except rdmacoll.ConfigError as error:
    report(str(error), rank=rank)
"""
    env_of = {1: {"RDMACOLL_BUCKET_BYTES": "abc"}} if wrong == "env" else {}
    outcome = run(entry_program, 3, env_of=env_of, arguments=[wrong], deadline_s=30)
    for rank, text in enumerate(outcome.succeeded()):
        assert text is not None, outcome.text()
        assert ("RDMACOLL_BUCKET_BYTES=abc" if wrong == "env" else "'nonsense'") in text, outcome.text()
        assert ("rank 1 could not start" in text) == (rank != 1)


ENDS = """
import rdmacoll, os, sys
if os.environ["RDMACOLL_RANK"] == "1":
    rdmacoll.init(**{"setting": {"nonsense": 3}, "size": {"rank": 1, "size": 3}}[sys.argv[1]])
rdmacoll.init()
"""


@pytest.mark.parametrize("wrong", ["setting", "size"])
def test_an_error_of_a_start_that_ends_the_program_is_one_sentence_and_the_last(wrong):
    for rank, ended in enumerate(run(ENDS, 2, arguments=[wrong], deadline_s=60).ranks):
        assert ended.code == 1
        assert "Traceback" not in ended.output
        *before, last = ended.output.splitlines()
        assert last.startswith("rdmacoll.ConfigError: "), ended.output
        assert not [line for line in before if line.startswith("rdmacoll.ConfigError")]
        if wrong == "setting":
            assert ("rank 1 could not start: init() has no setting 'nonsense'" in last) == (rank != 1)


def test_a_wrong_setting_is_said_before_the_others_come(monkeypatch, capfd):
    monkeypatch.setattr(bootstrap, "_ANNOUNCE_S", 0.05)
    start = bootstrap.Start(Launch("a test", 1, 2, "a:1"))
    rows, _ = load().readable_settings()
    for wait_s in (0.0, 0.5):
        with start.report_if_slow(ConfigError("A is wrong."), Values(rows)):
            time.sleep(wait_s)
    assert capfd.readouterr().err.count("A is wrong. This rank waits for the other ranks") == 1


def test_a_wrong_value_names_variable_value_and_what_is_allowed():
    entry_program = """
import rdmacoll, os
from ranks import report
try:
    rdmacoll.init()
except rdmacoll.ConfigError as error:
    report(str(error), rank=0)
"""
    outcome = run(entry_program, 1, env={"RDMACOLL_ORDER": "alphabetical"})
    (text,) = outcome.succeeded()
    assert "RDMACOLL_ORDER" in text
    assert "alphabetical" in text
    assert "canonical" in text


def test_a_wrong_secret_ends_the_stranger_and_not_the_job(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"{name}: 0123456789abcdef")
        (tmp_path / name).chmod(0o600)
    outcome = run(
        refused_start(),
        2,
        env={"RDMACOLL_SECRET_FILE": str(tmp_path / "one"), "RDMACOLL_START_TIMEOUT_S": "2"},
        env_of={1: {"RDMACOLL_SECRET_FILE": str(tmp_path / "two")}},
    )
    assert "secret" in outcome.ranks[1].report
    assert "rank 1 of 2" in outcome.ranks[0].report
    assert "does not know the job's secret" in outcome.ranks[0].output


def test_a_world_of_one_is_refused_what_two_ranks_are_refused():
    env = {"RDMACOLL_TRANSPORT": "rdma", "RDMACOLL_DEVICE": "no_such_device"}
    texts = [text for ranks in (1, 2) for text in run(refused_start(), ranks, env=env).succeeded()]
    assert len(texts) == 3
    assert "RDMA was requested" in texts[0]
    assert len({text.partition("cannot use it:")[2] for text in texts}) == 1


def test_a_variable_that_is_no_setting_is_told_once():
    env = {"RDMACOLL_TRANSPROT": "tcp"}
    outcome = run("import rdmacoll; rdmacoll.init()", 2, env=env)
    outcome.succeeded()
    sentence = "RDMACOLL_TRANSPROT is no setting of this version; did you mean RDMACOLL_TRANSPORT?"
    assert [rank.output.count(sentence) for rank in outcome.ranks] == [1, 0]
