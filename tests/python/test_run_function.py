"""`rdmacoll.run`: calls of a function on several ranks, and their results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ranks import clean_environment
from test_run_command import FAKE_SSH

import rdmacoll
from rdmacoll._launch import functions
from rdmacoll._launch.sealed_call import LAUNCHER, packed, unpacked

MODULE = """
import numpy as np, rdmacoll

def total(factor, *, offset=0):
    rdmacoll.init()
    value = rdmacoll.engine.allreduce(np.full(1, factor * rdmacoll.rank()), op=rdmacoll.Sum)
    print("the sum is", value[0])
    return rdmacoll.rank(), float(value[0]) + offset

class Own:
    pass

def fails():
    rdmacoll.init()
    if rdmacoll.rank() == 1:
        raise KeyError("planted")
    rdmacoll.engine.barrier()

def own():
    return Own()

def leaves():
    raise SystemExit(0)
"""


def python(folder: Path, program: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a program that finds the module `functions` in its folder."""
    (folder / "functions.py").write_text(MODULE)
    (folder / "program.py").write_text(program)
    return subprocess.run(
        [sys.executable, str(folder / "program.py")],
        env=clean_environment(env),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_results_come_by_rank_from_here_and_over_ssh(tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text(FAKE_SSH.format(log=tmp_path / "log"))
    (tmp_path / "ssh").chmod(0o755)
    program = """
import functions, rdmacoll
hosts = "localhost:2,other:1"
print(rdmacoll.run(functions.total, args=(2.0,), kwargs={"offset": 1}, num_proc=3, hosts=hosts))
"""
    done = python(tmp_path, program, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[(0, 7.0), (1, 7.0), (2, 7.0)]"
    assert "[2]<stdout>:the sum is 6.0" in done.stdout


def test_a_function_of_a_script_travels_by_cloudpickle(tmp_path: Path) -> None:
    program = """
import rdmacoll, warnings
warnings.simplefilter("error")
factor = 3
def scaled(value):
    import rdmacoll
    rdmacoll.init()
    return factor * value + rdmacoll.rank()
print(rdmacoll.run(scaled, (10,), num_proc=2), rdmacoll.is_initialized())
try:
    rdmacoll.run(scaled, (10,), np=2)
except DeprecationWarning as warning:
    print(warning)
"""
    done = python(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["[30, 31] False", "np is deprecated: use num_proc"]


def test_a_function_of_a_script_has_its_source_on_the_ranks(tmp_path: Path) -> None:
    """TensorFlow translates functions by their source, and tracebacks show it."""
    program = """
import inspect, rdmacoll
def outer():
    def inner():
        return 4  # "<dynamic-code>"
    return inspect.getsource(inner).strip(), inner(), inner.__code__.co_consts
print(rdmacoll.run(outer))
"""
    done = python(tmp_path, program)
    assert done.returncode == 0, done.stderr
    source = 'def inner():\n        return 4  # "<dynamic-code>"'
    assert done.stdout.splitlines()[-1] == repr([(source, 4, (None, 4))])


def test_the_rank_that_fails_first_is_the_error(tmp_path: Path) -> None:
    program = """
import functions, rdmacoll
try:
    rdmacoll.run(functions.fails, num_proc=2)
except rdmacoll.RankFailedError as error:
    print(error.rank, error.host, error.cause, "KeyError: 'planted'" in str(error), sep=";")
try:
    rdmacoll.run(functions.leaves)
except rdmacoll.ConfigError as error:
    print(error)
"""
    done = python(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1;localhost;exit code 1;True",
        "rank 0 ended without a result: the function must return, and not exit.",
    ]


def test_an_interrupt_ends_the_ranks(tmp_path: Path) -> None:
    program = """
import os, pathlib, rdmacoll, signal, threading, time
marker = pathlib.Path("pid")
def lasts(path):
    import os, time
    path.write_text(str(os.getpid()))
    time.sleep(600)
def interrupt():
    while not (marker.exists() and marker.read_text()):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
marker = marker.absolute()
threading.Thread(target=interrupt, daemon=True).start()
try:
    rdmacoll.run(lasts, (marker,))
except KeyboardInterrupt:
    pid = marker.read_text()
    print(os.path.exists(f"/proc/{pid}"))
"""  # the agent has waited for its rank
    done = python(tmp_path, f"import os; os.chdir({str(tmp_path)!r})\n{program}")
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def test_pickle_is_refused_where_the_setting_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDMACOLL_OBJECTS", "json")
    with pytest.raises(rdmacoll.ConfigError, match="refuses pickle"):
        rdmacoll.run(os.getpid)


@pytest.mark.parametrize(
    "argument",
    ["max_num_proc", "slots", "reset_limit", "cooldown_range"],
)
def test_arguments_of_elastic_jobs_are_refused_in_other_jobs(argument: str) -> None:
    value = (1, 2) if argument == "cooldown_range" else 2
    with pytest.raises(rdmacoll.ConfigError, match=rf"{argument}.* is for elastic jobs: give --min-np"):
        rdmacoll.run(os.getpid, **{argument: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"func": 3}, "func=3 is not a function: give a function"),
        ({"args": 3}, "args=3 is not a sequence: give a tuple"),
        ({"args": "epochs"}, "args='epochs' is not a sequence: give a tuple"),
        ({"kwargs": [1]}, "kwargs=[1] is not a dictionary: give"),
        ({"num_proc": "2 ranks"}, "num_proc='2 ranks'"),
        *(
            ({name: least - 1}, f"{name}={least - 1} is too small: give {least} or more")
            for name, least in functions._LEAST.items()
        ),
    ],
)
def test_a_wrong_call_is_refused_before_a_rank_starts(
    arguments: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functions.Job, "run", lambda _: pytest.fail("ranks were started"))
    with pytest.raises(rdmacoll.ConfigError, match=re.escape(text)):
        rdmacoll.run(**{"func": os.getpid, "num_proc": 1, **arguments})


def test_a_function_that_cannot_be_pickled_is_refused() -> None:
    import threading

    with pytest.raises(rdmacoll.ConfigError, match="cannot be pickled"):
        rdmacoll.run(threading.Lock().acquire)


def test_nothing_is_unpickled_that_the_secret_does_not_seal() -> None:
    data = packed({"a": 1}, "secret", 1)
    assert unpacked(data, "secret", 1) == {"a": 1}
    for wrong in ((data, "other", 1), (data, "secret", LAUNCHER), (data[:-1] + b"x", "secret", 1)):
        with pytest.raises(rdmacoll.ConfigError, match="not sealed with the job's secret"):
            unpacked(*wrong)
