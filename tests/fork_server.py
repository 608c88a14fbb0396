"""Starts processes in which modules are already imported, by forking a process that has only imported them.

Ranks import rdmacoll, and many import TensorFlow. The import is most of a rank's cost in these tests, and it
starts no thread. So a process that is forked after the import equals a process that has just imported it.
Its large mappings get addresses of their own. Three kinds of ranks are started cold: those of mpirun, those
of other libraries, and those with variables that an import reads. Command lines import `rdmacoll.cli.main`.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import mmap
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, BinaryIO

# Forked processes may have other values of variables with these prefixes. They read PYTHONPATH again.
_OWN = ("RDMACOLL_", "TF_RDMA_", "RANKS_", "PYTEST_", "PYTHONPATH")
_MESSAGE_BYTES = 1 << 17
_START_S = 300.0
# Larger than gaps between libraries. Linux gives large mappings addresses that are multiples of 2 MiB.
_APART_MIN, _APART_STEP, _APART_STEPS = 1 << 26, 1 << 21, 32


class Forked:
    """A forked process, with the used part of `subprocess.Popen`."""

    def __init__(self, parent: Parent, pid: int) -> None:
        self.pid = pid
        self._parent = parent

    @property
    def returncode(self) -> int | None:
        return self._parent.codes[self.pid]

    def poll(self) -> int | None:
        """Returns the exit code, as in `subprocess`, or None."""
        while self.returncode is None and self._parent.hear(0.0):
            pass
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code. Raises `subprocess.TimeoutExpired`."""
        while self.returncode is None:
            if not self._parent.hear(timeout):  # other messages restart the timeout
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Parent:
    """The process that has imported `modules`. own: prefixes of further variables whose values may differ in
    forked processes. exact: variables with such prefixes whose values may not differ.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        modules: Sequence[str],
        own: Sequence[str] = (),
        exact: Sequence[str] = (),
    ) -> None:
        self._environ = dict(environ)
        self._modules = ", ".join(modules)
        self._own = tuple(prefix for prefix in (*_OWN, *own) if prefix not in exact)
        self.codes: dict[int, int | None] = {}
        self._started: list[int] = []
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    f"import fork_server, {self._modules}; exec(fork_server.program({other.fileno()}))",
                ],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                start_new_session=True,
                preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
            )
        atexit.register(self.close)

    def others(self, environ: Mapping[str, str]) -> set[str]:
        """Returns the variables whose values the imports may have read, and which are different here."""
        names = self._environ.keys() | environ.keys()
        differ = {name for name in names if self._environ.get(name) != environ.get(name)}
        return {name for name in differ if not name.startswith(self._own)}

    def start(self, arguments: Sequence[str], environ: Mapping[str, str], output: BinaryIO) -> Forked:
        """Runs a program with its arguments in this folder and a new session."""
        others = self.others(environ)
        assert not others, f"{self._modules} was imported with other values of {others}: start these cold"
        request = {"arguments": list(arguments), "environ": dict(environ), "folder": os.getcwd()}
        socket.send_fds(self._channel, [json.dumps(request).encode()], [output.fileno()])
        while not self._started:
            assert self.hear(_START_S), f"{self._modules} was not imported within {_START_S} s"
        return Forked(self, self._started.pop())

    def hear(self, timeout_s: float | None) -> bool:
        """Takes one message: a rank has started or ended. Returns False if none came in time."""
        if not select.select([self._channel], [], [], timeout_s)[0]:
            return False
        message = self._channel.recv(_MESSAGE_BYTES)
        assert message, f"the process that others are forked from has ended with {self._process.wait()}"
        pid, code = json.loads(message)
        if code is None:
            self._started.append(pid)
        self.codes[pid] = code
        return True

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


def program(channel_fd: int) -> CodeType:
    """Call in the parent: forks processes until the tests end. Returns in each of them with its program."""
    import numpy as np

    with socket.socket(fileno=channel_fd) as channel, selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        request, output, number = _fork(channel, selector)
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    np.random.seed()  # Python's generator reseeds itself in forks, and numpy's does not
    _move_mappings(number)
    sys.argv = request["arguments"]
    folders = request["environ"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [str(Path(sys.argv[0]).parent), *(one for one in folders if one not in sys.path)]
    sys.modules["__main__"].__file__ = sys.argv[0]
    return compile(Path(sys.argv[0]).read_bytes(), sys.argv[0], "exec")


def _move_mappings(number: int) -> None:
    """Moves later large mappings of this process, the fork with this number, away from those of other forks.
    Otherwise an address that is used in a wrong process would be right there."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    size = _APART_MIN + number % _APART_STEPS * _APART_STEP
    libc.mmap(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)


def _fork(channel: socket.socket, selector: selectors.BaseSelector) -> tuple[Any, int, int]:
    """Returns only in forked processes: the request, the descriptor for their output, the fork's number."""
    number = 0
    while True:
        for key, _ in selector.select():
            if key.data is not None:  # a process has ended
                _, status = os.waitpid(key.data, 0)
                selector.unregister(key.fd)
                os.close(key.fd)
                channel.send(json.dumps([key.data, os.waitstatus_to_exitcode(status)]).encode())
                continue
            message, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 1)
            if not message:
                sys.exit(0)
            assert len(os.listdir("/proc/self/task")) == 1, "a process with threads is not forked"
            number += 1
            pid = os.fork()
            if pid == 0:
                for other in selector.get_map().values():
                    if other.data is not None:
                        os.close(other.fd)
                return json.loads(message), descriptors[0], number
            os.close(descriptors[0])
            channel.send(json.dumps([pid, None]).encode())
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
