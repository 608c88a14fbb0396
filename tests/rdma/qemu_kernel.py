"""Unpacks Debian's kernel and its modules into the cache, for QEMU. Nothing is installed."""

from __future__ import annotations

import lzma
import re
import shutil
from pathlib import Path

from rdma import cache
from rdma.cache import GuestError, say

_NEWEST = "linux-image-amd64"
# The modules that these depend on are added. A missing module is taken for built in.
_WANTED = (
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "virtio_console",
    "crc32_generic",
    "dummy",
    "veth",
    "bridge",
    "rdma_rxe",
    "ib_uverbs",
    "ib_umad",
    "rdma_ucm",
    "sch_netem",
    "sch_tbf",
)
_XZ_MAGIC = b"\xfd7zXZ\x00"
_ORDER = "order"


def files() -> Path:
    """Returns a folder with `vmlinux` and `modules/`. The file `modules/order` has the order of insertion."""
    found = sorted(cache.folder().glob("qemu-*/vmlinux"), key=lambda path: path.stat().st_mtime)
    if found:
        return found[-1].parent
    with cache.lock("qemu", "the kernel for QEMU, which another process unpacks"):
        found = sorted(cache.folder().glob("qemu-*/vmlinux"))
        return found[-1].parent if found else _unpack()


def modules(folder: Path) -> dict[str, bytes]:
    """Returns the contents of the modules by name, in the order of insertion."""
    names = (folder / "modules" / _ORDER).read_text().splitlines()
    return {name: (folder / "modules" / name).read_bytes() for name in names}


def _packages() -> list[str]:
    """Returns the packages that the newest kernel's metapackage depends on."""
    found = re.findall(r"Depends: (linux-image-\d\S*)", cache.call(["apt-cache", "depends", _NEWEST]))
    if not found:
        raise GuestError(f"apt does not say which kernel {_NEWEST} is: run apt-get update")
    return found


def _unpack() -> Path:
    with cache.workplace("qemu") as place:
        name, version, deb = cache.fetch(_packages, place)
        say(f"unpacking {name} {version} for QEMU, once")
        cache.unpack(deb, place / "deb")
        made = place / "made"
        (made / "modules").mkdir(parents=True)
        (image,) = (place / "deb").glob("boot/vmlinuz-*")
        _copy_modules(place / "deb", made / "modules")
        (made / "vmlinux").write_bytes(_unpacked_kernel(image.read_bytes()))
        final = cache.folder() / f"qemu-{name}_{version}"
        if final.exists():
            shutil.rmtree(final)
        cache.take_in(made, final)
    return final


def _unpacked_kernel(image: bytes) -> bytes:
    """Returns the ELF file inside a bzImage. QEMU starts it without the slow emulated unpacking.

    If the kernel is not packed by xz, the image is returned unchanged.
    """
    position = image.find(_XZ_MAGIC)
    while position >= 0:
        try:
            unpacked = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(image[position:])
            if unpacked.startswith(b"\x7fELF"):
                return unpacked
        except lzma.LZMAError:
            pass
        position = image.find(_XZ_MAGIC, position + 1)
    return image


def _copy_modules(root: Path, target: Path) -> None:
    have = {
        path.name.split(".ko")[0].replace("-", "_"): path
        for path in root.rglob("*.ko*")
        if path.name.endswith((".ko", ".ko.xz"))
    }
    contents: dict[str, bytes] = {}

    def take(name: str) -> None:
        """Adds a module after the modules that it needs. A missing module is taken for built in."""
        if name in contents or name not in have:
            return
        data = have[name].read_bytes()
        if have[name].suffix == ".xz":
            data = lzma.decompress(data)
        for needed in _needs(data):
            take(needed)
        contents[name] = data

    for name in _WANTED:
        take(name)
    if "rdma_rxe" not in contents:
        raise GuestError("this kernel has no rdma_rxe module, so QEMU is no guest here")
    for name, data in contents.items():
        (target / f"{name}.ko").write_bytes(data)
    (target / _ORDER).write_text("".join(f"{name}.ko\n" for name in contents))


def _needs(module: bytes) -> list[str]:
    """Returns the modules that a module needs, from the strings of its section .modinfo."""
    needed: list[str] = []
    for names in re.findall(rb"\0(?:depends=|softdep=pre: )([\w, -]*)\0", module):
        needed += [name.replace("-", "_") for name in re.split(r"[, ]+", names.decode()) if name]
    return needed
