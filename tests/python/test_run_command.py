"""`rdmacoll run`: output, failures, signals, and ranks over ssh."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from processes import is_alive, left_alive
from ranks import clean_environment

from rdmacoll._launch.host_link import remote_command

RUN = [sys.executable, "-m", "rdmacoll", "run"]
DEADLINE_S = 120
SUM = """
import os, sys
import numpy as np, rdmacoll
rdmacoll.init()
total = rdmacoll.engine.allreduce(np.ones(1), op=rdmacoll.Sum)
print("sum", total[0], "of rank", rdmacoll.rank())
print("an error line", file=sys.stderr)
"""
# One line of JSON with the variables of a rank and the secret of its job.
SHOW = """
import json, os, sys
shown = ("RDMACOLL_", "HOROVOD_", "MY_")
names = {name: value for name, value in os.environ.items() if name.startswith(shown)}
names["secret"] = open(names["RDMACOLL_SECRET_FILE"]).read()
names["mode"] = oct(os.stat(names["RDMACOLL_SECRET_FILE"]).st_mode & 0o777)
names["folder"] = os.getcwd()
print(json.dumps(names))
"""
# Says its process and that of a child, and then neither ends by itself.
LASTING = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
if os.environ["HOROVOD_RANK"] in sys.argv[1:]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("pids", os.getpid(), child.pid)
time.sleep(600)
"""
# As a remote host: a shell with an environment of its own.
FAKE_SSH = """#!/bin/sh
{{ printf '%s\\n' "$@"; env; }} >> {log}
for command; do :; done
echo "Welcome to the host."
exec env -i PATH="$PATH" HOME=/ SSH_CONNECTION="127.0.0.1 5 127.0.0.1 22" sh -c "$command"
"""


def launch(
    *words: str, env: Mapping[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *words],
        env=clean_environment(env),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def script(folder: Path, text: str) -> str:
    path = folder / "program.py"
    path.write_text(text)
    return str(path)


@pytest.fixture
def ssh(tmp_path: Path) -> tuple[dict[str, str], Path]:
    """The environment with an ssh that stays on this host, and the file with its arguments and variables."""
    folder, log = tmp_path / "bin", tmp_path / "ssh.log"
    folder.mkdir()
    (folder / "ssh").write_text(FAKE_SSH.format(log=log))
    (folder / "ssh").chmod(0o755)
    log.touch()
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}, log


def shown(done: subprocess.CompletedProcess[str]) -> dict[int, dict[str, str]]:
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"^\[(\d+)\]<stdout>:(\{.*\})$", done.stdout, re.MULTILINE)
    return {int(rank): json.loads(text) for rank, text in lines}


def test_two_ranks_meet_and_each_line_has_its_rank(tmp_path: Path) -> None:
    done = launch("-np", "2", sys.executable, script(tmp_path, SUM))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:sum 2.0 of rank {rank}" for rank in (0, 1)]
    for rank in (0, 1):
        assert f"[{rank}]<stderr>:an error line\n" in done.stderr


def test_ranks_know_their_places_as_under_horovodrun(tmp_path: Path) -> None:
    done = launch("-np", "3", sys.executable, script(tmp_path, SHOW), folder=tmp_path)
    ranks = shown(done)
    assert sorted(ranks) == [0, 1, 2]
    assert len({one["RDMACOLL_JOB_ID"] for one in ranks.values()}) == 1
    for rank, one in ranks.items():
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
        places = [one[f"HOROVOD_{name}"] for name in names]
        assert places == [str(rank), "3", str(rank), "3", "0", "1", "localhost"]
        assert (one["RDMACOLL_RANK"], one["RDMACOLL_SIZE"]) == (str(rank), "3")
        assert (one["mode"], one["folder"]) == ("0o600", str(tmp_path))
        assert not Path(one["RDMACOLL_SECRET_FILE"]).parent.exists()


