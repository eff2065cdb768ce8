"""The system calls that code in the sandbox may not make, as a seccomp filter for bubblewrap.

No new process, no socket, no other process's memory, no mounts or namespaces, no memory that the
limits do not count. Everything else a Python program needs is allowed.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE, _OFFSET_FIRST_ARGUMENT = 0, 4, 16
_CLONE_THREAD = 0x00010000
_FOREIGN_ABI = 0x40000000  # x32 calls on x86-64 would pass under other numbers


@dataclass(frozen=True)
class _Machine:
    """An architecture: its audit number, and the numbers of the calls that matter."""

    architecture: int
    clone: int
    clone3: int
    denied: dict[str, int]


_X86_64 = _Machine(
    architecture=0xC000003E,
    clone=56,
    clone3=435,
    denied={
        "fork": 57,
        "vfork": 58,
        "socket": 41,
        "ptrace": 101,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "kcmp": 312,
        "unshare": 272,
        "setns": 308,
        "mount": 165,
        "umount2": 166,
        "pivot_root": 155,
        "chroot": 161,
        "keyctl": 250,
        "add_key": 248,
        "request_key": 249,
        "bpf": 321,
        "perf_event_open": 298,
        "userfaultfd": 323,
        "io_uring_setup": 425,
        "open_by_handle_at": 304,
        "name_to_handle_at": 303,
        "init_module": 175,
        "finit_module": 313,
        "kexec_load": 246,
        "reboot": 169,
        "swapon": 167,
        "syslog": 103,
        "memfd_create": 319,
        "memfd_secret": 447,
        "shmget": 29,
        "msgget": 68,
        "semget": 64,
        "mq_open": 240,
    },
)
_AARCH64 = _Machine(
    architecture=0xC00000B7,
    clone=220,
    clone3=435,
    denied={
        "socket": 198,
        "ptrace": 117,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "kcmp": 272,
        "unshare": 97,
        "setns": 268,
        "mount": 40,
        "umount2": 39,
        "pivot_root": 41,
        "chroot": 51,
        "keyctl": 219,
        "add_key": 217,
        "request_key": 218,
        "bpf": 280,
        "perf_event_open": 241,
        "userfaultfd": 282,
        "io_uring_setup": 425,
        "open_by_handle_at": 265,
        "name_to_handle_at": 264,
        "init_module": 105,
        "finit_module": 273,
        "kexec_load": 104,
        "reboot": 142,
        "swapon": 224,
        "syslog": 116,
        "memfd_create": 279,
        "memfd_secret": 447,
        "shmget": 194,
        "msgget": 186,
        "semget": 190,
        "mq_open": 180,
    },
)
_MACHINES = {"x86_64": _X86_64, "aarch64": _AARCH64}


def supported() -> bool:
    """Return whether a filter exists for this machine."""
    return platform.machine() in _MACHINES


def filter_program() -> bytes:
    """The filter for this machine, in the kernel's classic BPF."""
    machine = _MACHINES[platform.machine()]
    program = [
        _instruction(_LOAD, _OFFSET_ARCHITECTURE),
        _instruction(_EQUAL, machine.architecture, if_true=1),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _OFFSET_NUMBER),
        _instruction(_AT_LEAST, _FOREIGN_ABI, if_false=1),
        _instruction(_RETURN, _ERRNO | errno.ENOSYS),
    ]
    for number in machine.denied.values():
        program += [
            _instruction(_EQUAL, number, if_false=1),
            _instruction(_RETURN, _ERRNO | errno.EPERM),
        ]
    program += [
        _instruction(_EQUAL, machine.clone3, if_false=1),
        _instruction(_RETURN, _ERRNO | errno.ENOSYS),  # makes the C library fall back to clone
        _instruction(_EQUAL, machine.clone, if_false=3),
        _instruction(_LOAD, _OFFSET_FIRST_ARGUMENT),
        _instruction(_ANY_BIT, _CLONE_THREAD, if_true=1),
        _instruction(_RETURN, _ERRNO | errno.EPERM),
        _instruction(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
