"""Runs one command in a guest: starts the kernel, passes its output on and returns the exit status."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rdma import qemu, uml
from rdma.cache import GuestError, say
from rdma.machine import Launch, Options, Result, RunFolders, passed_environment

# user-mode Linux is the default. QEMU is for machines that forbid it, and for tests that need two processors.
KINDS = {"uml": uml, "qemu": qemu}
_PREFIX = "rdmacoll-guest-"
_STAGE2 = Path(__file__).resolve().parent / "stage2.sh"
_PR_SET_PDEATHSIG = 1
# Longest wait from the end of the guest's process to the end of its pipes.
_DRAIN_S = 5.0
_CONSOLE_LINES = 4


class RefusedError(GuestError):
    """The options are invalid, and nothing was started."""


class TimedOutError(GuestError):
    """The command did not end within its time."""


class NotBootedError(GuestError):
    """The guest ended before it started the command."""

    def __init__(self, text: str, of_a_signal: bool) -> None:
        super().__init__(text)
        self.of_a_signal = of_a_signal


@dataclass
class _Ended:
    """How the process of a guest ended."""

    code: int
    timed_out: bool
    stdout: bytes
    stderr: bytes
    console: str


def run(
    command: Sequence[str],
    options: Options,
    out: BinaryIO | None = None,
    err: BinaryIO | None = None,
) -> Result:
    """Runs `command` in a guest. Its output also goes to `out` and `err` while it runs.

    Raises GuestError if there is no exit status, for whatever reason.
    """
    if refusal := options.refusal():
        raise RefusedError(refusal)
    for folder in options.writable:
        _make_writable(folder)
    if options.console is not None:
        _make_console(options.console)
    if options.kernel == "qemu":
        return _run_on_qemu(command, options, out, err)
    try:
        if refusal := uml.refusal():
            raise NotBootedError(refusal, of_a_signal=False)
        return _run_on("uml", command, options, out, err)
    except NotBootedError as error:
        if options.kernel == "uml":
            raise
        say(f"{error}; going on with QEMU")
        return _run_on_qemu(command, options, out, err)


def _make_writable(folder: Path) -> None:
    """Creates a writable folder if it is missing. Raises RefusedError if it cannot be made or written.

    Without the folder on the host, the guest would write into a folder of its own and lose the files.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"the folder {folder} cannot be made: {error.strerror}; give --writable another"
        raise RefusedError(text) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RefusedError(f"nobody here may write into the folder {folder}; give --writable another")


def _make_console(file: Path) -> None:
    """Checks before the run that the console's file can be written. Raises RefusedError if not."""
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o666))
    except OSError as error:
        text = f"the file {file} cannot be written: {error.strerror}; give --console another"
        raise RefusedError(text) from error


def prepare(kernel: str, jobs: int | None = None) -> None:
    """Puts the files for runs on this kernel into the cache. "auto" prepares the kernel that it takes."""
    kind = kernel if kernel != "auto" else "qemu" if uml.refusal() else "uml"
    KINDS[kind].prepare(jobs)


def _run_on_qemu(
    command: Sequence[str], options: Options, out: BinaryIO | None, err: BinaryIO | None
) -> Result:
    """Runs on QEMU. QEMU 7.2 sometimes crashes before the command begins, and is then started once more."""
    try:
        return _run_on("qemu", command, options, out, err)
    except NotBootedError as error:
        if not error.of_a_signal:
            raise
        say(f"{error}; starting it once more")
        return _run_on("qemu", command, options, out, err)


def _run_on(
    kind: str, command: Sequence[str], options: Options, out: BinaryIO | None, err: BinaryIO | None
) -> Result:
    begin = time.monotonic()
    with _work_folder(options.memory_bytes) as folder, _Pipes() as pipes:
        place = RunFolders(folder / "exchange", folder / "kernel", pipes.write_end[0], pipes.write_end[1])
        place.exchange.mkdir()
        place.files.mkdir()
        launch = KINDS[kind].launch(options, place)
        _write_exchange(place.exchange, kind, command, options, launch)
        ended = _start_and_follow(launch, pipes, options.timeout_s, out, err)
        if options.console is not None:
            options.console.write_text(ended.console)
        seconds = time.monotonic() - begin
        code = _status(kind, command, place.exchange, ended, options.timeout_s, seconds)
        return Result(code, ended.stdout, ended.stderr, ended.console, kind, seconds)


def _write_exchange(
    exchange: Path, kind: str, command: Sequence[str], options: Options, launch: Launch
) -> None:
    settings = {"KIND": kind, "HOSTS": str(options.hosts), "OUT": launch.out, "ERR": launch.err}
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in settings.items()]
    (exchange / "settings").write_text("".join(lines))
    environment = passed_environment(options.hosts, options.environment)
    words = ["env", "-i", *(f"{name}={value}" for name, value in environment.items()), *command]
    (exchange / "command").write_text(
        f"cd {shlex.quote(str(options.cwd))} || exit 126\nexec {shlex.join(words)}\n",
        errors="surrogateescape",
    )
    writable = "".join(f"{path.resolve()}\n" for path in options.writable)
    (exchange / "writable").write_text(writable)
    shutil.copy(_STAGE2, exchange / "stage2")


