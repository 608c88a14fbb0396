"""Is this wheel fit for a release? Prints one table. The exit code is 1 on any finding.

    python release/check_wheel.py [WHEEL] [--environments NAMES] [--json FILE]

The first part reads the archive alone: symbol versions, needed libraries, exported names, kernels, size,
tags, metadata and auditwheel's verdict. The wheel rdmacoll_horovod must lie beside it. The second part
installs the wheel in fresh environments. With TensorFlow 2.15, 2.18 and the newest it installs both wheels,
two ranks train, and horovodrun starts a program for Horovod. The selftest runs with numpy alone in Python
3.9 to 3.13. All these versions of Python must be installed.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import elf
import environments
import rules

ROOT = environments.ROOT


def printed(*command: str | Path) -> str:
    """Returns the standard output of a program of binutils."""
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=True, timeout=300
    ).stdout


def read_library(path: Path) -> elf.Library:
    """Reads a library with readelf and objdump."""
    exported, imported = elf.symbols(printed("readelf", "--dyn-syms", "-W", path))
    dynamic = printed("readelf", "-d", "-W", path)
    return elf.Library(
        path.name,
        path.stat().st_size,
        needed=elf.needed(dynamic),
        versions=elf.highest_versions(printed("readelf", "-V", "-W", path)),
        exported=exported,
        imported=imported,
        relro=elf.relro(printed("readelf", "-l", "-W", path), dynamic),
        registers=elf.registers(printed("objdump", "-d", "--no-show-raw-insn", path)),
    )


def audited(wheel: Path) -> dict[str, Any]:
    """Returns auditwheel's report. If auditwheel fails, the report has its output under "error"."""
    command = [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    try:
        report: dict[str, Any] = json.loads(result.stdout)
    except json.JSONDecodeError:
        report = {"error": (result.stdout + result.stderr).strip()[-1000:]}
    return report


def newest_wheel() -> Path:
    """Returns the newest wheel in dist/, where `make wheel` writes it."""
    found = sorted((ROOT / "dist").glob("rdmacoll-*.whl"), key=lambda path: path.stat().st_mtime)
    if not found:
        sys.exit("there is no wheel in dist/: make wheel")
    return found[-1]


def version_of_tree() -> str:
    """The version that the wheel must have."""
    about: dict[str, str] = {}
    exec((ROOT / "rdmacoll" / "version.py").read_text(), about)
    return about["__version__"]


def horovod_wheel_of(wheel: Path) -> Path:
    """Returns the wheel of the package horovod that `make wheel` writes beside this one."""
    return wheel.parent / f"rdmacoll_horovod-{version_of_tree()}-py3-none-any.whl"


class Table:
    """The printed table. It prints each row at once and collects all findings."""

    def __init__(self) -> None:
        self.findings: list[str] = []

    def row(self, subject: str, what: str, found: str, findings: list[str]) -> None:
        """Prints one line. The caller prints the findings at the end."""
        self.findings += findings
        print(f"{subject:<20} {what:<10} {'NO' if findings else 'ok':<3} {found}", flush=True)


def check_archive(wheel: Path, table: Table) -> dict[str, Any]:
    """Checks the wheel without installing it. Returns the fields for --json."""
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
        libraries = []
        for name in files:
            if name.endswith(".so"):
                libraries.append(read_library(Path(archive.extract(name, folder))))
    size = wheel.stat().st_size
    table.row(
        "wheel",
        "archive",
        f"{len(files)} files, {size:,} bytes",
        rules.wheel_findings(wheel.name, size, files),
    )
    text = {Path(name).name: data.decode() for name, data in files.items() if ".dist-info/" in name}
    metadata = rules.metadata_findings(text["METADATA"], text["WHEEL"], version=version_of_tree())
    table.row("wheel", "metadata", f"version {version_of_tree()}", metadata)
    report = audited(wheel)
    table.row("wheel", "auditwheel", rules.audit_summary(report), rules.audit_findings(report))
    for library in libraries:
        for what, found, findings in rules.library_rows(library):
            table.row(library.name, what, found, findings)
    return {
        "wheel": wheel.name,
        "bytes": size,
        "libraries": [library.as_json() for library in libraries],
        "auditwheel": report,
    }


def check_horovod_archive(wheel: Path, table: Table) -> None:
    """Checks the wheel of the package horovod without installing it."""
    if not wheel.is_file():
        table.row("horovod wheel", "archive", "missing", [f"{wheel} is missing: make wheel"])
        return
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    findings = rules.horovod_findings(wheel.name, files, version=version_of_tree())
    table.row("horovod wheel", "archive", f"{len(files)} files, {wheel.stat().st_size:,} bytes", findings)


def check_environments(wheel: Path, names: str, table: Table) -> list[dict[str, Any]]:
    """Tries every requested case. A case whose Python is missing is a finding, since nothing was tested."""
    pythons = environments.interpreters()
    trials = []
    for case in environments.cases():
        if any(case.name.startswith(name) for name in names.split(",") if name):
            trial = environments.try_case(case, wheel, horovod_wheel_of(wheel), pythons)
            trials.append(trial)
            finding = trial.finding if trial.python else f"{case.name}: {trial.summary()}"
            table.row(case.name, "runs", trial.summary(), [finding] if finding else [])
    return [vars(trial) for trial in trials]


def main() -> None:
    """Prints the table, writes the JSON file and exits with 1 on findings."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path, nargs="?", help="the newest in dist/ unless it is named")
    parser.add_argument(
        "--environments",
        default="tensorflow,numpy",
        help='which cases, by the beginnings of their names: "tensorflow-2.15,numpy"; "" for none',
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # sys.exit() removes the environments too
    wheel = (options.wheel or newest_wheel()).resolve()
    if not wheel.is_file():
        parser.error(f"{wheel} is no file")
    print(wheel.name)
    table = Table()
    fields = check_archive(wheel, table)
    check_horovod_archive(horovod_wheel_of(wheel), table)
    fields["environments"] = check_environments(wheel, options.environments, table)
    fields.update(findings=table.findings, ok=not table.findings)
    if options.json:
        head = {"command": "check-wheel", "version": version_of_tree()}
        options.json.write_text(json.dumps({**head, **fields}, indent=1) + "\n")
    print("\n".join(["", *table.findings]) if table.findings else "no findings")
    sys.exit(1 if table.findings else 0)


if __name__ == "__main__":
    main()
