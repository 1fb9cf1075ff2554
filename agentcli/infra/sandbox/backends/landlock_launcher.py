"""Runs as a program: bounds itself with Landlock and seccomp, then becomes the command.

Imported by a `python -I -S`, and by the keeper in a process that is to become a command, so it needs the standard
library alone. Arguments: a descriptor to read the plan from, and the command. It never starts a command that it could
not bound: it ends with 126 and a line that says why.

The plan is a list of entries with NULs between: `filter HEX`, `mask PATH`, `show PATH`, `write PATH`.
Landlock only ever allows, so everything but the masked paths has to be allowed to be read. Numbers and structures:
Linux, include/uapi/linux/landlock.h and Documentation/userspace-api/landlock.rst.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import struct
import sys
from collections.abc import Iterator

OLDEST_ABI = 3  # Linux 6.2: before it, a file outside could be truncated

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every architecture
_PATH_BENEATH = 1
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 1, 22, 38, 2

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_ALL_UP_TO_TRUNCATE = (1 << 15) - 1
_TCP = 0b11  # bind and connect, from ABI 4
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11  # from ABI 6

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts")

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    plan_descriptor, *command = sys.argv[1:]
    bound_and_become(os.getppid(), int(plan_descriptor), list(map(os.fsencode, command)), _own_environment())


def bound_and_become(parent: int, plan: int, command: list[bytes], environment: dict[bytes, bytes]) -> None:
    """Ends with the process `parent`; `plan` is a descriptor. Without a command, print the version and return."""
    try:
        _die_with(parent)
        planned = _Restriction(plan)
        _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        abi = landlock_abi()
        if abi < OLDEST_ABI:
            raise OSError(f"Landlock is too old (version {abi}, needed is {OLDEST_ABI}: Linux 6.2)")
        if not command:
            print(abi)
            return
        _restrict_files(planned, abi)
        # Root's own; no_new_privs keeps an executed program from getting them back.
        version_3, no_capabilities = 0x20080522, bytes(24)
        _check(_libc.capset(struct.pack("Ii", version_3, 0), no_capabilities), "capabilities")
        _filter_system_calls(planned.filter)
    except OSError as error:
        print(f"agentcli: the command was not started, because it could not be confined: {error}", file=sys.stderr)
        sys.exit(126)
    _become(command, environment)


class _Restriction:
    def __init__(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as file:
            entries = file.read().decode(errors="surrogateescape").split("\0")
        self._entries = [entry.partition(" ") for entry in entries]
        self.filter = bytes.fromhex(self.paths("filter")[0])

    def paths(self, what: str) -> list[str]:
        return [path for kind, _, path in self._entries if kind == what]


def _die_with(parent: int) -> None:
    """The command, that is; what it started in the background may live on."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent death signal")
    if os.getppid() != parent:
        raise ProcessLookupError("what started it has ended")


def landlock_abi() -> int:
    """The version of the kernel's Landlock. Raises `OSError` when it has none."""
    version_only = 1
    return _check(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), version_only), "Landlock")


def _restrict_files(plan: _Restriction, abi: int) -> None:
    everything = _ALL_UP_TO_TRUNCATE | (_IOCTL_DEV if abi >= 5 else 0)
    attributes = struct.pack("QQQ", everything, _TCP, _ABSTRACT_SOCKETS_AND_SIGNALS)
    known = attributes[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    ruleset = _check(_libc.syscall(_CREATE_RULESET, known, ctypes.c_size_t(len(known)), 0), "a Landlock ruleset")
    _allow(ruleset, "/", _READ_DIR | _EXECUTE)
    masks = plan.paths("mask")
    for path in (*_all_but("/", masks), *plan.paths("show")):
        _allow(ruleset, path, _READ_FILE | _READ_DIR | _EXECUTE)
    for device in _DEVICES:
        _allow(ruleset, f"/dev/{device}", everything)
    for path in plan.paths("write"):
        _allow(ruleset, path, everything)
    _check(_libc.syscall(_RESTRICT_SELF, ruleset, 0), "Landlock")
    os.close(ruleset)


def _all_but(folder: str, masks: list[str]) -> Iterator[str]:
    """The fewest paths below which everything may be read except what is masked."""
    inner = [mask for mask in masks if mask == folder or mask.startswith(folder.rstrip("/") + "/")]
    if not inner:
        yield folder
        return
    if folder in inner:
        return
    try:
        with os.scandir(folder) as entries:
            paths = [entry.path for entry in entries]
    except OSError:
        return
    for path in paths:
        yield from _all_but(path, inner)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Add a rule for a path; skip what has gone meanwhile, and symlinks: their targets have rules of their own."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISLNK(mode):
            return
        allowed = rights if stat.S_ISDIR(mode) else rights & _OF_FILES
        rule = struct.pack("=Qi", allowed, descriptor)
        _check(_libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0), f"a Landlock rule for {path}")
    finally:
        os.close(descriptor)


def _filter_system_calls(program: bytes) -> None:
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0), "the filter of system calls")


def _own_environment() -> dict[bytes, bytes]:
    """As it was given: Python adds LC_CTYPE to what os.environ holds."""
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123  # pathlib costs a quarter of the launcher's time
        lines = file.read().split(b"\0")
    return dict(line.split(b"=", 1) for line in lines if b"=" in line)


def _become(command: list[bytes], environment: dict[bytes, bytes]) -> None:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a command would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606  # the arguments are the command
    except OSError as error:
        print(f"{os.fsdecode(command[0])}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
