"""Rules for a release wheel: reading the output of binutils and auditwheel, and refusing wheels."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import ROOT

sys.path.insert(0, str(ROOT / "release"))

import check_wheel
import elf
import environments
import rules

from rdmacoll.version import __version__

VERSIONS = """
Version definition section '.gnu.version_d' contains 1 entry:
  000000: Rev: 1  Flags: BASE  Index: 1  Cnt: 1  Name: librdmacoll.so
Version needs section '.gnu.version_r' contains 2 entries:
  000000: Version: 1  File: libpthread.so.0  Cnt: 1
  0x0010:   Name: GLIBC_2.3.4  Flags: none  Version: 6
  0x0020: Version: 1  File: libc.so.6  Cnt: 3
  0x0030:   Name: GLIBC_2.16  Flags: none  Version: 7
  0x0040:   Name: GLIBC_2.2.5  Flags: none  Version: 4
  0x0050:   Name: GLIBC_2.9  Flags: WEAK  Version: 3
"""
DYNAMIC = """
 0x0000000000000001 (NEEDED)             Shared library: [libpthread.so.0]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x000000000000000e (SONAME)             Library soname: [librdmacoll.so]
"""
SYMBOLS = """
Symbol table '.dynsym' contains 6 entries:
   Num:    Value          Size Type    Bind   Vis      Ndx Name
     0: 0000000000000000     0 NOTYPE  LOCAL  DEFAULT  UND
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND memcpy@GLIBC_2.14 (3)
     2: 000000000004b010    12 FUNC    GLOBAL DEFAULT   12 rc_load@@RC_1
     3: 000000000004b020    12 FUNC    WEAK   DEFAULT   12 _Znwm
     4: 000000000004b030    12 FUNC    LOCAL  DEFAULT   12 inner
     5: 000000000004b040    12 FUNC    GLOBAL HIDDEN    12 _ZdlPv
