"""Starts and ends the ranks of one host, for the launcher.

The launcher sends the text of this file to a Python of the host, directly or through ssh. So the file needs
the standard library alone, and rdmacoll need not be there. Launcher and agent send each other frames over
standard input and output. When standard input ends, the launcher is gone, and the agent ends its ranks.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import time
from typing import Any

FRAME = struct.Struct("!cII")  # kind, rank, bytes that follow
# The first bytes of the agent: a remote shell may print a greeting before them.
MAGIC = b"\nrdmacoll agent 1\n"
# Kinds of frames from the launcher. In an elastic job PLACE gives a worker its place in the next world, and
# RENEW says that a world is to end.
START, END, KILL, PLACE, RENEW = b"s", b"e", b"k", b"p", b"w"
# Kinds of frames from the agent.
HELLO, STDOUT, STDERR, EXIT, RESULT, NOTE, INIT = b"h", b"1", b"2", b"x", b"r", b"n", b"i"
# Names a pipe for ranks. A rank writes its number, as this struct, before it waits for the others in init().
INIT_VARIABLE = "_RDMACOLL_INIT_PIPE"
INIT_MESSAGE = struct.Struct("=I")
# Name the agent's folder for workers of elastic jobs, and a worker's number. In the folder a worker finds its
# place in the next world, and the number of the world that is to end. There it notes what the launcher needs
# for that: rdmacoll/_start/elastic_worker.py.
ELASTIC_VARIABLE, WORKER_VARIABLE = "_RDMACOLL_ELASTIC_FOLDER", "_RDMACOLL_WORKER"
PLACE_FILE, RENEW_FILE, QUESTION_FILE = "place.{}", "renew", "question.{}"
# Frames without a rank have this number. The rank of a frame about a worker is the worker's number.
NO_RANK = 0xFFFFFFFF
# Ranks that ignore SIGTERM for so long get SIGKILL.
GRACE_S = 5.0
_UNSENT_MAX = 1 << 20  # with more unsent bytes the agent stops reading from its ranks
_CHUNK = 1 << 16
_PR_SET_PDEATHSIG = 1
_PORTS = range(15000, 30000)  # below Linux' ephemeral ports
_CANNOT_START, _NOT_FOUND = 126, 127  # as exit codes of shells

_FOLDERS = "rdmacoll-agent-"  # the names of agents' folders begin so
_LIBC = ctypes.CDLL(None)
_AGENT = os.getpid()


class Rank:
    """A rank's process, its process group, and the pipes of its output."""

    def __init__(self, number: int, process: Any) -> None:
        self.number, self.process = number, process
        self.has_group = True  # a process of the group may be alive
        self.kill_at = float("inf")
        self.streams = {process.stdout.fileno(): STDOUT, process.stderr.fileno(): STDERR}

    def signal(self, number: int) -> None:
        """Sends a signal to all processes of the group."""
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):  # PermissionError: a program of another user
            pass

    def look(self) -> None:
        """Notes whether the group of an ended rank still has processes."""
        self.has_group = self.process.returncode is None or _has_process(self.process.pid)


def _has_process(group: int) -> bool:
    """Whether a process of the group is alive. Zombies are not: nobody may ever wait for them."""
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{int(entry)}/stat") as file:
                state, _, its_group, *_ = file.read().rpartition(")")[2].split()
        except (OSError, ValueError):  # not a process, or it has just ended
            continue
        if int(its_group) == group and state not in "ZX":
            return True
    return False


def _locked(folder: str, flags: int) -> int:
    """A descriptor that keeps a folder locked until it is closed. -1: there is no lock for this process."""
    try:
        found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return -1
    try:
        fcntl.flock(found, flags)
    except OSError:
        os.close(found)
        return -1
    return found


