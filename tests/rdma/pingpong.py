"""Sends between two devices with ibv_rc_pingpong and prints each device's counters as JSON.

Usage: pingpong.py SERVER_DEVICE CLIENT_DEVICE [--size BYTES]. Run it beside the devices.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

_DEVICES = Path("/sys/class/infiniband")
_LISTEN = "0A"
_START_S = 30.0
_END_S = 120.0


def gid_index(device: str) -> int | None:
    """Returns the index of the first RoCE v2 GID that is not link-local. On InfiniBand, returns None."""
    port = _DEVICES / device / "ports" / "1"
    if "InfiniBand" in (port / "link_layer").read_text():
        return None
    for index in range(16):
        try:
            kind = (port / "gid_attrs" / "types" / str(index)).read_text().strip()
            gid = (port / "gids" / str(index)).read_text().strip()
        except OSError:
            continue  # an index without a GID cannot be read
        if kind == "RoCE v2" and not gid.startswith("fe80"):
            return index
    raise SystemExit(f"{device} has no RoCE v2 GID beside link-local ones")


def counters(device: str) -> dict[str, int]:
    """Returns the device's counters that are numbers."""
    found = {}
    for folder in ("hw_counters", "counters"):
        for path in sorted((_DEVICES / device / "ports" / "1").glob(f"{folder}/*")):
            try:
                found[path.name] = int(path.read_text())
            except (OSError, ValueError):
                continue
    return found


def wait_for_listener(port: int, server: subprocess.Popen[bytes]) -> None:
    """Waits until a process listens on the port."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end and server.poll() is None:
        for file in ("/proc/net/tcp", "/proc/net/tcp6"):
            rows = [line.split() for line in Path(file).read_text().splitlines()[1:]]
            if any(row[1].endswith(f":{port:04X}") and row[3] == _LISTEN for row in rows):
                return
        time.sleep(0.02)
    raise SystemExit(f"nobody listens on port {port}")


def main() -> int:
    """Runs both ends. The exit code is 0 if both ended with 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("server")
    parser.add_argument("client")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--port", type=int, default=18515)
    parsed = parser.parse_args()

    def end(device: str, *more: str) -> subprocess.Popen[bytes]:
        index = gid_index(device)
        # The ends wait for events. On a single processor, two spinning ends would wait for time slices.
        gid = [] if index is None else ["-g", str(index)]
        command = [
            "ibv_rc_pingpong",
            "-d",
            device,
            "-p",
            str(parsed.port),
            "-s",
            str(parsed.size),
            "-e",
            *gid,
            *more,
        ]
        return subprocess.Popen(command, stdout=sys.stderr)

    before = {device: counters(device) for device in (parsed.server, parsed.client)}
    server = end(parsed.server)
    try:
        wait_for_listener(parsed.port, server)
        client = end(parsed.client, "127.0.0.1")
        try:
            codes = [client.wait(_END_S), server.wait(_END_S)]
        finally:
            client.kill()
    finally:
        server.kill()
    counted = {
        device: {name: value - before[device].get(name, 0) for name, value in counters(device).items()}
        for device in before
    }
    print(json.dumps({"codes": codes, "counted": counted}))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