def test_output_goes_to_files_too_and_is_not_mixed_within_lines(tmp_path: Path) -> None:
    program = """
import os, sys, time
for part in ("a", "b", "c"):
    for number in range(20):
        sys.stdout.write(part * 7); sys.stdout.flush(); time.sleep(0.001)
    sys.stdout.write("\\r" if part == "a" else "\\n" if part == "b" else "")
"""
    folder = tmp_path / "out"
    done = launch("-np", "2", "--output-filename", str(folder), sys.executable, script(tmp_path, program))
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        prefix = f"[{rank}]<stdout>:"
        lines = [f"{prefix}{'a' * 140}\r", f"{prefix}{'b' * 140}\n", f"{prefix}{'c' * 140}\n"]
        file = folder / f"rank.{rank}"
        assert (file / "stdout").read_bytes().decode() == "".join(lines)
        assert (file / "stderr").read_text() == ""
    assert len(re.findall(r"\[[01]\]<stdout>:(?:a{140}|b{140}|c{140})(?=\s)", done.stdout)) == 6


def test_times_stand_before_lines_on_request(tmp_path: Path) -> None:
    done = launch("-np", "1", "-prefix-timestamp", "echo", "text")
    assert re.fullmatch(r"\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4}\[0\]<stdout>:text\n", done.stdout)


def test_the_first_failure_is_the_last_thing_on_the_screen(tmp_path: Path) -> None:
    program = SUM + "if rdmacoll.rank() == 1:\n    raise ValueError('planted')\n"
    program += "rdmacoll.engine.allreduce(np.ones(1))\n"
    result = tmp_path / "result.json"
    done = launch("-np", "2", "--json", str(result), sys.executable, script(tmp_path, program))
    assert done.returncode == 1
    last = done.stderr[done.stderr.index("rdmacoll run: rank 1 of 2 (localhost, pid ") :].splitlines()
    assert "failed first: exit code 1, and the other ranks were ended. Its last lines:" in last[0]
    assert last[1] == "  Traceback (most recent call last):"
    assert "  ValueError: planted" in last
    assert all(line.startswith("  ") for line in last[1:])
    found = json.loads(result.read_text())
    assert (found["ok"], found["exit_code"], found["failed"]["rank"]) == (False, 1, 1)


@pytest.mark.parametrize(
    ("failing", "code", "reason"),
    [("sys.exit(7)", 7, "exit code 7"), ("os.kill(os.getpid(), 9)", 137, "killed by SIGKILL")],
)
def test_the_exit_code_is_that_of_the_first_failed_rank(
    tmp_path: Path, failing: str, code: int, reason: str
) -> None:
    program = f"""
import os, sys, time
if os.environ["HOROVOD_RANK"] == "2":
    {failing}
time.sleep(600)
"""
    begin = time.monotonic()
    done = launch("-np", "3", sys.executable, script(tmp_path, program))
    assert done.returncode == code
    assert re.search(rf"rank 2 of 3 \(localhost, pid \d+\) failed first: {reason}", done.stderr)
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize(
    ("last", "named"),
    [("", "rank 1 of 2"), ("rdmacoll.shutdown(); rank and sys.exit(0); rdmacoll.init()", "rank 1 of 2")],
)
def test_a_rank_that_ends_well_without_the_init_of_the_others_is_named(
    tmp_path: Path, last: str, named: str
) -> None:
    """It is an error soon, and not when the limit of a start has passed."""
    first = f"rdmacoll.init(); {last}" if last else "rank and sys.exit(0); rdmacoll.init()"
    text = f"import os, sys, rdmacoll\nrank = int(os.environ['HOROVOD_RANK'])\n{first}\n"
    env = {"RDMACOLL_START_TIMEOUT_S": "600"}
    done = launch("-np", "2", sys.executable, script(tmp_path, text), env=env)
    assert done.returncode == 1
    assert named in done.stderr.splitlines()[-1]
    assert "exit code 0 without the init() in which rank 0 waits for it." in done.stderr.splitlines()[-1]


def test_ranks_may_end_without_init_if_none_waits_for_them(tmp_path: Path) -> None:
    assert launch("-np", "3", "true").returncode == 0


def test_a_program_that_is_not_there_is_named() -> None:
    done = launch("-np", "2", "no-such-program")
    assert done.returncode == 127
    assert "failed first: cannot start no-such-program: No such file or directory" in done.stderr


