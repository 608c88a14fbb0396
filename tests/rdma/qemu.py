"""QEMU without hardware support as the guest. It has two processors, runs sanitizers and starts slowly."""

from __future__ import annotations

import os
import shutil

from rdma import initramfs, qemu_kernel
from rdma.cache import GuestError
from rdma.machine import Launch, Options, RunFolders

_PROGRAM = "qemu-system-x86_64"
_PROCESSORS = 2
_MACHINE = (
    f"-accel tcg,thread=multi -cpu max -smp {_PROCESSORS} -machine q35,usb=off,smbus=off,sata=off "
    "-nodefaults -no-user-config -no-reboot -display none"
)
_APPEND = (
    "console=ttyS0 quiet panic=-1 mitigations=off nokaslr audit=0 apparmor=0 nowatchdog tsc=reliable "
    "no_timer_check cryptomgr.notests random.trust_cpu=on rcupdate.rcu_expedited=1 dummy.numdummies=0 "
    "guest.kind=qemu"
)


def prepare(_jobs: int | None = None) -> None:
    """Unpacks the files that a run needs into the cache."""
    qemu_kernel.files()
    initramfs.busybox()


def launch(options: Options, place: RunFolders) -> Launch:
    """Returns the start of a guest.

    Two virtio-serial ports carry the command's output. The console is the process's own output.
    """
    if shutil.which(_PROGRAM) is None:
        raise GuestError(f"{_PROGRAM} is missing: make setup-rdma installs it")
    kernel = qemu_kernel.files()
    initrd = place.files / "initrd"
    initramfs.write(initrd, qemu_kernel.modules(kernel))
    command = [_PROGRAM, *_MACHINE.split(), "-m", options.memory, "-append", _APPEND]
    command += ["-kernel", str(kernel / "vmlinux"), "-initrd", str(initrd)]
    command += ["-chardev", "file,id=console,path=/dev/fd/1", "-device", "isa-serial,chardev=console"]
    command += ["-device", "virtio-serial-pci"]
    for name, number in (("out", place.out), ("err", place.err)):
        # The backend is a file and never reaches an end of its input, which would block the port.
        command += ["-chardev", f"file,id={name},path=/dev/fd/{number}"]
        command += ["-device", f"virtserialport,chardev={name},name={name}"]
    command += _shared("root", "/", writable=False)
    command += _shared("exchange", str(place.exchange), writable=True)
    for number, folder in enumerate(options.writable):
        command += _shared(f"writable{number}", str(folder.resolve()), writable=True)
    return Launch(command, dict(os.environ), "/dev/vport0p1", "/dev/vport0p2", _PROCESSORS)


def _shared(tag: str, folder: str, *, writable: bool) -> list[str]:
    """Returns QEMU's options for a host folder over 9p. A comma in its name is doubled."""
    path = folder.replace(",", ",,")
    read_only = "" if writable else ",readonly=on"
    return [
        "-fsdev",
        f"local,id={tag},path={path},security_model=none,multidevs=remap{read_only}",
        "-device",
        f"virtio-9p-pci,fsdev={tag},mount_tag={tag}",
    ]
