"""The hosts that a discovery script prints, which may change while a job runs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from typing import IO, Any

from rdmacoll._launch.hosts import Host, discovered_hosts
from rdmacoll.errors import ConfigError

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
        if self._process is not None and self._process.poll() is None and now - self._began <= _LIMIT_S:
            return None, ""
        try:
            if self._process is None:
                if now >= self._next:
                    self._start(now)
                return None, ""
            hosts = discovered_hosts(self._finished(), self._slots)
        except ConfigError as error:
            is_new, self._fault = str(error) != self._fault, str(error)
            stay = " The hosts stay as they were." if self._hosts is not None else ""
            return None, f"--host-discovery-script {self._command}: {error}{stay}" if is_new else ""
        self._fault = ""
        if self._hosts is not None and set(hosts) == set(self._hosts):  # a script may have no order
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
        self._began, self._next = now, now + _EVERY_S
        try:
            self._output, self._errors = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115
            self._process = subprocess.Popen(
                self._command,
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError as error:
            self.close()
            raise ConfigError(f"it cannot be started ({error.strerror}).") from None

    def _finished(self) -> str:
        """The output of the script. Raises ConfigError if it has failed."""
        assert self._process is not None
        code = self._process.returncode
        text, errors = (_text_of(file) for file in (self._output, self._errors))
        self.close()
        if code is None:
            raise ConfigError(f"it did not end within {_LIMIT_S:g} s, and was ended.")
        if code != 0:
            last = (errors.strip().splitlines() or [""])[-1]
            said = f" ({last})" if last else ""
            end = f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"
            raise ConfigError(f"it {end}{said}.")
        return text


def _text_of(file: IO[Any] | None) -> str:
    assert file is not None
    file.seek(0)
    return str(file.read().decode(errors="replace"))
