"""Tests the guest itself: it returns status and output, names failures, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdma import guest, uml
from rdma.cache import GuestError
from rdma.command import NO_STATUS, TIMED_OUT, USAGE
from rdma.machine import Launch, Options, Result

pytestmark = [pytest.mark.rdma, pytest.mark.usefixtures("guest_is_ready")]

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "guest"
BASE = guest.base_folder(Options().memory_bytes)
# Letters of /proc/sysrq-trigger that end the kernel while a command runs.
DEATHS = {"crash": "c", "power off": "o", "restart": "b"}


# QEMU is much slower.
KINDS = ["uml", pytest.param("qemu", marks=pytest.mark.slow)]


def sh(script: str, kernel: str = "auto", timeout_s: float = 120.0, **options: object) -> Result:
    return guest.run(["/bin/sh", "-c", script], Options(kernel=kernel, timeout_s=timeout_s, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [0, 1, 77, 255])
def test_the_exit_status_comes_back(code: int) -> None:
    assert sh(f"exit {code}", "uml").code == code


def test_a_program_that_is_missing_is_127_and_a_signal_128_and_more() -> None:
    assert guest.run(["no-such-program"], Options()).code == 127
    assert sh("kill -9 $$").code == 128 + signal.SIGKILL


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_guest_that_dies_is_a_failure(death: str, kind: str) -> None:
    with pytest.raises(GuestError, match=f"the {kind} guest ended without an exit status"):
        sh(f"echo {DEATHS[death]} >/proc/sysrq-trigger; sleep 20; exit 0", kind)


def test_the_command_does_not_run_again_after_a_restart(tmp_path: Path) -> None:
    with pytest.raises(GuestError, match="without an exit status"):
        sh(f"echo once >>{tmp_path}/runs; sync; echo b >/proc/sysrq-trigger; sleep 20", writable=[tmp_path])
    assert (tmp_path / "runs").read_text() == "once\n"


@pytest.mark.parametrize("kind", KINDS)
def test_output_is_whole_apart_and_free_of_kernel_messages(kind: str) -> None:
    lines = 200_000
    kernel_says = "echo '<0>words of the kernel' >/dev/kmsg"
    result = sh(f"{kernel_says}; seq {lines}; printf 'a\\r\\n\\000\\377\\004z' >&2; exit 77", kind)
    assert result.code == 77
    assert result.stdout == "".join(f"{number}\n" for number in range(1, lines + 1)).encode()
    assert result.stderr == b"a\r\n\x00\xff\x04z"
    assert "words of the kernel" in result.console


def test_what_the_command_leaves_running_does_not_hold_the_guest() -> None:
    result = sh("sleep 1000 & echo started")
    assert (result.code, result.stdout) == (0, b"started\n")
    assert result.seconds < 60


def test_files_environment_and_python_are_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDMACOLL_LOG", 'it\'s "passed" $on\nhere')
    monkeypatch.setenv("NOT_PASSED", "1")
    program = (
        "import os, sys, numpy, rdmacoll; print(os.getcwd(), rdmacoll.__file__, sys.prefix);"
        "print(repr(os.environ['RDMACOLL_LOG']), os.environ.get('NOT_PASSED'), os.environ['MORE'])"
    )
    options = Options(cwd=tmp_path, environment={"MORE": "more", "PYTHONPATH": str(HERE.parent.parent)})
    result = guest.run([sys.executable, "-c", program], options)
    assert result.code == 0, result.stderr.decode()
    where, said = result.stdout.decode().splitlines()
    assert where == f"{tmp_path} {HERE.parent.parent}/rdmacoll/__init__.py {sys.prefix}"
    assert said == f"{os.environ['RDMACOLL_LOG']!r} None more"


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_the_host_stay_as_they_are_but_for_writable_folders(tmp_path: Path, kind: str) -> None:
    kept, lost = tmp_path / "kept", tmp_path / "lost"
    kept.mkdir()
    lost.mkdir()
    (lost / "old").write_text("old")
    script = f"echo new >{kept}/new && echo new >{lost}/new && rm {lost}/old && cat {lost}/new {kept}/new"
    assert sh(script, kind, writable=[kept]).stdout == b"new\nnew\n"
    assert (kept / "new").read_text() == "new\n"
    assert [path.name for path in lost.iterdir()] == ["old"]


def test_a_writable_folder_that_is_missing_is_made(tmp_path: Path) -> None:
    missing = tmp_path / "not" / " yet"
    assert sh(f"echo new >'{missing}/new'", writable=[missing]).code == 0
    assert (missing / "new").read_text() == "new\n"


def test_a_folder_that_cannot_be_mounted_ends_the_guest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest, "_make_writable", lambda _: None)  # as if the folder vanished after the check
    with pytest.raises(
        GuestError, match=f"gave up: the folder {tmp_path}/gone of the host cannot be mounted"
    ):
        sh("true", "uml", writable=[tmp_path / "gone"])


def test_as_many_hosts_as_asked_for() -> None:
    result = sh("ls /sys/class/infiniband; echo $RDMACOLL_TEST_DEVICE", hosts=4)
    assert result.stdout.split() == [b"rxe1", b"rxe2", b"rxe3", b"rxe4", b"rxe1,rxe2,rxe3,rxe4"]
    with pytest.raises(GuestError, match="0 hosts are not possible"):
        sh("true", hosts=0)


def test_a_command_that_is_late_is_named() -> None:
    with pytest.raises(
        guest.TimedOutError, match=r"not done within 2 s in the \w+ guest: /bin/sh -c 'sleep 60'"
    ):
        sh("sleep 60", timeout_s=2)


def test_the_program_has_exit_codes_of_its_own_for_what_is_no_status() -> None:
    def code_of(*words: str) -> tuple[int, str]:
        done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr

    assert code_of("--hosts", "1", "--", "sh", "-c", "exit 3") == (3, "")
    assert code_of()[0] == USAGE
    code, said = code_of("--timeout", "2", "sleep", "60")
    assert (code, said.count("\n")) == (TIMED_OUT, 1)
    code, said = code_of("sh", "-c", "echo c >/proc/sysrq-trigger; sleep 9")
    assert (code, said.count("\n")) == (NO_STATUS, 1)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--memory", "lots"],
            '"lots" is no amount of memory: give a whole number and K, M or G (--memory 2G)',
        ),
        (["--memory", "10"], '"10" is no amount of memory: give a whole number and K, M or G (--memory 2G)'),
        (["--memory", "10M"], "no guest starts with 10M of memory: give it 128M at least (--memory 2G)"),
        (["--hosts", "100"], "100 hosts are not possible: 1 to 99 are"),
        (
            ["--console", "FOLDER/no/file"],
            "the file FOLDER/no/file cannot be written: No such file or directory; give --console another",
        ),
        (
            ["--console", "FOLDER"],
            "the file FOLDER cannot be written: Is a directory; give --console another",
        ),
        (
            ["--writable", "FOLDER/file"],
            "the folder FOLDER/file cannot be made: File exists; give --writable another",
        ),
        (
            ["--writable", "/proc/new"],
            "the folder /proc/new cannot be made: No such file or directory; give --writable another",
        ),
    ],
)
def test_what_is_no_guest_is_refused_before_it_starts(
    words: list[str], sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    words = [word.replace("FOLDER", str(tmp_path)) for word in words]
    command = [str(PROGRAM), *words, "--", "echo", "started"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert done.stderr == f"guest: {sentence.replace('FOLDER', str(tmp_path))}\n"


@pytest.mark.slow
def test_where_user_mode_linux_is_refused_qemu_takes_over(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(uml, "launch", lambda *_: Launch(["/bin/false"], {}, "", "", 1))
    result = sh("echo $(nproc) processors")
    assert (result.kernel, result.stdout) == ("qemu", b"2 processors\n")
    assert "the uml guest did not start (exit code 1" in capfd.readouterr().err
    with pytest.raises(guest.NotBootedError):
        sh("true", "uml")


@pytest.mark.slow
def test_qemu_runs_sanitizers_and_passes_traffic(tmp_path: Path) -> None:
    source = tmp_path / "race.cc"
    source.write_text(
        "#include <thread>\nint n;\n"
        "int main() { std::thread a([] { ++n; }), b([] { ++n; }); a.join(); b.join(); return 0; }\n"
    )
    subprocess.run(["g++", "-fsanitize=thread", "-g", source, "-o", tmp_path / "race"], check=True)
    script = f"{tmp_path}/race; echo $?; exec {sys.executable} {HERE}/pingpong.py rxe1 rxe2"
    result = sh(script, "qemu", timeout_s=300)
    assert result.code == 0, result.stderr.decode()
    assert b"ThreadSanitizer: data race" in result.stderr
    code, report = result.stdout.decode().splitlines()
    assert code == "66"  # the sanitizer's exit code for a finding
    assert all(counted["sent_pkts"] >= 1000 for counted in json.loads(report)["counted"].values())


def session_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
    return -1


def processes_in(session: int) -> list[int]:
    numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in numbers if session_of(pid) == session]


def mounts_of_guests() -> set[str]:
    """Returns the mount points in guests' folders. Other programs may mount elsewhere meanwhile."""
    places = {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()}
    return {place for place in places if place.startswith(str(BASE / "rdmacoll-guest-"))}


