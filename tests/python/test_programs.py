"""Programs with a limit are ended with all that they have started, and what they said is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from processes import left_alive

from rdmacoll._base.programs import OutOfTimeError, run_program
from rdmacoll.benchmarks import environments
from rdmacoll.errors import ConfigError

# Says the process number of a child that lasts, and lasts too.
STUCK = ["sh", "-c", "sleep 1000 & echo $!; echo no route to the index >&2; wait"]
LIMIT_S = 1.0


def test_a_program_has_one_output_and_a_status() -> None:
    done = run_program(["sh", "-c", "echo out; echo err >&2; exit 3"], 100)
    assert (done.returncode, done.stdout) == (3, "out\nerr\n")
    with pytest.raises(FileNotFoundError):
        run_program(["/no/such/program"], 100)


def test_a_program_that_is_out_of_time_leaves_nothing_behind() -> None:
    with pytest.raises(OutOfTimeError) as caught:
        run_program(STUCK, LIMIT_S)
    child, said = caught.value.output.splitlines()
    assert said == "no route to the index"
    assert left_alive([int(child)], 25) == []


# The second program asks for its parent's end before `Popen` returns there.
@pytest.mark.parametrize("early", ["", "kill -s $2 $PPID;"])
@pytest.mark.parametrize("name", ["TERM", "INT"])
def test_a_request_to_end_ends_the_program_too(tmp_path: Path, name: str, early: str) -> None:
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    text = f"""
        import subprocess, sys
        from rdmacoll._base.programs import run_program
        if {bool(early)}:
            start = subprocess.Popen._execute_child
            def start_and_wait(*arguments):
                start(*arguments)
                sys.stdin.read()
            subprocess.Popen._execute_child = start_and_wait
        program = "sleep 1000 & {early} echo $! > $1; wait"
        run_program(["sh", "-c", program, "sh", *sys.argv[1:]], 1000)
    """
    command = [sys.executable, "-c", textwrap.dedent(text), str(pids), name]
    ends = {"TERM": 128 + signal.SIGTERM, "INT": -signal.SIGINT}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        child = int(pids.read_text())
        if not early:
            process.send_signal(getattr(signal, f"SIG{name}"))
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(100) == ends[name]
    assert left_alive([child], 25) == []


def test_an_install_that_is_out_of_time_says_what_it_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_INSTALL_S", LIMIT_S)
    with pytest.raises(ConfigError) as caught:
        environments._run("grpcio", STUCK)
    text = str(caught.value)
    assert "did not end within 1.0 s. It printed last: " in text
    assert "no route to the index. Look whether" in text