"""
FINE = elf.Library(
    "librdmacoll.so",
    2_000_000,
    needed=("libpthread.so.0", "libc.so.6"),
    versions={"GLIBC": (2, 16)},
    exported=("rc_load",),
    imported=("__memcpy_chk", "__stack_chk_fail", "memcpy"),
    relro="full",
    registers={"ymm": 5000, "zmm": 4000},
)
FINE_TF = elf.Library(
    "librdmacoll_tf.so",
    300_000,
    needed=("libtensorflow_framework.so.2", "libc.so.6"),
    versions={"GLIBC": (2, 17)},
    exported=("rc_tf_attach",),
    imported=("__stack_chk_fail",),
    relro="full",
)
NAME = f"rdmacoll-0.1.0-{rules.TAG}.whl"


def findings(library: elf.Library) -> list[str]:
    return [finding for _, _, found in rules.library_rows(library) for finding in found]


def changed(library: elf.Library, **fields: object) -> elf.Library:
    return elf.Library(**{**vars(library), **fields})


def test_the_highest_version_is_by_number_and_not_by_letter() -> None:
    assert elf.highest_versions(VERSIONS) == {"GLIBC": (2, 16)}


def test_a_version_without_a_number_is_higher_than_all() -> None:
    text = VERSIONS + "  0x0060:   Name: GLIBC_PRIVATE  Flags: none  Version: 9\n"
    assert elf.highest_versions(text) == {"GLIBC": ()}
    assert "GLIBC_private" in findings(changed(FINE, versions={"GLIBC": ()}))[0]


def test_needed_libraries_are_read_without_the_own_name() -> None:
    assert elf.needed(DYNAMIC) == ("libpthread.so.0", "libc.so.6")


def test_exported_names_are_the_defined_and_visible_ones_weak_ones_too() -> None:
    assert elf.symbols(SYMBOLS) == (("_Znwm", "rc_load"), ("memcpy",))


def test_full_relro_is_told_from_partial() -> None:
    headers = "  GNU_RELRO      0x36d5c8 0x000000000036e5c8 0x000000000036e5c8 0x00fa38 0x00fa38 R   0x1\n"
    for flags in ("(BIND_NOW)", "(FLAGS)  BIND_NOW", "(FLAGS_1)  Flags: NOW NODELETE"):
        assert elf.relro(headers, f" 0x000000006ffffffb {flags}\n") == "full"
    assert elf.relro(headers, " 0x000000006ffffffb (FLAGS_1)  Flags: NODELETE\n") == "partial"
    assert elf.relro("  LOAD 0x0\n", "(BIND_NOW)") == "none"


def test_the_libraries_of_this_tree_are_hardened() -> None:
    def readelf(*options: str) -> str:
        command = ("readelf", "-W", *options, str(path))
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    for name in rules.LIBRARIES:
        path = ROOT / "rdmacoll" / "lib" / name
        _, imported = elf.symbols(readelf("--dyn-syms"))
        relro = elf.relro(readelf("-l"), readelf("-d"))
        library = elf.Library(name, 1, imported=imported, relro=relro)
        assert rules.hardening_findings(library) == [], "build it again: make native"


def test_instructions_are_counted_by_their_registers() -> None:
    text = " 10: vaddps %zmm1,%zmm2,%zmm3\n 18: vaddps %ymm1,%ymm2,%ymm3\n 20: addps %xmm1,%xmm2\n"
    assert elf.registers(text) == {"ymm": 1, "zmm": 1}


def test_libraries_as_they_should_be_have_no_findings() -> None:
    assert findings(FINE) == []
    assert findings(FINE_TF) == []


@pytest.mark.parametrize(
    ("library", "named"),
    [
        (changed(FINE, versions={"GLIBC": (2, 34)}), "GLIBC_2.34"),
        (changed(FINE, versions={"GLIBC": (2, 16), "GLIBCXX": (3, 4, 29)}), "GLIBCXX_3.4.29"),
        (changed(FINE, versions={}), "no version of glibc"),
        (changed(FINE, needed=("libstdc++.so.6", "libc.so.6")), "libstdc++.so.6"),
        (changed(FINE, needed=(*FINE.needed, rules.OF_TENSORFLOW)), rules.OF_TENSORFLOW),
        (changed(FINE_TF, needed=("libc.so.6",)), "2.15 to 2.18"),
        (changed(FINE, exported=("rc_load", "_Znwm")), "_Znwm"),
        (changed(FINE, exported=()), "no rc_* name"),
        (changed(FINE, registers={"ymm": 5000, "zmm": 3}), "AVX-512"),
        (changed(FINE, imported=("__memset_chk", "__stack_chk_fail")), "memcpy"),
        (changed(FINE, imported=("memcpy", "__memset_chk")), "-fstack-protector-strong"),
        (changed(FINE, imported=("memcpy", "__stack_chk_fail")), "_FORTIFY_SOURCE=2"),
        (changed(FINE, relro="partial"), "-z now"),
        (changed(FINE_TF, relro="none"), "-z relro"),
        (changed(FINE, registers={"ymm": 0, "zmm": 4000}), "AVX2"),
    ],
)
def test_what_would_fail_on_a_node_is_named(library: elf.Library, named: str) -> None:
    found = findings(library)
    assert len(found) == 1, found
    assert named in found[0]


def archive(**more: bytes) -> dict[str, bytes]:
    files = {f"rdmacoll/lib/{name}": name.encode() for name in rules.LIBRARIES}
    return recorded({**files, **{name.replace("__", "/"): data for name, data in more.items()}})


def recorded(files: dict[str, bytes], distribution: str = "rdmacoll") -> dict[str, bytes]:
    """The files of a wheel with their RECORD."""
    record = f"{distribution}-0.1.0.dist-info/RECORD"
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return {**files, record: "".join([*lines, f"{record},,\n"]).encode()}


def test_an_archive_as_it_should_be_has_no_findings() -> None:
    assert rules.wheel_findings(NAME, 1_000_000, archive(rdmacoll__x=b"1")) == []


@pytest.mark.parametrize(
    ("name", "size", "files", "named"),
    [
        ("rdmacoll-0.1.0-py3-none-linux_x86_64.whl", 1, archive(), "manylinux_2_17"),
        (NAME, rules.BYTES_MAX, archive(), "10,000,000 is the limit"),
        (NAME, 1, archive(tests__x=b""), "tests/x"),
        (NAME, 1, {**archive(), "rdmacoll/lib/librdmacoll.so": b"another"}, "checksum"),
        (NAME, 1, {**archive(), "rdmacoll/y": b""}, "RECORD and archive differ"),
    ],
)
def test_a_wrong_archive_is_refused(name: str, size: int, files: dict[str, bytes], named: str) -> None:
    found = rules.wheel_findings(name, size, files)
    assert len(found) == 1, found
    assert named in found[0]


def test_libraries_that_are_missing_or_foreign_are_named() -> None:
    files = archive()
    del files["rdmacoll/lib/librdmacoll_tf.so"]
    assert any("lacks rdmacoll/lib/librdmacoll_tf.so" in f for f in rules.wheel_findings(NAME, 1, files))
    files = archive(**{"rdmacoll__libibverbs.so": b""})
    assert any("libibverbs.so" in f for f in rules.wheel_findings(NAME, 1, files))


HOROVOD_NAME = "rdmacoll_horovod-0.1.0-py3-none-any.whl"
HOROVOD_FILES = {
    "horovod/tensorflow/__init__.py": "",
    "rdmacoll_horovod-0.1.0.dist-info/METADATA": "Requires-Dist: rdmacoll==0.1.0\nRequires-Dist: packaging\n",
    "rdmacoll_horovod-0.1.0.dist-info/entry_points.txt": "[console_scripts]\nhorovodrun = rdmacoll:main\n",
}


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        ("horovod/__init__.py", "", ""),
        ("horovod/library.so", "", "horovod/library.so"),
        ("rdmacoll/__init__.py", "", "rdmacoll/__init__.py"),
        ("rdmacoll_horovod-0.1.0.dist-info/METADATA", "Requires-Dist: rdmacoll\n", "not rdmacoll==0.1.0"),
        ("rdmacoll_horovod-0.1.0.dist-info/entry_points.txt", "", "no command horovodrun"),
    ],
)
def test_the_wheel_of_the_package_horovod_is_python_with_its_command(
    file: str, text: str, named: str
) -> None:
    files = {name: one.encode() for name, one in {**HOROVOD_FILES, file: text}.items()}
    found = rules.horovod_findings(HOROVOD_NAME, recorded(files, "rdmacoll_horovod"), version="0.1.0")
    assert len(found) == bool(named), found
    assert named in "".join(found)


def test_a_missing_wheel_of_the_package_horovod_is_a_finding(tmp_path: Path, capsys) -> None:
    table = check_wheel.Table()
    check_wheel.check_horovod_archive(check_wheel.horovod_wheel_of(tmp_path / "rdmacoll.whl"), table)
    (finding,) = table.findings
    assert finding == f"{tmp_path}/rdmacoll_horovod-{__version__}-py3-none-any.whl is missing: make wheel"
    assert "NO  missing" in capsys.readouterr().out


METADATA = """Metadata-Version: 2.1
Name: rdmacoll
Version: 0.1.0
License-Expression: Apache-2.0
Requires-Python: >=3.9
Description-Content-Type: text/markdown
Requires-Dist: numpy
Requires-Dist: click
Requires-Dist: rich
Provides-Extra: mpi
Requires-Dist: mpi4py>=4; extra == "mpi"
Provides-Extra: tensorflow
Provides-Extra: plot

