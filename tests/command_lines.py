"""Runs commands of `rdmacoll` for tests: in forked processes, or on ranks."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fork_server import Parent
from ranks import FOREIGN, ROOT, clean_environment, free_port, mpirun_command


def command_line(
    tmp_path: Path,
    *arguments: str,
    ranks: int = 0,
    launcher: str = "mpirun",
    env: dict[str, str] | None = None,
    timeout_s: float = 400,
) -> tuple[int, Any, str]:
    """Runs a command, on ranks of the launcher if their number is given. Launcher "tcp" forks them, which
    takes less time. Returns exit code, JSON file and output. Raises AssertionError if the output has a
    table of Markdown: a terminal gets columns."""
    path = tmp_path / "result.json"
    words = [*arguments, "--json", str(path)]
    environ = clean_environment({"COLUMNS": "200", **(env or {})})
    if ranks and launcher == "tcp":
        code, output = _forked_commands(words, _forked_environs(environ, ranks, tmp_path), timeout_s)
    elif ranks or "PYTHONPATH" in (env or {}):
        command = [sys.executable, "-m", "rdmacoll", *words]
        result = subprocess.run(
            [*(mpirun_command(ranks) if ranks else []), *command],
            env=environ,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        code, output = result.returncode, result.stdout + result.stderr
    else:
        code, output = _forked_commands(words, [environ], timeout_s)
    assert "---:" not in output, f"Markdown reached the terminal:\n{output}"
    found = json.loads(path.read_text()) if path.exists() else None
    return code, found, output


@functools.lru_cache(maxsize=1)
def _command_line() -> Parent:
    """The shared parent of command lines. They read all variables at run time, except Python's own."""
    own = (*FOREIGN, "COLUMNS", "HOROVOD_", "TF_CONFIG", "XDG_CACHE_HOME")
    return Parent(clean_environment(), ("rdmacoll.cli.main", "rich.table"), own)


def _forked_commands(
    words: Sequence[str], environs: Sequence[Mapping[str, str]], timeout_s: float
) -> tuple[int, str]:
    """Runs the command once with each environment, at once. Returns the largest exit code and all output."""
    program = str(ROOT / "rdmacoll" / "cli" / "main.py")
    with tempfile.TemporaryFile() as output:
        processes = [_command_line().start([program, *words], environ, output) for environ in environs]
        try:
            code = max(process.wait(timeout_s) for process in processes)
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also ends its children
        output.seek(0)
        return code, output.read().decode(errors="replace")


def _forked_environs(environ: Mapping[str, str], ranks: int, folder: Path) -> list[dict[str, str]]:
    world = {
        "RDMACOLL_SIZE": str(ranks),
        "RDMACOLL_RENDEZVOUS": f"127.0.0.1:{free_port()}",
        "RDMACOLL_SECRET_FILE": str(folder / "secret"),
    }
    return [{**environ, **world, "RDMACOLL_RANK": str(rank)} for rank in range(ranks)]
