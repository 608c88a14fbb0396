"""One connection of the rendezvous: it sends queued bytes, and receives frames.

Nothing here blocks. The owner serialises all calls, which may come from two threads.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

from rdmacoll._base import channel

HEARTBEAT_EVERY_S = 1.0
PROBE_S = 5.0  # from a large frame to its answer, retransmissions included
_ANSWER_S = 2.0  # most answers arrive in this time
# Only interfaces within a host have larger frames, and no frame is lost there.
_SEGMENT_BYTES_MAX = 16 << 10
_FLUSH_ON_CLOSE_S = 1.0
# In the kernel's struct tcp_info: the number of this side's bytes that the other kernel has acknowledged, and
# the timeouts in succession after which this kernel has sent bytes again.
_BYTES_ACKED = struct.Struct("@120xQ")
_RETRANSMITS = struct.Struct("@2xB")
_FRAME_OVERHEAD_BYTES = len(channel.FrameWriter(b"", b"").frame({"large": ""}))


class Link:
    """The part that both sides share: the send queue, heartbeats, and the check of the path."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received_at = time.monotonic()
        self.frames = 0  # received frames
        self.heartbeat = 0  # the other side's count of ranks, from its last heartbeat
        self._heartbeat_at = 0.0
        self._out = bytearray()
        self._reader: channel.FrameReader | None = None
        self._writer: channel.FrameWriter | None = None
        self._probe_bytes = 0
        self._probe_until: float | None = None
        self._sent_bytes = self._probe_offset_bytes = 0  # bytes sent so far; the middle of the large frame
        self._is_probe_lost = False  # the large frame is lost, as far as is known
        connection.setblocking(False)

    def begin(self, key: bytes, incoming: bytes, outgoing: bytes, frame_bytes_max: int) -> None:
        """Makes all further bytes frames, which `key` signs."""
        self._reader = channel.FrameReader(key, incoming, frame_bytes_max)
        self._writer = channel.FrameWriter(key, outgoing)

    def send_bytes(self, data: bytes) -> None:
        """Queues bytes, and sends as many as the socket takes now."""
        self._out += data
        self._sent_bytes += len(data)
        self.flush()

    def send(self, value: Any) -> None:
        """Queues a frame. Does nothing before `begin`."""
        if self._writer is not None:
            self.send_bytes(self._writer.frame(value))

    def flush(self) -> None:
        """Sends as many bytes as the socket takes now. A broken connection shows in `receive`."""
        while self._out:
            try:
                sent = self.connection.send(self._out)
            except BlockingIOError:
                return
            except OSError:
                self._out.clear()
                return
            del self._out[:sent]

    def has_output(self) -> bool:
        """Whether bytes wait for the socket."""
        return bool(self._out)

    def receive(self, count: int = 1 << 16) -> bytes:
        """The available bytes, at most `count`. Raises OSError with a plain text at its end."""
        try:
            data = self.connection.recv(count)
        except BlockingIOError:
            return b""
        except ConnectionResetError:
            data = b""  # the other side closed it before it had read everything
        except OSError as error:
            raise ConnectionError(error.strerror) from None
        if not data:
            raise ConnectionResetError("it closed the connection")
        self.received_at = time.monotonic()
        return data

    def add(self, data: bytes) -> None:
        """Adds bytes of frames, as `receive` returned them."""
        if data and self._reader is not None:
            self._reader.add(data)

    def take(self) -> Any:
        """The next frame for the owner, or None. Handles frames of the link itself. Raises ProtocolError."""
        while self._reader is not None and (frame := self._reader.take()) is not None:
            self.frames += 1
            if isinstance(frame, dict) and "large" in frame:
                self.send({"arrived": True})
            elif isinstance(frame, dict) and "arrived" in frame:
                self._probe_until, self._is_probe_lost = None, False
            elif isinstance(frame, dict) and "beat" in frame:
                self.heartbeat = int(frame["beat"])
            else:
                return frame
        return None

    def probe_path(self) -> None:
        """Sends a frame of the interface's size, which the other side answers.

        A path that drops such frames would pass the small ones, and lose larger messages of the start later.
        """
        try:
            segment = self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        except OSError:
            return
        self._probe_bytes = segment if segment <= _SEGMENT_BYTES_MAX else 0
        self._probe_until = time.monotonic() + PROBE_S
        # Exactly one segment: virtual devices may cut data of several segments on the way.
        before = self._sent_bytes
        self.send({"large": " " * max(0, self._probe_bytes - _FRAME_OVERHEAD_BYTES)})
        self._probe_offset_bytes = (before + self._sent_bytes) // 2

    def is_path_open(self) -> bool:
        """Whether the other side has answered the large frame."""
        return self._probe_until is None

    def path_fault(self, here: str, there: str, *, has_ended: bool = False) -> str:
        """The message about a path that drops large frames, or "".

        has_ended: the connection has ended, perhaps since the other side has just come to the same verdict.
        """
        verdict_after_s = _ANSWER_S if has_ended else PROBE_S
        until = self._probe_until if self._probe_bytes else None  # 0: no large frame, as on loopback
        if until is None:
            return ""
        if not has_ended:
            self._is_probe_lost = self._probe_is_unacknowledged()
        if not self._is_probe_lost or time.monotonic() < until - PROBE_S + verdict_after_s:
            return ""
        return (
            f"frames of {self._probe_bytes} bytes do not pass between {here} and {there} within {PROBE_S:g} "
            "s, but small frames do: a switch or an interface on the way has a smaller MTU. Give the "
            "interfaces of all hosts the MTU of the whole path (ip link set dev NAME mtu 1500). Find it by "
            "ping -M do -s SIZE."
        )

    def _probe_is_unacknowledged(self) -> bool:
        """Whether the other host's kernel has not received the large frame.

        A kernel acknowledges it for a suspended process, too. So a suspension is not blamed on the path.
        """
        try:
            info = self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            return self._is_probe_lost
        if len(info) < _BYTES_ACKED.size:  # Linux before 4.1
            return bool(_RETRANSMITS.unpack_from(info)[0] > 0)
        return bool(_BYTES_ACKED.unpack_from(info)[0] < self._probe_offset_bytes)

    def send_heartbeat(self, count: int) -> None:
        """Sends a heartbeat with `count`, once a second."""
        now = time.monotonic()
        if now - self._heartbeat_at >= HEARTBEAT_EVERY_S:
            self._heartbeat_at = now
            self.send({"beat": count})

    def extend_limits(self, seconds: float) -> None:
        """Extends limits by seconds in which this process did not run: messages may have come then."""
        self.received_at += seconds
        if self._probe_until is not None:
            self._probe_until += seconds

    def is_silent(self, limit_s: float) -> bool:
        """Whether nothing came from the other side for `limit_s`.

        False while the large frame is held up: no later frame gets past a dropped one.
        """
        return not self._is_probe_lost and time.monotonic() - self.received_at > limit_s

    def close(self) -> None:
        """Sends queued bytes, for at most a second, and closes. Idempotent."""
        if self.connection.fileno() < 0:
            return
        try:
            if self._out:
                self.connection.settimeout(_FLUSH_ON_CLOSE_S)
                self.connection.sendall(self._out)
            self._out.clear()
            self.connection.setblocking(False)
            self.connection.shutdown(socket.SHUT_WR)
            # Closing a socket with unread bytes resets the connection, and the other side loses sent bytes.
            while self.connection.recv(1 << 16):
                pass
        except OSError:
            pass
        self.connection.close()
