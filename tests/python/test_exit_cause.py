"""The cause that a process gives for its own end, in Pythons that report a raised SystemExit."""

from __future__ import annotations

import subprocess

import pytest
from ranks import ROOT

from rdmacoll._base.exit_cause import reason_in
from release.environments import interpreters

PYTHONS = [str(python) for version, python in interpreters().items() if version in ("3.12", "3.13")]
PROGRAM = """
import atexit, importlib.util, sys
spec = importlib.util.spec_from_file_location("exit_cause", sys.argv[1])
exit_cause = importlib.util.module_from_spec(spec)
spec.loader.exec_module(exit_cause)
own = exit_cause.ExitCause()
own.install_hooks(lambda: print("early"))
atexit.register(lambda: print(own.cause(), exit_cause.is_harmless(own.cause())))
"""


def run_program(program: str) -> tuple[int, list[str]]:
    """Runs a program and returns its exit status and the lines that it prints."""
    done = subprocess.run(
        [PYTHONS[0], "-c", PROGRAM + program, str(ROOT / "rdmacoll" / "_base" / "exit_cause.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.skipif(not PYTHONS, reason="needs Python 3.12")
@pytest.mark.parametrize(
    ("program", "code", "lines"),
    [
        ("raise SystemExit(3)", 3, ["early", "SystemExit: 3 False"]),
        ("raise SystemExit", 0, ["SystemExit: 0 True"]),
        ("exit(2)", 2, ["early", "SystemExit: 2 False"]),
        ("sys.exit(4)", 4, ["early", "SystemExit: 4 False"]),
        ("try:\n    raise SystemExit(3)\nfinally:\n    later = 1", 3, ["early", "SystemExit: 3 False"]),
        ("try:\n    raise SystemExit(3)\nexcept SystemExit:\n    pass", 0, None),
        ("try:\n    sys.exit(3)\nexcept SystemExit:\n    raise ValueError('nan')", 1, None),
        ("import threading\nthreading.Thread(target=lambda: sys.exit(3)).start()", 0, None),
    ],
)
def test_an_exit_that_is_raised_is_known_by_its_code(program, code, lines):
    unknown = "its program ended: its data ended, or it raised SystemExit True"
    expected = lines or (["early", "ValueError: nan False"] if code else [unknown])
    assert run_program(program) == (code, expected)


@pytest.mark.parametrize("before", ["OSError: part 4 is lost\n", ""])
def test_the_traceback_of_a_python_function_in_a_graph_is_no_reason(before):
    places = '  File "a.py", line 7, in read\n    raise OSError(4)\n    ^^^^^\n\n\n'
    trace = f"Traceback (most recent call last):\n\n{places}OSError: part 4 is lost\n\n\n"
    text = f"{before}{trace}\t [[{{{{node PyFunc}}}}]]\n\t [[IteratorGetNext]] [Op:__inference_f_9]"
    assert reason_in(text) == "OSError: part 4 is lost (node PyFunc)"