@pytest.mark.parametrize(
    ("command", "cause"),
    [("train.py", "No such file or directory"), ("./train.py", "Permission denied")],
)
def test_a_program_without_its_python_is_refused_with_the_cure(
    tmp_path: Path, command: str, cause: str
) -> None:
    (tmp_path / "train.py").write_text("")
    done = launch("-np", "2", command, folder=tmp_path)
    assert f'cannot start {command}: {cause} (write "python {command}"), and' in done.stderr


@pytest.mark.parametrize("ends_by", ["SIGTERM", "SIGINT", "SIGKILL"])
@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "ssh"])
def test_no_process_is_left_after_a_signal(
    tmp_path: Path, ssh: tuple[dict[str, str], Path], ends_by: str, is_remote: bool
) -> None:
    hosts = "localhost:1,other-host:1" if is_remote else "localhost:2"
    # With SIGINT, rank 1 is one that ignores SIGTERM.
    stubborn = ["1"] if ends_by == "SIGINT" else []
    process = subprocess.Popen(
        [*RUN, "-np", "2", "-H", hosts, sys.executable, script(tmp_path, LASTING), *stubborn],
        env=clean_environment(ssh[0]),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    pids: list[int] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            pids += map(int, line.rpartition("pids")[2].split())
            if len(pids) == 4:
                break
        assert len(pids) == 4
        process.send_signal(signal.Signals[ends_by])
        code = process.wait(DEADLINE_S)
        assert left_alive(pids, 25) == []
    finally:
        process.kill()
        process.wait()
        for pid in pids:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
    assert code == {"SIGTERM": 143, "SIGINT": 130, "SIGKILL": -9}[ends_by]


def test_ssh_starts_ranks_and_carries_no_secret_in_arguments_or_environment(
    tmp_path: Path, ssh: tuple[dict[str, str], Path]
) -> None:
    environ, log = ssh
    words = ["-np", "3", "-H", "localhost:1,other-host:2", "-p", "2222", "-i", "key.pem"]
    program = script(tmp_path, SHOW)
    done = launch(*words, sys.executable, program, env={**environ, "MY_TOKEN": "a b'c"}, folder=tmp_path)
    ranks = shown(done)
    assert [ranks[rank]["HOROVOD_HOSTNAME"] for rank in range(3)] == ["localhost", "other-host", "other-host"]
    places = [[ranks[rank][f"HOROVOD_{name}"] for name in ("LOCAL_RANK", "CROSS_RANK")] for rank in range(3)]
    assert places == [["0", "0"], ["0", "1"], ["1", "0"]]
    assert {one["MY_TOKEN"] for one in ranks.values()} == {"a b'c"}
    assert {one["folder"] for one in ranks.values()} == {str(tmp_path)}
    (secret,) = {one["secret"] for one in ranks.values()}
    text = log.read_text()
    assert len(secret) == 64
    assert secret not in text
    arguments = text.partition("\nexec ")[0].splitlines()
    assert arguments[-5:] == ["-p", "2222", "-i", "key.pem", "other-host"]
    assert "MY_TOKEN" not in text.partition("PATH=")[0]


def test_ranks_over_ssh_meet(tmp_path: Path, ssh: tuple[dict[str, str], Path]) -> None:
    file = tmp_path / "hosts"
    file.write_text("# two hosts\nother-host slots=1\n\nlocalhost slots=1\n")
    done = launch("-np", "2", "--hostfile", str(file), sys.executable, script(tmp_path, SUM), env=ssh[0])
    assert done.returncode == 0, done.stderr
    assert "[1]<stdout>:sum 2.0 of rank 1" in done.stdout


def test_a_host_without_ssh_is_named_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\necho 'Permission denied (publickey).' >&2\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    for options in ("", "-p 2222 -i key.pem "):
        done = launch(*options.split(), "-H", "localhost:1,other-host:1", "true", env={"PATH": path})
        assert done.returncode == 1
        assert "cannot start ranks on other-host: Permission denied (publickey)." in done.stderr
        assert f'Try "ssh {options}other-host true"' in done.stderr


def test_a_rank_that_ends_well_leaves_no_children(tmp_path: Path) -> None:
    program = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)
