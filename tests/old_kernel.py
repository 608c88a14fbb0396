"""Simulates an old kernel for this process and its children: newer system calls are not implemented."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

# The first system call that Linux 3.10 (RHEL 7) lacks: sched_setattr.
_FIRST_UNKNOWN = {"x86_64": 314, "aarch64": 274}
# rseq stays allowed: a C library that has registered one thread must be able to register all.
_RSEQ = {"x86_64": 334, "aarch64": 293}
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2
_LOAD_WORD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def pretend_linux_3_10() -> None:
    """Raises OSError if this kernel does not permit filters of system calls."""
    instructions = [
        (_LOAD_WORD, 0, 0, 0),  # the number of the system call
        (_JUMP_IF_EQUAL, 2, 0, _RSEQ[platform.machine()]),
        (_JUMP_IF_AT_LEAST, 0, 1, _FIRST_UNKNOWN[platform.machine()]),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    program = _Program(len(instructions), code)
    libc = ctypes.CDLL(None, use_errno=True)
    for option, *arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(option, *arguments) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
