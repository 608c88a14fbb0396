"""Builds user-mode Linux with rdma_rxe once, from Debian's kernel source package, into the cache."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from pathlib import Path

from rdma import cache
from rdma.cache import GuestError, say

_CONFIG = Path(__file__).resolve().parent / "uml.config"
# The first package that apt offers is taken. 6.12 is in Debian 12's security archive and in Debian 13.
_SOURCES = ("linux-source-6.12", "linux-source-6.1")
# These files are never compiled here, and they are most of the unpacked tree. Their Kconfig files are needed.
_LEFT_OUT = (
    "*/tools/testing/*",
    "*/arch/*/boot/dts/*",
    "*/sound/*.[ch]",
    "*/drivers/gpu/drm/*.[ch]",
    "*/drivers/media/*.[ch]",
    "*/drivers/net/ethernet/*.[ch]",
    "*/drivers/net/wireless/*.[ch]",
    "*/drivers/scsi/*.[ch]",
    "*/drivers/staging/*.[ch]",
)
# Kernels up to 6.12 reserve space for the floating-point state of processors with AVX-512. The host's ptrace
# accepts only the full state, which has 11,008 bytes with AMX. Without this change, no guest starts there.
_STATE_FILE = "arch/x86/um/user-offsets.c"
_STATE_BYTES = ("DEFINE_LONGS(HOST_FP_SIZE, 2696)", "DEFINE_LONGS(HOST_FP_SIZE, 11008)")
_BUILD_TIMEOUT_S = 7200
_LOG = "build.log"
_SAY_EVERY_S = 30.0
# Compiled files of this configuration, for the progress line alone.
_FILES = 980


def _config_hash() -> str:
    return hashlib.sha256(_CONFIG.read_bytes() + _STATE_BYTES[1].encode()).hexdigest()[:12]


def _cached() -> Path | None:
    """Returns the newest built kernel of this configuration, of any version of the source package."""
    found = sorted(cache.folder().glob(f"uml-*-{_config_hash()}"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


def _compiled() -> str:
    """Returns the progress of the build that holds the lock, as text."""
    for log in cache.folder().glob(f"uml.making-*/{_LOG}"):
        try:
            done = log.read_text(errors="replace").count("\n  CC ")
        except OSError:
            continue
        return f", {done} of about {_FILES} files compiled"
    return ""


def kernel(jobs: int | None = None) -> Path:
    """Returns the kernel's executable. If the cache has none, the first process to ask builds it."""
    ready = _cached()
    if ready is not None:
        return ready
    with cache.lock("uml", "the guest kernel that another process builds", _compiled):
        ready = _cached()
        return ready if ready is not None else _build(jobs or os.cpu_count() or 1)


def _build(jobs: int) -> Path:
    begin = time.monotonic()
    with cache.workplace("uml") as place:
        name, version, deb = cache.fetch(lambda: _SOURCES, place)
        final = cache.folder() / f"uml-{version}-{_config_hash()}"
        say(f"building the guest kernel once, from {name} {version} (about 10 CPU-minutes)")
        tree = _source(deb, place)
        _configure(tree)
        _make(tree, jobs, place / _LOG)
        made = place / "linux"
        (tree / "linux").rename(made)
        cache.call(["strip", made])
        cache.take_in(made, final)
    say(f"{final} built in {time.monotonic() - begin:.0f} s")
    return final


def _source(deb: Path, place: Path) -> Path:
    cache.unpack(deb, place / "deb")
    deb.unlink()
    (archive,) = (place / "deb").glob("usr/src/linux-source-*.tar.xz")
    tree = place / "tree"
    tree.mkdir()
    excludes = [f"--exclude={pattern}" for pattern in _LEFT_OUT]
    cache.call(["nice", "-n", "19", "tar", "-xf", archive, "-C", tree, "--strip-components=1", *excludes])
    archive.unlink()
    _make_room_for_state(tree)
    return tree


def _make_room_for_state(tree: Path) -> None:
    """Enlarges the state's space. Newer kernels ask the processor for its size and have no such line."""
    path = tree / _STATE_FILE
    if path.exists():
        path.write_text(path.read_text().replace(*_STATE_BYTES))


def _configure(tree: Path) -> None:
    cache.call(["make", "-s", "ARCH=um", "defconfig"], cwd=tree)
    cache.call(["scripts/kconfig/merge_config.sh", "-m", ".config", _CONFIG], cwd=tree)
    cache.call(["make", "-s", "ARCH=um", "olddefconfig"], cwd=tree)
    have = set((tree / ".config").read_text().splitlines())
    lines = [line for line in _CONFIG.read_text().splitlines() if line.startswith("CONFIG_")]
    lost = [line for line in lines if line not in have]
    if lost:
        raise GuestError(f"this kernel source does not take {', '.join(lost)} in {_CONFIG.name}")


def _make(tree: Path, jobs: int, log: Path) -> None:
    """Compiles at the lowest priority. If this process fails, it kills the compilers too."""
    command = ["nice", "-n", "19", "make", "ARCH=um", f"-j{jobs}", "linux"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=tree,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=cache.environment(),
            start_new_session=True,
        )
        try:
            _watch(process)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if process.returncode != 0:
        last = log.read_text(errors="replace").strip().splitlines()[-5:]
        raise GuestError(f"the guest kernel does not build ({process.returncode}): {' | '.join(last)}")


def _watch(process: subprocess.Popen[bytes]) -> None:
    begin = time.monotonic()
    while True:
        try:
            process.wait(_SAY_EVERY_S)
            return
        except subprocess.TimeoutExpired:
            passed = time.monotonic() - begin
            say(f"building for {passed:.0f} s{_compiled()}")
            if passed > _BUILD_TIMEOUT_S:
                raise GuestError(f"the guest kernel is not built after {_BUILD_TIMEOUT_S} s") from None
