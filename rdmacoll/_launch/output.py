"""The output of ranks: lines with the rank in front, on the screen and in files, and the last lines."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO

from rdmacoll._launch.agent import STDERR, STDOUT
from rdmacoll.errors import ConfigError, RdmacollError

_NAMES = {STDOUT: "stdout", STDERR: "stderr"}
_LINE_END = re.compile(rb"\r\n|\r|\n")
_NO_READER = (errno.EPIPE, errno.EIO, errno.EBADF)  # pipes, terminals, closed streams
_KEPT = 400  # lines of each stream
_LINE_MAX = 4096  # kept bytes of a line
_PARTIAL_MAX = 1 << 20  # a longer line is written in parts


class Output:
    """Writes what ranks print, in whole lines: `[1]<stdout>:text`, as horovodrun does."""

    def __init__(self, size: int, *, folder: str | None = None, has_timestamps: bool = False) -> None:
        """folder: gets rank.N/stdout and rank.N/stderr with the same lines. Raises ConfigError."""
        self._has_timestamps = has_timestamps
        self._partial: dict[tuple[int, bytes], bytes] = {}
        self._tails: dict[tuple[int, bytes], deque[str]] = {}
        self._files: dict[tuple[int, bytes], BinaryIO] = {}
        self._is_lost: dict[bytes, bool] = {}
        self._folder, self._digits = folder, len(str(size - 1))
        for rank in range(size):
            self.add(rank)

    def add(self, rank: int) -> None:
        """Makes the files of a rank. Raises ConfigError."""
        if self._folder is None or (rank, STDOUT) in self._files:
            return
        place = Path(self._folder) / f"rank.{str(rank).zfill(self._digits)}"
        try:
            place.mkdir(parents=True, exist_ok=True)
            for kind, name in _NAMES.items():
                self._files[rank, kind] = open(place / name, "wb")  # noqa: SIM115
        except (OSError, ValueError) as error:  # ValueError: the path has a NUL
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError(
                f"the output of rank {rank} cannot be written to {place}: {reason}. Name a folder that this "
                "user can write in --output-filename."
            ) from None

    def write(self, rank: int, kind: bytes, data: bytes) -> None:
        """Writes the complete lines of what a rank has printed, and keeps the rest."""
        data = self._partial.pop((rank, kind), b"") + data
        end = 0
        lines = []
        for found in _LINE_END.finditer(data):
            if found[0] == b"\r" and found.end() == len(data):
                break  # the line break may be \r\n
            lines.append(data[end : found.end()])
            end = found.end()
        if len(data) - end > _PARTIAL_MAX:
            lines.append(data[end:] + b"\n")
        elif data[end:]:
            self._partial[rank, kind] = data[end:]
        self._put(rank, kind, lines)

    def finish(self, rank: int) -> None:
        """Writes the last line of an ended rank, if no line break ended it, and closes its files."""
        for kind in _NAMES:
            rest = self._partial.pop((rank, kind), b"")
            if rest:
                self._put(rank, kind, [rest if rest.endswith(b"\r") else rest + b"\n"])
            file = self._files.pop((rank, kind), None)
            if file is not None:
                file.close()

    def tail(self, rank: int, kind: bytes) -> list[str]:
        """The last lines that a rank has printed."""
        return list(self._tails.get((rank, kind), ()))

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            with contextlib.suppress(OSError):  # told when it was written
                file.close()

    def _put(self, rank: int, kind: bytes, lines: list[bytes]) -> None:
        if not lines:
            return
        tail = self._tails.setdefault((rank, kind), deque(maxlen=_KEPT))
        tail.extend(line[:_LINE_MAX].decode(errors="replace").rstrip() for line in lines)
        clock = time.asctime() if self._has_timestamps else ""
        prefix = f"{clock}[{rank}]<{_NAMES[kind]}>:".encode()
        data = b"".join(prefix + line for line in lines)
        if (rank, kind) in self._files:
            file = self._files[rank, kind]
            try:
                file.write(data)
                file.flush()
            except OSError as error:
                raise _not_written(file.name, error) from None
        self._show(kind, data)

    def _show(self, kind: bytes, data: bytes) -> None:
        """Writes to the launcher's own stream. The job goes on if its reader is gone (`| head`). Raises
        RdmacollError."""
        stream: Any = sys.stdout if kind == STDOUT else sys.stderr
        if stream is None or self._is_lost.get(kind):
            return
        try:
            binary = getattr(stream, "buffer", None)  # a notebook's stream has none
            if binary is None:
                stream.write(data.decode(errors="replace"))
            else:
                stream.flush()
                binary.write(data)
            stream.flush()
        except OSError as error:
            if error.errno not in _NO_READER:
                raise _not_written(f"standard {'output' if kind == STDOUT else 'error'}", error) from None
            self._is_lost[kind] = True
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())


def _not_written(place: str, error: OSError) -> RdmacollError:
    return RdmacollError(
        f"the output of the ranks cannot be written to {place}: {error.strerror}. Make room there, or send "
        "it elsewhere."
    )
