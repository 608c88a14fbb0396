"""The rules for a release wheel. Each rule returns its findings: sentences with the values and the cure."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Mapping
from email.parser import Parser
from typing import Any

from elf import Library, Version, dotted

GLIBC_MAX: Version = (2, 17)
POLICY = "manylinux_2_17_x86_64"
BYTES_MAX = 10_000_000
KERNEL_INSTRUCTIONS_MIN = 500  # the kernels of an instruction set have thousands, a stray copy has few
TAG = "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64"
EXTENSION = "fast_calls.abi3.so"
LIBRARIES = ("librdmacoll.so", "librdmacoll_tf.so", EXTENSION)
EXTRAS = {"mpi", "tensorflow", "plot"}
# Libraries of glibc. Every node has them; it need not have any other.
OF_GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2"}
# TensorFlow loads this library before ours. The wheel must not contain a second copy.
OF_TENSORFLOW = "libtensorflow_framework.so.2"
CANARY = "__stack_chk_fail"
CURE = "Build it by `make wheel`, which links with zig."


# The checked property, its value, and the findings.
Row = tuple[str, str, list[str]]


def library_rows(library: Library) -> list[Row]:
    """Returns the table's rows for one library."""
    versions = ", ".join(f"{name} {dotted(version)}" for name, version in library.versions.items())
    kernels = ", ".join(f"{count} on {name}" for name, count in library.registers.items())
    rows = [
        ("symbols", versions or "none", version_findings(library)),
        ("needs", ", ".join(library.needed) or "nothing", needed_findings(library)),
        (
            "exports",
            f"{len(library.exported)} names: {', '.join(library.exported)}",
            export_findings(library),
        ),
    ]
    checked = sum(name.endswith("_chk") for name in library.imported)
    protected = "canaries" if CANARY in library.imported else "no canaries"
    words = f"RELRO {library.relro}, {protected}, {checked} checked functions"
    rows.append(("hardening", words, hardening_findings(library)))
    if library.name == "librdmacoll.so":
        rows.append(("kernels", f"instructions: {kernels}", kernel_findings(library)))
        copies = "from glibc" if "memcpy" in library.imported else "its own"
        rows.append(("memcpy", copies, memory_findings(library)))
    return [*rows, ("size", f"{library.size:,} bytes", [])]


def version_findings(library: Library) -> list[str]:
    """Finds symbol versions that older systems lack."""
    findings = []
    for name, version in library.versions.items():
        if name != "GLIBC":
            findings.append(
                f"{library.name} needs {name}_{dotted(version)}, a version of a library that older "
                f"clusters lack. {CURE}"
            )
        elif not version or version > GLIBC_MAX:
            findings.append(
                f"{library.name} needs GLIBC_{dotted(version)}; {dotted(GLIBC_MAX)} is the most that is "
                f"promised. Call what is newer through cpp/base/kernel_calls.cc."
            )
    if "GLIBC" not in library.versions:
        findings.append(f"{library.name} needs no version of glibc: readelf was not understood.")
    return findings


def needed_findings(library: Library) -> list[str]:
    """Finds needed libraries that some nodes lack, and a missing need of TensorFlow's library."""
    findings = []
    is_of_tensorflow = library.name == "librdmacoll_tf.so"
    allowed = OF_GLIBC | ({OF_TENSORFLOW} if is_of_tensorflow else set())
    foreign = [name for name in library.needed if name not in allowed]
    if foreign:
        findings.append(f"{library.name} needs {', '.join(foreign)}, which not every node has. {CURE}")
    if is_of_tensorflow and OF_TENSORFLOW not in library.needed:
        findings.append(
            f"{library.name} does not need {OF_TENSORFLOW}: TensorFlow 2.15 to 2.18 will not resolve its "
            "symbols. Link it against cpp/tensorflow/framework_stub.cc."
        )
    return findings