# rdmacoll
"""
TOLD = "Root-Is-Purelib: false\nTag: py3-none-manylinux_2_17_x86_64\nTag: py3-none-manylinux2014_x86_64\n"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("", "", ""),
        ("Version: 0.1.0", "Version: 0.2.0", "0.2.0"),
        (">=3.9", ">=3.10", "Requires-Python"),
        ("Requires-Dist: rich\n", "Requires-Dist: rich\nRequires-Dist: tensorflow\n", "tensorflow"),
        ("Provides-Extra: plot\n", "", "extras"),
        ("License-Expression: Apache-2.0\n", "", "license"),
        ("text/markdown", "text/plain", "Markdown"),
        ("\n# rdmacoll\n", "", "description"),
        ("py3-none-manylinux2014", "cp311-none-manylinux2014", "cp311"),
        ("Purelib: false", "Purelib: true", "pure"),
    ],
)
def test_metadata_is_what_pip_and_a_person_need(old: str, new: str, named: str) -> None:
    found = rules.metadata_findings(METADATA.replace(old, new), TOLD.replace(old, new), version="0.1.0")
    assert len(found) == bool(named), found
    assert named in "".join(found)


def audit(**fields: object) -> dict[str, object]:
    lacking = {"libs_to_eliminate": [rules.OF_TENSORFLOW]}
    return {
        "overall_tag": "linux_x86_64",
        "sym_tag": "manylinux_2_17_x86_64",
        "unsupported_isa": False,
        "policy_upgrades": {rules.POLICY: lacking},
        **fields,
    }


def test_auditwheel_may_miss_the_library_of_tensorflow_alone() -> None:
    assert rules.audit_findings(audit()) == []
    assert rules.audit_findings(audit(sym_tag="manylinux_2_5_x86_64", policy_upgrades={})) == []
    assert "TensorFlow's" in rules.audit_summary(audit())


@pytest.mark.parametrize(
    ("report", "named"),
    [
        (audit(sym_tag="manylinux_2_34_x86_64"), "manylinux_2_34"),
        (audit(sym_tag="linux_x86_64"), "linux_x86_64"),
        (
            audit(policy_upgrades={rules.POLICY: {"libs_to_eliminate": ["libibverbs.so.1"]}}),
            "libibverbs.so.1",
        ),
        (audit(policy_upgrades={rules.POLICY: {"blacklisted_symbols": {"libz.so.1": ["x"]}}}), "libz"),
        (audit(unsupported_isa=True), "processor"),
        ({"error": "no module named auditwheel"}, "no module named auditwheel"),
    ],
)
def test_what_auditwheel_refuses_is_a_finding(report: dict[str, object], named: str) -> None:
    found = rules.audit_findings(report)
    assert len(found) == 1, found
    assert named in found[0]
    assert rules.audit_summary(report) == "refused"


TRAINING = environments.Case("tensorflow-2.15", ("3.9",), trains=True)
SELFTEST = environments.Case("numpy-3.9", ("3.9",))
TRAINED = {"ok": True, "ranks": 2, "weights_equal": True, "test_accuracy": 0.97}


@pytest.mark.parametrize(
    ("case", "result", "codes", "named"),
    [
        (TRAINING, TRAINED, [0], ""),
        (TRAINING, {**TRAINED, "weights_equal": False}, [1], "not equal"),
        (TRAINING, {**TRAINED, "ranks": 1}, [0], "1 ranks"),
        (TRAINING, {**TRAINED, "ok": False}, [1], "exit codes [1]"),
        (TRAINING, {}, [134], "exit codes [134]"),
        (SELFTEST, {"ok": True, "cases": 100, "failed": 0, "skipped": []}, [0, 0], ""),
        (SELFTEST, {"ok": True, "cases": 0, "failed": 0, "skipped": []}, [0, 0], "no case"),
        (SELFTEST, {"ok": False, "cases": 100, "failed": 3, "skipped": []}, [1, 1], "failed: 3"),
        (SELFTEST, {"ok": True, "cases": 100, "failed": 0, "skipped": []}, [0, -11], "-11"),
    ],
)
def test_ranks_in_an_environment_are_judged_by_what_they_leave(case, result, codes, named: str) -> None:
    found = environments.judged(case, result, codes)
    assert bool(found) == bool(named), found
    assert named in found


def test_a_case_without_its_python_is_not_claimed() -> None:
    trial = environments.try_case(SELFTEST, ROOT / "none.whl", ROOT / "none.whl", {"3.13": ROOT})
    assert not trial.python
    assert not trial.finding
    assert "not tried" in trial.summary()


def test_every_promised_python_and_tensorflow_has_a_case() -> None:
    names = [case.name for case in environments.cases()]
    assert names == [
        *("tensorflow-2.15", "tensorflow-2.18", "tensorflow-newest"),
        *("numpy-3.9", "numpy-3.10", "numpy-3.11", "numpy-3.12", "numpy-3.13"),
    ]