@contextlib.contextmanager
def guest_that_waits() -> Iterator[tuple[subprocess.Popen[bytes], int, Path]]:
    """Starts a guest and waits for the first output of its command. Yields process, session and folder."""
    command = [str(PROGRAM), "--", "sh", "-c", "echo ready; sleep 600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == b"ready\n"
            (child,) = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
            (folder,) = BASE.glob(f"rdmacoll-guest-*/pid-{program.pid}")
            yield program, session_of(int(child)), folder.parent
        finally:
            program.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_interrupted_guest_leaves_nothing(number: signal.Signals) -> None:
    with guest_that_waits() as (program, session, folder):
        assert processes_in(session)
        program.send_signal(number)
        assert program.wait(20) != 0
    end = time.monotonic() + 10
    while processes_in(session) and time.monotonic() < end:
        time.sleep(0.05)
    assert not processes_in(session)
    if number == signal.SIGKILL:
        assert sh("true").code == 0  # the next run removes its folder
    assert not folder.exists()
    assert not {place for place in mounts_of_guests() if place.startswith(str(folder))}


def test_a_finished_guest_leaves_nothing() -> None:
    before = set(BASE.glob("rdmacoll-guest-*"))
    mounts = mounts_of_guests()
    done = subprocess.run([PROGRAM, "--", "true"], start_new_session=True, timeout=60)
    assert done.returncode == 0
    left = {
        path for path in set(Path("/dev/shm").iterdir()) - before if path.name.startswith("rdmacoll-guest-")
    }
    assert not left
    assert mounts_of_guests() <= mounts
