"""The launcher's connection to the agent of a host."""

from __future__ import annotations

import json
import os
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdmacoll._launch import agent
from rdmacoll.errors import ConfigError

# Reads the agent's text from standard input, so that no file of this package must be on the host.
_BOOT = "import sys; exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
_CHUNK = 1 << 16
_CLOSE_S = 2.0
_LINES_KEPT = 8
# ssh reports a host that does not answer any more after about 15 s.
_SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")


@dataclass(frozen=True)
class Frame:
    """One message of an agent."""

    kind: bytes
    rank: int
    payload: bytes


def local_command(python: str) -> list[str]:
    """The command that starts an agent on this host."""
    return [python, "-I", "-S", "-c", _BOOT]


def remote_command(
    host: str, python: str, *, port: int | None, identity_file: str | None, connect_s: float
) -> list[str]:
    """The command that starts an agent through ssh. It holds nothing but the agent's start.

    A host without `python` takes the python3 of its path.
    """
    options = ["-o", f"ConnectTimeout={max(1, int(connect_s))}", *_login_options(port, identity_file)]
    find = f"$(command -v {shlex.quote(python)} || command -v python3 || echo python)"
    start = f'exec "{find}" -I -S -c {shlex.quote(_BOOT)}'
    return [*_SSH, *options, host, f"exec sh -c {shlex.quote(start)}"]  # login shells differ


def try_command(host: str, *, port: int | None, identity_file: str | None) -> str:
    """The command line by which a person finds out whether ssh works."""
    return shlex.join(["ssh", *_login_options(port, identity_file), host, "true"])


def _login_options(port: int | None, identity_file: str | None) -> list[str]:
    return [
        *(["-p", str(port)] if port is not None else []),
        *(["-i", identity_file] if identity_file else []),
    ]


class HostLink:
    """An agent's process (or its ssh), its frames, and the messages of ssh."""

    def __init__(self, host: str, command: Sequence[str]) -> None:
        """Starts the agent. Raises ConfigError if its command cannot be started."""
        self.host = host
        self._is_remote = tuple(command[: len(_SSH)]) == _SSH
        self.hello: dict[str, Any] | None = None  # the agent's facts, once it has answered
        self.is_open = True
        self.messages: list[str] = []  # the last lines of standard error
        self._received, self._message = bytearray(), b""
        self._unsent = bytearray()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # Ctrl-C reaches the launcher alone
            )
        except OSError as error:
            raise ConfigError(f"{host}: cannot start {command[0]}: {error.strerror}.") from None
        os.set_blocking(self.input(), False)
        text = Path(agent.__file__).read_bytes()
        self._write(b"%d\n" % len(text) + text)

    def is_remote(self) -> bool:
        """Whether the agent runs on another host."""
        return self._is_remote

    def ssh_address(self, place: int) -> str:
        """An address of the ssh connection, as the agent sees it: 0 is the launcher's, 2 the host's."""
        found = (self.hello or {}).get("ssh", [])
        return str(found[place]) if len(found) == 4 else self.host if place == 2 else ""

    def streams(self) -> dict[int, bool]:
        """The descriptors to read from. The value says whether it is the one of frames."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        return {self._process.stdout.fileno(): True, self._process.stderr.fileno(): False}

    def input(self) -> int:
        """The descriptor to write to."""
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def has_unsent(self) -> bool:
        """Whether the agent has not read everything. Then call `flush` when `input` can be written to."""
        return bool(self._unsent)

    def send(self, kind: bytes, value: object = None, rank: int = agent.NO_RANK) -> None:
        """Sends a frame, and does not wait for an agent that does not read. An agent that is gone gets none;
        reading notices that it is gone."""
        payload = b"" if value is None else json.dumps(value).encode()
        self._write(agent.FRAME.pack(kind, rank, len(payload)) + payload)

    def _write(self, data: bytes) -> None:
        self._unsent += data
        self.flush()

    def flush(self) -> None:
        """Sends what the agent takes now."""
        try:
            while self._unsent:
                del self._unsent[: os.write(self.input(), self._unsent[:_CHUNK])]
        except BlockingIOError:
            pass
        except (OSError, ValueError):
            self._unsent.clear()

    def read_frames(self, fd: int) -> list[Frame]:
        """The frames that have arrived completely. Call if `fd` is readable."""
        chunk = os.read(fd, _CHUNK)
        self.is_open = self.is_open and bool(chunk)
        self._received += chunk
        if self.hello is None:
            _, mark, rest = self._received.partition(agent.MAGIC)
            if not mark:
                return []
            self._received, self.hello = rest, {}
        frames = []
        while len(self._received) >= agent.FRAME.size:
            kind, rank, length = agent.FRAME.unpack_from(self._received)
            end = agent.FRAME.size + length
            if len(self._received) < end:
                break
            frames.append(Frame(kind, rank, bytes(self._received[agent.FRAME.size : end])))
            del self._received[:end]
        return frames

    def read_messages(self, fd: int) -> tuple[list[str], bool]:
        """The lines of standard error that have arrived, and whether more may come.

        Call if `fd` is readable.
        """
        chunk = os.read(fd, _CHUNK)
        *lines, self._message = (self._message + (chunk or b"\n")).split(b"\n")
        texts = [line.decode(errors="replace").rstrip() for line in lines]
        texts = [text for text in texts if text]
        self.messages = (self.messages + texts)[-_LINES_KEPT:]
        return texts, bool(chunk)

    def last_words(self) -> str:
        """The reason why an agent is gone: the last line of standard error, or the exit code."""
        _, messages = self.streams()
        end = time.monotonic() + _CLOSE_S
        while time.monotonic() < end and select.select([messages], [], [], 0.2)[0]:
            if not self.read_messages(messages)[1]:
                break
        try:
            code = self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            code = None
        program = "ssh" if self._is_remote else "the agent"
        if self.messages:
            return self.messages[-1]
        if code is not None and code < 0:
            return f"{program} was ended by signal {-code}"
        return f"{program} ended with exit code {code}"

    def hang_up(self) -> None:
        """Ends the agent's standard input, so that it ends its ranks and itself."""
        assert self._process.stdin is not None
        self._unsent.clear()
        try:
            self._process.stdin.close()
        except OSError:
            pass

    def close(self, within_s: float) -> None:
        """Waits for the process, and kills it if it does not end. Ranks end with their agent."""
        try:
            self._process.wait(max(0.0, within_s))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


def python_path() -> str:
    """The Python that runs the launcher."""
    return sys.executable or "python3"