def remove_leftovers() -> None:
    """Removes the folders of agents that were killed. A living agent has a lock on its folder."""
    for name in os.listdir(tempfile.gettempdir()):
        path = os.path.join(tempfile.gettempdir(), name)
        lock = _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB) if name.startswith(_FOLDERS) else -1
        if lock >= 0:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _prepare_rank() -> None:
    """Runs in the child before its program: the rank ends with the agent."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != _AGENT:  # the agent died before
        os._exit(_CANNOT_START)


class Agent:
    """The ranks of this host, and the channel to the launcher. Has one thread."""

    def __init__(self) -> None:
        self._ranks: list[Rank] = []
        self._received, self._unsent = bytearray(), bytearray(MAGIC)
        self._is_open = True  # the launcher is there
        self._has_reader = True
        self._folder, self._lock = "", -1
        self._common: dict[str, str] = {}  # the variables of all ranks
        self._inits = -1  # the pipe for ranks
        # Any signal wakes select().
        self._wake, wake_end = os.pipe()
        for end in (self._wake, wake_end, 1):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        # Handlers of the agent are not inherited by ranks, which ignored signals would be.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self._lose_launcher())

    def run(self) -> None:
        """Serves the launcher until it is gone and all ranks have ended."""
        self._send_json(HELLO, NO_RANK, _facts())
        try:
            while self._is_open or any(rank.has_group for rank in self._ranks) or self._unsent:
                self._wait()
                self._reap()
                self._end([one for one in self._ranks if time.monotonic() >= one.kill_at], signal.SIGKILL)
        finally:
            if self._folder:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _wait(self) -> None:
        streams = {fd: rank for rank in self._ranks for fd in rank.streams}
        reads = [self._wake] + ([0] if self._is_open else [])
        reads += [self._inits] if self._inits >= 0 else []
        reads += streams if len(self._unsent) < _UNSENT_MAX else []
        kill_at = min((rank.kill_at for rank in self._ranks if rank.has_group), default=float("inf"))
        timeout_s = min(kill_at - time.monotonic(), 0.1 if not self._is_open else 60.0)
        ready, writable, _ = select.select(reads, [1] if self._unsent else [], [], max(0.0, timeout_s))
        if writable:
            self._flush()
        for fd in ready:
            if fd == self._wake:
                os.read(fd, _CHUNK)
            elif fd == 0:
                self._receive()
            elif fd == self._inits:
                self._forward_inits()
            else:
                self._forward(streams[fd], fd)

    def _flush(self) -> None:
        try:
            del self._unsent[: os.write(1, self._unsent[:_CHUNK])]
        except BlockingIOError:
            pass
        except OSError:
            self._has_reader = False
            self._unsent.clear()
            self._lose_launcher()

    def _send(self, kind: bytes, rank: int, payload: bytes) -> None:
        if self._has_reader:
            self._unsent += FRAME.pack(kind, rank, len(payload)) + payload

    def _send_json(self, kind: bytes, rank: int, value: object) -> None:
        self._send(kind, rank, json.dumps(value).encode())

    def _receive(self) -> None:
        try:
            chunk = os.read(0, _CHUNK)
        except BlockingIOError:  # input and output may be one socket
            return
        if not chunk:
            self._lose_launcher()
        self._received += chunk
        while len(self._received) >= FRAME.size:
            kind, number, length = FRAME.unpack_from(self._received)
            if len(self._received) < FRAME.size + length:
                return
            payload = bytes(self._received[FRAME.size : FRAME.size + length])
            del self._received[: FRAME.size + length]
            if kind == START:
                self._start(json.loads(payload))
            elif kind == PLACE:
                self._write_anew(PLACE_FILE.format(number), payload)
            elif kind == RENEW:
                self._write_anew(RENEW_FILE, payload)
            else:
                ranks = [one for one in self._ranks if number in (NO_RANK, one.number)]
                self._end(ranks, signal.SIGKILL if kind == KILL else signal.SIGTERM)

    def _lose_launcher(self) -> None:
        if self._is_open:
            self._is_open = False
            self._end(self._ranks, signal.SIGTERM)

    @staticmethod
    def _end(ranks: list[Rank], number: int) -> None:
        for rank in ranks:
            if rank.process.returncode is not None:
                rank.look()
            if rank.has_group:
                rank.signal(number)
            again = time.monotonic() + GRACE_S if rank.has_group else float("inf")
            rank.kill_at = again if number == signal.SIGKILL else min(rank.kill_at, again)

    def _start(self, order: dict[str, Any]) -> None:
        """Starts ranks. Later orders start further ones, as the first one says."""
        if not self._folder:
            self._prepare(order)
        self._forget_ended()
        for number, variables in order["ranks"]:
            self._start_rank(number, order["command"], {**self._common, **variables})

    def _forget_ended(self) -> None:
        """Closes the pipes of ranks that have ended with all their processes. A job may start many."""
        for rank in self._ranks:
            if rank.process.returncode is not None:
                rank.look()
                if not rank.has_group:
                    rank.process.stdout.close()
                    rank.process.stderr.close()
        self._ranks = [rank for rank in self._ranks if rank.has_group]

    def _prepare(self, order: dict[str, Any]) -> None:
        remove_leftovers()
        while not os.path.isdir(self._folder):  # another agent may remove it before it is locked
            self._folder = tempfile.mkdtemp(prefix=_FOLDERS)
            self._lock = _locked(self._folder, fcntl.LOCK_EX)
        secret = self._write("secret", order["secret"])
        self._common = {**os.environ, **order["variables"], "RDMACOLL_SECRET_FILE": secret}
        if "function" in order:
            self._write("function", order["function"])
            self._common["_RDMACOLL_FUNCTION_FOLDER"] = self._folder
        if order.get("is_elastic"):
            self._common[ELASTIC_VARIABLE] = self._folder
        self._open_inits(self._common)
        try:
            os.chdir(order["folder"])
        except OSError as error:
            text = f"cannot enter {order['folder']} ({error.strerror}): its ranks start in {os.getcwd()}."
            self._send(NOTE, NO_RANK, text.encode())

    def _open_inits(self, variables: dict[str, str]) -> None:
        path = os.path.join(self._folder, "inits")
        try:
            os.mkfifo(path, 0o600)
            self._inits = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        except OSError:  # a file system without pipes: nothing is told about init()
            return
        variables[INIT_VARIABLE] = path

    def _forward_inits(self) -> None:
        """Tells the launcher which ranks have called init()."""
        try:
            messages = os.read(self._inits, _CHUNK) if self._inits >= 0 else b""
        except BlockingIOError:
            return
        for (number,) in INIT_MESSAGE.iter_unpack(messages[: len(messages) // 4 * 4]):
            facts = self._facts_of_question(number) if ELASTIC_VARIABLE in self._common else {}
            if facts is not None:
                self._send_json(INIT, number, facts)

    def _facts_of_question(self, number: int) -> dict[str, Any] | None:
        """The facts for a worker's next place: those that it has noted, and a port for rank 0 to listen at.
        None if another program has written to the pipe."""
        path = os.path.join(self._folder, QUESTION_FILE.format(number))
        try:
            with open(path) as file:
                facts = json.load(file)
            os.unlink(path)
        except (OSError, ValueError):
            return None
        return {**facts, "port": _free_port()}

    def _write(self, name: str, text: str) -> str:
        path = os.path.join(self._folder, name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        return path

    def _write_anew(self, name: str, content: bytes) -> None:
        """Replaces a file as a whole, for workers that look at it at any time."""
        path = os.path.join(self._folder, name)
        with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
        os.replace(path + ".new", path)

    def _start_rank(self, number: int, command: list[str], variables: dict[str, str]) -> None:
        try:
            process = subprocess.Popen(
                command,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                preexec_fn=_prepare_rank,
            )
        except OSError as error:
            code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_START
            cure = f' (write "python {command[0]}")' if command[0].endswith(".py") else ""
            cause = f"cannot start {command[0]}: {error.strerror}{cure}"
            self._send_json(EXIT, number, {"code": code, "pid": 0, "cause": cause})
            return
        rank = Rank(number, process)
        for fd in rank.streams:
            os.set_blocking(fd, False)
        self._ranks.append(rank)

    def _forward(self, rank: Rank, fd: int) -> int:
        """Sends output that is there. Returns the number of bytes, 0 if there is nothing."""
        try:
            chunk = os.read(fd, _CHUNK)
        except BlockingIOError:
            return 0
        if not chunk:
            del rank.streams[fd]
            return 0
        self._send(rank.streams[fd], rank.number, chunk)
        return len(chunk)

    def _forward_rest(self, rank: Rank, fd: int) -> None:
        """Sends the output that an ended rank has left. Its children may go on writing for ever."""
        left = int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0])
        while left > 0 and (count := self._forward(rank, fd)):
            left -= count

    def _reap(self) -> None:
        for rank in self._ranks:
            if rank.process.returncode is None and rank.process.poll() is not None:
                for fd in list(rank.streams):
                    self._forward_rest(rank, fd)
                rank.streams.clear()
                self._send_result(rank.number)
                self._forward_inits()
                rank.look()
                facts = {"code": rank.process.returncode, "pid": rank.process.pid}
                self._send_json(EXIT, rank.number, {**facts, "has_processes": rank.has_group})
            if rank.has_group and not self._is_open:
                rank.look()

    def _send_result(self, number: int) -> None:
        try:
            with open(os.path.join(self._folder, f"result.{number}"), "rb") as file:
                self._send(RESULT, number, file.read())
        except FileNotFoundError:
            pass


def _facts() -> dict[str, Any]:
    """The facts of this host that the launcher needs: a free port, and the addresses of the connection."""
    return {
        "host": socket.gethostname(),
        "port": _free_port(),
        "ssh": os.environ.get("SSH_CONNECTION", "").split(),
        "pid": os.getpid(),
    }


def _free_port() -> int:
    """A port that no program listens at."""
    for port in random.sample(_PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
    return 0


if __name__ == "__main__":
    Agent().run()
