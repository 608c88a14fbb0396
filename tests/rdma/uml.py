"""User-mode Linux as the guest: one process of the host, one processor, starts in half a second."""

from __future__ import annotations

import os

from rdma import initramfs, uml_kernel
from rdma.machine import Launch, Options, Place


def prepare(jobs: int | None = None) -> None:
    """Builds what a run needs into the cache."""
    uml_kernel.kernel(jobs)
    initramfs.busybox()


def launch(options: Options, place: Place) -> Launch:
    """Serial lines 0 and 1 carry the command's output; the console is the process's own."""
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
    # TMPDIR holds the guest's memory, as a file without a name.
    return Launch(command, {**os.environ, "TMPDIR": str(place.files)}, "/dev/ttyS0", "/dev/ttyS1")