def export_findings(library: Library) -> list[str]:
    """Finds exported names that could collide with names of other libraries."""
    findings = []
    own = "PyInit_" if library.name == EXTENSION else "rc_"
    leaked = [name for name in library.exported if not name.startswith(own)]
    if leaked:
        findings.append(
            f"{library.name} exports {len(leaked)} names beside {own}*: {', '.join(leaked[:5])}. Hide them "
            "by its exports.map."
        )
    if len(leaked) == len(library.exported):
        findings.append(f"{library.name} exports no {own}* name, so nothing can call it.")
    return findings


def hardening_findings(library: Library) -> list[str]:
    """Finds missing protection against memory faults.

    The library needs read-only address tables, stack canaries and checked copy functions.
    """
    findings = []
    if library.relro != "full":
        findings.append(f"{library.name} has RELRO {library.relro}, not full: link it with -z relro -z now.")
    if CANARY not in library.imported:
        findings.append(f"{library.name} has no canaries: compile it with -fstack-protector-strong.")
    if library.name == "librdmacoll.so" and not any(name.endswith("_chk") for name in library.imported):
        findings.append(f"{library.name} has no checked functions: compile it with _FORTIFY_SOURCE=2.")
    return findings


def memory_findings(library: Library) -> list[str]:
    """Finds a memcpy that is not glibc's. glibc's memcpy is chosen for the processor."""
    if "memcpy" in library.imported:
        return []
    return [
        f"{library.name} brings a memcpy of its own, which large sums pay for. Look at -rtlib in "
        "release/zig.cmake."
    ]


def kernel_findings(library: Library) -> list[str]:
    """Finds reduction kernels that were not compiled for their instruction set."""
    return [
        f"{library.name} has {library.registers.get(name, 0)} instructions on {name} registers: the "
        f"{meaning} kernels are not in it. Look at their options in CMakeLists.txt."
        for name, meaning in (("ymm", "AVX2"), ("zmm", "AVX-512"))
        if library.registers.get(name, 0) < KERNEL_INSTRUCTIONS_MIN
    ]


def wheel_findings(name: str, size: int, files: Mapping[str, bytes]) -> list[str]:
    """Checks the wheel as an archive: its name, size, contents and checksums."""
    findings = []
    if not re.fullmatch(rf"rdmacoll-[\w.+]+-{re.escape(TAG)}\.whl", name):
        findings.append(f"{name} is not tagged {TAG}: make wheel")
    if size >= BYTES_MAX:
        findings.append(f"{name} has {size:,} bytes, {BYTES_MAX:,} is the limit.")
    for library in LIBRARIES:
        if f"rdmacoll/lib/{library}" not in files:
            findings.append(f"{name} lacks rdmacoll/lib/{library}.")
    for file in sorted(files):
        if not re.match(r"rdmacoll/|rdmacoll-[^/]+\.dist-info/", file):
            findings.append(f"{name} has {file}, which is not of the package.")
        if file.endswith(".so") and file.rpartition("/")[2] not in LIBRARIES:
            findings.append(f"{name} brings {file}, a library of somebody else.")
    return findings + record_findings(name, files)


def horovod_findings(name: str, files: Mapping[str, bytes], *, version: str) -> list[str]:
    """Checks the wheel of the package horovod: contents, checksums, command and needed rdmacoll."""
    findings = [
        f"{name} has {file}, which is not of the package horovod."
        for file in sorted(files)
        if not re.match(r"horovod/[^.]+\.py$|rdmacoll_horovod-[^/]+\.dist-info/", file)
    ]
    text = {file.rpartition("/")[2]: data.decode() for file, data in files.items() if ".dist-info/" in file}
    required = Parser().parsestr(text.get("METADATA", "")).get_all("Requires-Dist", [])
    if f"rdmacoll=={version}" not in required:
        findings.append(f"{name} requires {', '.join(required) or 'nothing'}, not rdmacoll=={version}.")
    if "horovodrun = " not in text.get("entry_points.txt", ""):
        findings.append(f"{name} has no command horovodrun.")
    return findings + record_findings(name, files)


