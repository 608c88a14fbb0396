"""The hosts that a discovery script prints, which may change while a job runs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from typing import IO, Any

from rdmacoll._launch.hosts import Host, discovered_hosts
from rdmacoll.engine.errors import ConfigError

_EVERY_S = 1.0
_LIMIT_S = 60.0


class HostDiscovery:
    """Runs the script once a second, beside the job."""

    def __init__(self, command: str, slots_per_host: int | None) -> None:
        self._command, self._slots = command, slots_per_host
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[Any] | None = None
        self._errors: IO[Any] | None = None
        self._began = self._next = 0.0
        self._hosts: list[Host] | None = None
        self._fault = ""

    def poll(self, now: float) -> tuple[list[Host] | None, str]:
        """The hosts, if they have changed, and what is newly wrong with the script. After a fault the hosts
        stay. now: of a clock, in seconds."""
        if self._process is None:
            if now >= self._next:
                self._start(now)
            return None, ""
        if self._process.poll() is None and now - self._began <= _LIMIT_S:
            return None, ""
        try:
            hosts = discovered_hosts(self._finished(now), self._slots)
        except ConfigError as error:
            is_new, self._fault = str(error) != self._fault, str(error)
            return None, f"--host-discovery-script {self._command}: {error}" if is_new else ""
        self._fault = ""
        if hosts == self._hosts:
            return None, ""
        self._hosts = hosts
        return hosts, ""

    def close(self) -> None:
        """Ends a script that runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        for file in (self._output, self._errors):
            if file is not None:
                file.close()

    def _start(self, now: float) -> None:
        self._output, self._errors = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115
        self._began, self._next = now, now + _EVERY_S
        self._process = subprocess.Popen(
            self._command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            start_new_session=True,
        )

    def _finished(self, now: float) -> str:
        """The output of the script. Raises ConfigError if it has failed."""
        assert self._process is not None
        code = self._process.returncode
        text, errors = (_text_of(file) for file in (self._output, self._errors))
        self.close()
        if code is None:
            raise ConfigError(f"it did not end within {now - self._began:.0f} s.")
        if code != 0:
            last = (errors.strip().splitlines() or [""])[-1]
            said = f" ({last})" if last else ""
            raise ConfigError(f"it ended with exit code {code}{said}: the hosts stay as they were.")
        return text


def _text_of(file: IO[Any] | None) -> str:
    assert file is not None
    file.seek(0)
    return str(file.read().decode(errors="replace"))
