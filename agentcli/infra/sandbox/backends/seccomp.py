"""Builds the seccomp filter, which denies system calls to confined commands.

Layout of `struct seccomp_data`, opcodes, return values: Linux, include/uapi/linux/{seccomp,filter,bpf_common,audit}.h.
Numbers of the calls: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (aarch64).
"""

import errno
import os
import struct
from functools import cache

AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
S_ISUID, O_CREAT, O_TMPFILE = 0o4000, 0o100, 0o20000000
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET; NEWTIME exists for unshare alone
NEW_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
CLONE_NEWTIME = 0x00000080

# Name: (number on x86_64, number on aarch64); None where the architecture has no such call.
DENIED: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "pidfd_getfd": (438, 438), "kcmp": (312, 272), "perf_event_open": (298, 241),
    # kernel interfaces with a history of vulnerabilities, which ordinary programs do not need
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "bpf": (321, 280),
    "userfaultfd": (323, 282), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "fanotify_init": (300, 262), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467), "setns": (308, 268),
    # the machine itself
    "reboot": (169, 142), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171), "iopl": (172, None),
    "ioperm": (173, None), "vhangup": (153, 58), "syslog": (103, 116),
}  # fmt: skip

# Calls that change a file's mode, owner, times or attributes; Landlock does not restrict them.
CHANGES_ATTRIBUTES: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "setxattrat": (463, 463), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "removexattrat": (466, 466), "file_setattr": (469, 469),
}  # fmt: skip

# Calls that set a file's mode: numbers as in `DENIED`, the positions of the arguments for the mode and for the flags.
GIVES_MODE: dict[str, tuple[int | None, int | None, int, int | None]] = {
    "chmod": (90, None, 1, None),
    "fchmod": (91, 52, 1, None),
    "fchmodat": (268, 53, 2, None),
    "fchmodat2": (452, 452, 2, None),
    "mknod": (133, None, 1, None),
    "mknodat": (259, 33, 2, None),
    "creat": (85, None, 1, None),
    "open": (2, None, 2, 1),
    "openat": (257, 56, 3, 2),
}
OPENAT2 = 437  # on both architectures

# Calls that are allowed or denied by an argument, with numbers as in `DENIED`.
CHECKED = {"socket": (41, 198), "socketpair": (53, 199), "clone": (56, 220), "unshare": (272, 97), "ioctl": (16, 29)}

# Processor: (number in `seccomp_data.arch`, column in the tables of calls).
ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
CLONE3 = 435  # on both architectures
X32_BIT = 0x40000000  # marks calls in the second numbering of x86_64

# Offsets in struct seccomp_data: nr, arch, then 64-bit arguments, little-endian on both architectures. Only their low
# halves are compared, because the kernel uses only these: garbage in the others would defeat the test (CVE-2019-10063).
_NR, _ARCH = 0, 4
_LOW_HALF_OF = (16, 24, 32, 40)

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ERRNO = 0x00050000

# Call: (position of the argument that decides, test, denied values).
# With `ioctl` a command could type into the terminal that agentcli runs in.
_DENIED_ARGUMENTS = {
    "clone": (0, _ANY_BIT, (NEW_NAMESPACES,)),
    "unshare": (0, _ANY_BIT, (NEW_NAMESPACES | CLONE_NEWTIME,)),
    "ioctl": (1, _EQUAL, (TIOCSTI, TIOCLINUX)),
}


def _step(opcode: int, operand: int, *, skip_if_true: int = 0, skip_if_false: int = 0) -> bytes:
    """Return one instruction; `struct` rejects a jump over more than 255 others."""
    return struct.pack("<HBBI", opcode, skip_if_true, skip_if_false, operand)


_ALLOWED = _step(_RETURN, 0x7FFF0000)
_DENIED = _step(_RETURN, _ERRNO | errno.EPERM)
_MISSING = _step(_RETURN, _ERRNO | errno.ENOSYS)


def _if(test: int, value: int, *steps: bytes) -> list[bytes]:
    """Return instructions that execute `steps` only if the loaded number passes a test."""
    return [_step(test, value, skip_if_false=len(steps)), *steps]


@cache
def filter_program(*, internet: bool, may_change_attributes: bool = True, machine: str = "") -> bytes:
    """Return the filter for `bwrap --seccomp` or `seccomp(2)`; `machine` is a name from uname(2), by default this one.

    Unix sockets are allowed, IPv4 and IPv6 sockets with `internet`, and no others. Without `may_change_attributes` no
    file's mode, owner, times or attributes can be changed. Denied calls fail with EPERM; `clone3` and `openat2` fail
    with ENOSYS, because their flags are behind a pointer, which a filter cannot follow, and programs fall back to
    `clone` and `openat`. Raises `NotImplementedError` for other processors.
    """
    machine = machine or os.uname().machine
    if machine not in ARCHITECTURES:
        raise NotImplementedError(f"There is no filter of system calls for {machine} processors.")
    architecture, column = ARCHITECTURES[machine]  # calls of any other architecture are denied
    code = [_step(_LOAD, _ARCH), _step(_EQUAL, architecture, skip_if_true=1), _DENIED, _step(_LOAD, _NR)]
    if machine == "x86_64":
        code += _if(_AT_LEAST, X32_BIT, _DENIED)
    for numbers in (*DENIED.values(), *(() if may_change_attributes else CHANGES_ATTRIBUTES.values())):
        if (number := numbers[column]) is not None:
            code += _if(_EQUAL, number, _DENIED)
    for number in (CLONE3, OPENAT2):
        code += _if(_EQUAL, number, _MISSING)
    for *numbers_of_call, mode_argument, flags_argument in GIVES_MODE.values():
        if (number := numbers_of_call[column]) is not None:
            code += _if(_EQUAL, number, *_mode_check(mode_argument, flags_argument))
    for name, numbers in CHECKED.items():
        code += _if(_EQUAL, numbers[column], *_argument_check(name, internet=internet))
    return b"".join([*code, _ALLOWED])


def _mode_check(mode_argument: int, flags_argument: int | None) -> list[bytes]:
    """Return instructions that deny the set-user-ID bit: a program to which root gives it would make anybody root."""
    steps = [_step(_LOAD, _LOW_HALF_OF[mode_argument]), *_if(_ANY_BIT, S_ISUID, _DENIED), _ALLOWED]
    if flags_argument is None:
        return steps
    # The mode of an `open` means something only if it creates a file.
    return [_step(_LOAD, _LOW_HALF_OF[flags_argument]), *_if(_ANY_BIT, O_CREAT | O_TMPFILE, *steps), _ALLOWED]


def _argument_check(name: str, *, internet: bool) -> list[bytes]:
    """Return instructions that allow or deny a call of `CHECKED` by one of its arguments."""
    if name in ("socket", "socketpair"):
        families = (AF_UNIX, AF_INET, AF_INET6) if internet else (AF_UNIX,)
        allowed = (step for family in families for step in _if(_EQUAL, family, _ALLOWED))
        return [_step(_LOAD, _LOW_HALF_OF[0]), *allowed, _DENIED]
    argument, test, values = _DENIED_ARGUMENTS[name]
    denied = (step for value in values for step in _if(test, value, _DENIED))
    return [_step(_LOAD, _LOW_HALF_OF[argument]), *denied, _ALLOWED]