def _status(
    kind: str, command: Sequence[str], exchange: Path, ended: _Ended, timeout_s: float, seconds: float
) -> int:
    """Returns the command's exit status. Raises the error that says why there is none."""
    with contextlib.suppress(OSError, ValueError):
        return int((exchange / "status").read_text())
    if ended.timed_out:
        raise TimedOutError(f"not done within {timeout_s:g} s in the {kind} guest: {shlex.join(command)}")
    if (exchange / "failure").exists():
        sentence = (exchange / "failure").read_text(errors="replace").strip()
        raise GuestError(f"the {kind} guest gave up: {sentence}")
    how = f"signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
    words = _last_words(ended.console)
    if not (exchange / "started").exists():
        text = f"the {kind} guest did not start ({how} after {seconds:.1f} s){words}"
        raise NotBootedError(text, of_a_signal=ended.code < 0)
    raise GuestError(f"the {kind} guest ended without an exit status ({how} after {seconds:.1f} s){words}")


def _last_words(console: str) -> str:
    """Returns the kernel's panic or its last lines, for the end of an error text."""
    lines = [line.strip() for line in console.splitlines() if line.strip()]
    panic = [line for line in lines if "Kernel panic" in line]
    words = panic[:1] or lines[-_CONSOLE_LINES:]
    return f"; its last words: {' | '.join(words)}" if words else ""


def base_folder(memory_bytes: int) -> Path:
    """Returns the parent folder for runs: /dev/shm, or the folder for temporary files.

    /dev/shm must have enough free memory. It must not be mounted noexec, since user-mode Linux executes its
    guest's pages from a file there.
    """
    base = Path("/dev/shm")
    if not os.access(base, os.W_OK) or os.statvfs(base).f_flag & os.ST_NOEXEC:
        return Path(tempfile.gettempdir())
    return base if shutil.disk_usage(base).free >= memory_bytes else Path(tempfile.gettempdir())


@contextlib.contextmanager
def _work_folder(memory_bytes: int) -> Iterator[Path]:
    """Provides a folder with room for the guest's memory. If this run is killed, the next run removes it."""
    base = base_folder(memory_bytes)
    for left in base.glob(f"{_PREFIX}*"):
        _remove_if_left(left)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    try:
        with (folder / "unlocked").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / "unlocked").rename(folder / "lock")  # other runs see the file only while it is locked
            (folder / f"pid-{os.getpid()}").touch()
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_if_left(folder: Path) -> None:
    """Removes the folder of a killed run. No process holds its lock."""
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return


class _Pipes:
    """Three pipes from the guest: the command's stdout and stderr, and the kernel's console."""

    def __init__(self) -> None:
        self.read_end: list[int] = []
        self.write_end: list[int] = []

    def __enter__(self) -> _Pipes:
        for _ in range(3):
            read_end, write_end = os.pipe()
            self.read_end.append(read_end)
            self.write_end.append(write_end)
        return self

    def close_write_ends(self) -> None:
        """Closes this process's write ends. Call after the start, when the guest holds them."""
        while self.write_end:
            os.close(self.write_end.pop())

    def __exit__(self, *_: object) -> None:
        self.close_write_ends()
        while self.read_end:
            os.close(self.read_end.pop())


def _in_child(parent: int, processors: int) -> Callable[[], None]:
    """Returns the function that runs in the child before exec.

    The function binds the child to its cores. It also arranges that the child is killed when the thread that
    started it ends.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    allowed = sorted(os.sched_getaffinity(0))
    cores = random.sample(allowed, min(processors, len(allowed)))

    def arrange() -> None:
        os.sched_setaffinity(0, cores)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


def _start_and_follow(
    launch: Launch, pipes: _Pipes, timeout_s: float, out: BinaryIO | None, err: BinaryIO | None
) -> _Ended:
    process = subprocess.Popen(
        launch.command,
        env=dict(launch.environment),
        stdin=subprocess.DEVNULL,
        stdout=pipes.write_end[2],
        stderr=pipes.write_end[2],
        pass_fds=pipes.write_end[:2],
        start_new_session=True,
        preexec_fn=_in_child(os.getpid(), launch.processors),
    )
    try:
        pipes.close_write_ends()
        return _follow(process, pipes, time.monotonic() + timeout_s, [out, err, None])
    finally:
        _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills the guest's process group. The processes that user-mode Linux forks die with it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _follow(
    process: subprocess.Popen[bytes], pipes: _Pipes, deadline: float, sinks: Sequence[BinaryIO | None]
) -> _Ended:
    """Passes output on until the guest has ended and its pipes are empty, or until its time is over."""
    parts: list[list[bytes]] = [[], [], []]
    timed_out = False
    gone_at: float | None = None
    with selectors.DefaultSelector() as selector:
        for index, read_end in enumerate(pipes.read_end):
            selector.register(read_end, selectors.EVENT_READ, index)
        while selector.get_map():
            for key, _ in selector.select(0.1):
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fd)
                    continue
                parts[key.data].append(data)
                _pass_on(data, sinks[key.data])
            now = time.monotonic()
            if gone_at is None and process.poll() is not None:
                gone_at = now
            if gone_at is None and now > deadline:
                timed_out = True
                _kill(process)
                gone_at = now
            if gone_at is not None and now > gone_at + _DRAIN_S:
                break
    # All pipes may be closed before the process has ended.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline - time.monotonic()))
    _kill(process)
    stdout, stderr, console = (b"".join(part) for part in parts)
    return _Ended(process.returncode, timed_out, stdout, stderr, console.decode(errors="replace"))


def _pass_on(data: bytes, sink: BinaryIO | None) -> None:
    if sink is None:
        return
    try:
        sink.write(data)
        sink.flush()
    except BrokenPipeError:
        sys.exit(128 + signal.SIGPIPE)