"""
    done = launch("-np", "1", sys.executable, script(tmp_path, program))
    assert done.returncode == 0, done.stderr
    assert left_alive([int(done.stdout.rpartition(":")[2])], 25) == []


def test_a_failed_rank_that_names_a_rank_of_another_job_gives_the_exit_code() -> None:
    done = launch("-np", "1", "sh", "-c", "echo 'RankFailedError: rank 5 left' >&2; exit 3")
    assert done.returncode == 3
    assert "rank 0 of 1 " in done.stderr.splitlines()[-2]


@pytest.mark.parametrize("redirection", ["| true", "2>&1 | true", ">&-", "2>&-", ">&- 2>&-"])
def test_the_exit_code_stays_if_nobody_reads(redirection: str) -> None:
    run = shlex.join([*RUN, "-np", "1", "sh", "-c", "sleep 0.5; echo a; exit 3"])
    line = f"set -o pipefail; {run} {redirection}"
    done = subprocess.run(["bash", "-c", line], env=clean_environment(), timeout=DEADLINE_S, check=False)
    assert done.returncode == 3


@pytest.mark.parametrize(("redirection", "place"), [(">/dev/full", "standard output"), ("", "rank.0/stdout")])
def test_output_that_cannot_be_written_is_told_with_its_place(
    tmp_path: Path, redirection: str, place: str
) -> None:
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "stdout").symlink_to("/dev/full")
    words = ["--output-filename", str(tmp_path)] if not redirection else []
    line = shlex.join([*RUN, "-np", "1", *words, "echo", "a"]) + redirection
    done = subprocess.run(
        ["bash", "-c", line],
        env=clean_environment(),
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (said,) = [text for text in done.stderr.splitlines() if "cannot be written" in text]
    assert f"{place}: No space left on device. Make room there" in said, done.stderr


def test_a_folder_for_output_that_cannot_be_made_is_told_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = launch("-np", "2", "--output-filename", str(tmp_path / "file" / "out"), "echo", "a")
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert f"rank 0 cannot be written to {tmp_path}/file/out/rank.0: Not a directory. Name a folder" in said


def test_the_warning_of_one_core_has_a_cure_for_each_launcher(tmp_path: Path) -> None:
    core = str(min(os.sched_getaffinity(0)))
    line = ["taskset", "-c", core, *RUN, "-np", "2", sys.executable, script(tmp_path, SUM)]
    done = subprocess.run(
        line, env=clean_environment(), timeout=DEADLINE_S, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (said,) = [text for text in done.stderr.splitlines() if "rank 0] warning" in text]
    assert "may use one core only" in said
    assert "srun --cpu-bind=none, or a wider taskset around another launcher." in said


def test_the_exit_code_stays_if_the_terminal_is_gone() -> None:
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [*RUN, "-np", "1", "sh", "-c", "sleep 1; echo a; echo b >&2; exit 3"],
        env=clean_environment(),
        stdout=end,
        stderr=end,
    )
    os.close(end)
    os.close(terminal)
    assert process.wait(DEADLINE_S) == 3


def test_a_rank_ends_though_its_child_prints_without_end() -> None:
    done = launch("-np", "1", "sh", "-c", "yes & sleep 0.2; exit 3")
    assert done.returncode == 3


def test_a_wrong_command_line_is_told_in_a_rank_of_another_job() -> None:
    rank = {"RDMACOLL_RANK": "1", "RDMACOLL_SIZE": "2", "RDMACOLL_RENDEZVOUS": "localhost:4000"}
    assert "0 is not in the range" in launch("-np", "0", "true", env=rank).stderr


def test_an_agent_starts_by_a_path_with_spaces(tmp_path: Path) -> None:
    python = tmp_path / "a b" / "python"
    python.parent.mkdir()
    python.symlink_to(os.path.realpath(sys.executable))
    *_, line = remote_command("host", str(python), port=None, identity_file=None, connect_s=1)
    text = b"import sys; print(sys.executable)"
    done = subprocess.run(
        ["sh", "-c", line], input=b"%d\n%s" % (len(text), text), capture_output=True, timeout=DEADLINE_S
    )
    assert done.stdout.decode() == f"{python}\n", done.stderr