def record_findings(name: str, files: Mapping[str, bytes]) -> list[str]:
    """Checks that RECORD names every file with its checksum, and no other file."""
    record = next((file for file in files if file.endswith(".dist-info/RECORD")), None)
    if record is None:
        return [f"{name} has no RECORD."]
    rows = {row[0]: row[1] for row in csv.reader(io.StringIO(files[record].decode())) if row}
    findings = [f"{name}: RECORD and archive differ in {file}." for file in sorted(set(rows) ^ set(files))]
    for file, told in rows.items():
        if file == record or file not in files:
            continue
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[file]).digest()).rstrip(b"=").decode()
        if told != f"sha256={digest}":
            findings.append(f"{name}: the checksum of {file} is not the one in RECORD.")
    return findings


def metadata_findings(metadata: str, wheel: str, *, version: str) -> list[str]:
    """Checks METADATA and WHEEL, which pip and the package's page show to users."""
    fields = Parser().parsestr(metadata)
    wanted = {"Name": "rdmacoll", "Version": version, "Requires-Python": ">=3.9"}
    findings = [
        f"METADATA says {key}: {fields[key]}, not {value}."
        for key, value in wanted.items()
        if fields[key] != value
    ]
    required = {
        re.split(r"[^\w.-]", text)[0] for text in fields.get_all("Requires-Dist", []) if ";" not in text
    }
    if required != {"numpy", "click", "rich"}:
        findings.append(f"METADATA requires {', '.join(sorted(required))}; numpy, click and rich are enough.")
    extras = set(fields.get_all("Provides-Extra", []))
    if extras != EXTRAS:
        findings.append(
            f"METADATA has the extras {', '.join(sorted(extras))}, not {', '.join(sorted(EXTRAS))}."
        )
    if not (fields["License"] or fields["License-Expression"]):
        findings.append("METADATA has no license.")
    if "text/markdown" not in (fields["Description-Content-Type"] or ""):
        findings.append("METADATA does not say that the description is Markdown.")
    if not fields.get_payload():
        findings.append("METADATA has no description: README.md is missing.")
    told = Parser().parsestr(wheel)
    python, abi, platforms = TAG.split("-")
    tags = {f"{python}-{abi}-{platform}" for platform in platforms.split(".")}
    if set(told.get_all("Tag", [])) != tags:
        findings.append(
            f"WHEEL has the tags {', '.join(told.get_all('Tag', []))}, not {', '.join(sorted(tags))}."
        )
    if told["Root-Is-Purelib"] != "false":
        findings.append("WHEEL says that the package is pure Python.")
    return findings


def audit_findings(report: Mapping[str, Any]) -> list[str]:
    """Returns the objections of `auditwheel show --json` to the tag.

    auditwheel also objects to TensorFlow's library, which TensorFlow always loads before ours. The rule
    ignores this objection. Any other library that it objects to may be missing on some nodes.
    """
    if "overall_tag" not in report:
        return [f"auditwheel: {report.get('error', report)}"]
    findings = []
    symbols = re.fullmatch(r"manylinux_(\d+)_(\d+)_x86_64", report["sym_tag"])
    if not symbols or (int(symbols[1]), int(symbols[2])) > GLIBC_MAX:
        findings.append(f"auditwheel: symbols allow {report['sym_tag']} at best, not {POLICY}. {CURE}")
    lacking = report["policy_upgrades"].get(POLICY, {})
    foreign = [name for name in lacking.get("libs_to_eliminate", []) if name != OF_TENSORFLOW]
    if foreign:
        findings.append(f"auditwheel: {POLICY} does not permit {', '.join(foreign)}. {CURE}")
    if lacking.get("blacklisted_symbols"):
        findings.append(f"auditwheel: {POLICY} does not permit {lacking['blacklisted_symbols']}.")
    if report["unsupported_isa"]:
        findings.append("auditwheel: the libraries cannot be loaded by every x86-64 processor.")
    return findings


def audit_summary(report: Mapping[str, Any]) -> str:
    """Returns auditwheel's verdict in a few words."""
    if audit_findings(report):
        return "refused"
    left = sorted(report["policy_upgrades"].get(POLICY, {}).get("libs_to_eliminate", []))
    return f"symbols of {report['sym_tag']}" + (f"; {', '.join(left)} is TensorFlow's" if left else "")
