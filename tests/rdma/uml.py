"""User-mode Linux as the guest. It has one processor and starts quickly."""

from __future__ import annotations

import ctypes
import functools
import os

from rdma import initramfs, uml_kernel
from rdma.machine import Launch, Options, RunFolders

_PTRACE_TRACEME = 0


@functools.cache
def refusal() -> str:
    """Returns why user-mode Linux cannot run here, or an empty text. It needs ptrace.

    Callers ask before the kernel is built, since the build would be useless.
    """
    ptrace = ctypes.CDLL(None).ptrace
    child = os.fork()
    if child == 0:
        os._exit(0 if ptrace(_PTRACE_TRACEME, 0, 0, 0) == 0 else 1)
    _, status = os.waitpid(child, 0)
    return "" if status == 0 else "this machine forbids ptrace, so user-mode Linux cannot run"


def prepare(jobs: int | None = None) -> None:
    """Builds the files that a run needs, in the cache."""
    uml_kernel.kernel(jobs)
    initramfs.busybox()


def launch(options: Options, place: RunFolders) -> Launch:
    """Returns the start of a guest.

    Serial lines 0 and 1 carry the command's output. The console is the process's own output.
    """
    initrd = place.files / "initrd"
    initramfs.write(initrd)
    command = [
        str(uml_kernel.kernel()),
        f"mem={options.memory}",
        f"initrd={initrd}",
        f"uml_dir={place.files}",
        "umid=guest",
        "con=null",
        "con0=null,fd:1",
        "ssl=null",
        f"ssl0=null,fd:{place.out}",
        f"ssl1=null,fd:{place.err}",
        "quiet",
        "panic=-1",
        "dummy.numdummies=0",
        "guest.kind=uml",
        f"guest.exchange={place.exchange}",
    ]
    # The guest's memory is an unnamed file in TMPDIR.
    return Launch(command, {**os.environ, "TMPDIR": str(place.files)}, "/dev/ttyS0", "/dev/ttyS1", 1)
