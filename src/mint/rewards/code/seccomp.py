"""The system calls that code in the sandbox may not make, as a seccomp filter for bubblewrap.

No new process, no socket, no other process's memory, no mounts or namespaces, no memory that the
limits do not count. Everything else a Python program needs is allowed.

Written here and not with libseccomp: its Python bindings need the shared library, which a machine
with bubblewrap need not have, and an older one does not know the newest of these calls. A filter of
equal tests is short enough to read.
"""

import errno
import platform
import struct

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE, _OFFSET_FIRST_ARGUMENT = 0, 4, 16
_CLONE_THREAD = 0x00010000
_FOREIGN_ABI = 0x40000000  # x32 calls on x86-64 would pass under other numbers

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE, _CLONE3 = (56, 220), (435, 435)
_DENIED = {  # the numbers on x86-64 and aarch64
    "fork": (57, None),
    "vfork": (58, None),
    "socket": (41, 198),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
}


def filter_program() -> bytes:
    """Return the filter for this machine, in the kernel's classic BPF."""
    machine = platform.machine()
    column = list(ARCHITECTURES).index(machine)
    program = [
        _instruction(_LOAD, _OFFSET_ARCHITECTURE),
        _instruction(_EQUAL, ARCHITECTURES[machine], if_true=1),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _OFFSET_NUMBER),
        _instruction(_AT_LEAST, _FOREIGN_ABI, if_false=1),
        _instruction(_RETURN, _ERRNO | errno.ENOSYS),
    ]
    for numbers in _DENIED.values():
        if (number := numbers[column]) is None:
            continue
        program += [
            _instruction(_EQUAL, number, if_false=1),
            _instruction(_RETURN, _ERRNO | errno.EPERM),
        ]
    program += [
        _instruction(_EQUAL, _CLONE3[column], if_false=1),
        _instruction(_RETURN, _ERRNO | errno.ENOSYS),  # makes the C library fall back to clone
        _instruction(_EQUAL, _CLONE[column], if_false=3),
        _instruction(_LOAD, _OFFSET_FIRST_ARGUMENT),
        _instruction(_ANY_BIT, _CLONE_THREAD, if_true=1),
        _instruction(_RETURN, _ERRNO | errno.EPERM),
        _instruction(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
