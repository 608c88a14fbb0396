"""Writes the guest's first root: a static busybox, the init script, and a modular kernel's modules."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from rdma import cache

_INIT = Path(__file__).resolve().parent / "init.sh"
_FOLDERS = ("bin", "dev", "lower", "modules", "new", "proc", "sys", "top")
_CONSOLE = (5, 1)  # the device number of /dev/console


def busybox() -> Path:
    """Returns a static busybox, unpacked from Debian's package.

    The package is not installed, since it would replace another busybox.
    """
    found = sorted(cache.folder().glob("busybox-*/bin/busybox"))
    if found:
        return found[-1]
    return cache.unpacked("busybox-static", "busybox") / "bin" / "busybox"


def write(target: Path, modules: Mapping[str, bytes] | None = None) -> None:
    """Writes an uncompressed cpio archive. The guest inserts `modules` in their order."""
    archive = bytearray()
    for folder in _FOLDERS:
        _entry(archive, folder, stat.S_IFDIR | 0o755)
    _entry(archive, "dev/console", stat.S_IFCHR | 0o600, device=_CONSOLE)
    _entry(archive, "bin/busybox", stat.S_IFREG | 0o755, busybox().read_bytes())
    _entry(archive, "bin/sh", stat.S_IFLNK | 0o777, b"busybox")
    _entry(archive, "init", stat.S_IFREG | 0o755, _INIT.read_bytes())
    for name, content in (modules or {}).items():
        _entry(archive, f"modules/{name}", stat.S_IFREG | 0o644, content)
    order = "".join(f"{name}\n" for name in modules or {})
    _entry(archive, "modules/order", stat.S_IFREG | 0o644, order.encode())
    _entry(archive, "TRAILER!!!", 0)
    target.write_bytes(archive)


def _entry(
    archive: bytearray, name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)
) -> None:
    """Appends one file in cpio's "newc" format (Documentation/driver-api/early-userspace in the kernel)."""
    path = name.encode() + b"\0"
    inode = len(archive) % 0xFFFFFFFF + 1
    fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(path), 0)
    archive += b"070701" + b"".join(b"%08X" % value for value in fields) + path
    archive += b"\0" * (-len(archive) % 4)
    archive += content
    archive += b"\0" * (-len(archive) % 4)
