"""Reads the needs and exports of a shared library from the output of binutils. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

Version = tuple[int, ...]


@dataclass(frozen=True)
class Library:
    """The facts of one library. `versions` has the highest symbol version of each name (GLIBC, ...)."""

    name: str
    size: int
    needed: tuple[str, ...] = ()
    versions: dict[str, Version] = field(default_factory=dict)
    exported: tuple[str, ...] = ()
    imported: tuple[str, ...] = ()
    relro: str = "none"  # or partial, or full
    registers: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """The fields, for --json."""
        return {
            "name": self.name,
            "bytes": self.size,
            "needed": list(self.needed),
            "versions": {name: dotted(version) for name, version in self.versions.items()},
            "exported": list(self.exported),
            "relro": self.relro,
            "registers": self.registers,
        }


def dotted(version: Version) -> str:
    """Returns (2, 17) as 2.17. A version without a number, such as GLIBC_PRIVATE, becomes `private`."""
    return ".".join(map(str, version)) if version else "private"


def needed(readelf: str) -> tuple[str, ...]:
    """The libraries of `readelf -d`, in order."""
    return tuple(re.findall(r"\(NEEDED\)\s+Shared library: \[(.+?)\]", readelf))


def relro(headers: str, dynamic: str) -> str:
    """Returns how much of the address tables is read-only after the start: none, partial or full.

    headers, dynamic: the output of `readelf -lW` and `readelf -dW`.

    >>> relro("GNU_RELRO 0x1 0x2", "(FLAGS_1) Flags: NOW")
    'full'
    """
    if "GNU_RELRO" not in headers:
        return "none"
    binds_now = re.search(r"\(BIND_NOW\)|\(FLAGS\).*\bBIND_NOW\b|\(FLAGS_1\).*\bNOW\b", dynamic)
    return "full" if binds_now else "partial"


def highest_versions(readelf: str) -> dict[str, Version]:
    """The highest version of each name that `readelf -V` lists as needed.

    A version without a number is (). It wins over all others, since nobody can tell which systems have it.

    >>> highest_versions("0x10: Name: GLIBC_2.4  Flags: none  Version: 8")
    {'GLIBC': (2, 4)}
    """
    found: dict[str, list[Version]] = {}
    for text in re.findall(r"Name: (\S+)\s+Flags:", readelf):
        match = re.fullmatch(r"(.+?)_(\d+(?:\.\d+)*)", text)
        name = match[1] if match else text.rpartition("_")[0] or text
        found.setdefault(name, []).append(tuple(map(int, match[2].split("."))) if match else ())
    return {name: () if () in versions else max(versions) for name, versions in sorted(found.items())}


def symbols(readelf: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the exported names and the imported names in the output of `readelf --dyn-syms -W`."""
    exported, imported = set(), set()
    for line in readelf.splitlines():
        columns = line.split()
        if len(columns) < 8 or not re.fullmatch(r"\d+:", columns[0]):
            continue
        binding, visibility, section, name = columns[4], columns[5], columns[6], columns[7]
        if section == "UND":
            imported.add(name.partition("@")[0])
        elif binding != "LOCAL" and visibility in ("DEFAULT", "PROTECTED"):
            exported.add(name.partition("@")[0])
    return tuple(sorted(exported)), tuple(sorted(imported))


def registers(disassembly: str) -> dict[str, int]:
    """Counts the instructions of `objdump -d` that use the registers of AVX (ymm) and AVX-512 (zmm).

    >>> registers("vaddps %ymm1,%ymm0,%ymm0")
    {'ymm': 1, 'zmm': 0}
    """
    lines = disassembly.splitlines()
    return {name: sum(f"%{name}" in line for line in lines) for name in ("ymm", "zmm")}
