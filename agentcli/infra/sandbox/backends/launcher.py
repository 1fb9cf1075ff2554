"""Confines itself as planned, then becomes the command.

The keeper imports it in a process that will become a command, and `python -I -S` runs it as a program, so it uses only
the standard library. If the process cannot be confined, it ends with 126 and prints the reason instead of becoming
the command. Descriptors that it opens are closed when it becomes the command.

A plan, in Python's marshal format, is one of two tuples:

- `restrict`, a filter of system calls, and the paths to mask, to show and to make writable. Landlock can only allow, so
  reading is allowed for everything except the masked paths.
- `overlays`, a list of overlays, a list of binds, a time in nanoseconds before which the command must not start. An
  overlay has its lower folders from top to bottom, the upper and the work folder (empty if it is read-only) and the
  merged one. The command is then bubblewrap, which confines the real one. A bind is a descriptor that it mounts, and a
  path in a merged folder, which is opened here as that descriptor. The mounts end with a namespace of their own.

Numbers and structures: Linux, include/uapi/linux/{landlock,mount,sched}.h, Documentation/userspace-api/landlock.rst and
Documentation/filesystems/overlayfs.rst.
"""

import ctypes
import errno
import marshal
import os
import signal
import stat
import struct
import sys
import time
from collections.abc import Iterator

SETUP_ERROR_PREFIX = "bwrap: "  # the start of bubblewrap's own errors, after which the confinement is planned again
MIN_ABI = 3  # version of Landlock (Linux 6.2); older ones let commands truncate any file

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls, the same on every architecture
_PATH_BENEATH = 1
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 1, 22, 38, 2

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV  # the kernel rejects others for a file
_ALL_UP_TO_TRUNCATE = (1 << 15) - 1
_TCP = 0b11  # bind and connect, from ABI 4
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11  # from ABI 6

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts")

_NEW_MOUNTS, _NEW_USERS = 0x00020000, 0x10000000
_NO_SETUID, _NO_DEVICES, _RECURSIVE, _PRIVATE = 1 << 1, 1 << 2, 1 << 14, 1 << 18
_COARSE_CLOCK = 5  # CLOCK_REALTIME_COARSE, the clock of file times
_PATH_ONLY = os.O_RDONLY | getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Run as a program, whose arguments are the descriptor of a plan and the command."""
    plan, *command = sys.argv[1:]
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123  # Python adds LC_CTYPE to os.environ
        environment = dict(line.split(b"=", 1) for line in file.read().split(b"\0") if b"=" in line)
    confine_and_exec(os.getppid(), int(plan), list(map(os.fsencode, command)), environment)


def confine_and_exec(parent: int, plan_descriptor: int, command: list[bytes], environment: dict[bytes, bytes]) -> None:
    """Confine this process by a plan, then become `command`, which ends with `parent`.

    An empty `command` only tests a plan of overlays: the function returns, or prints the error and exits.
    """
    message = "agentcli: the command was not started, because it could not be confined"
    try:
        with os.fdopen(plan_descriptor, "rb") as file:
            kind, *parts = marshal.load(file)  # noqa: S302  # written by agentcli itself
        if kind == "overlays":
            message = f"{SETUP_ERROR_PREFIX}no overlay"
            _mount_overlays(*parts, is_trial=not command)  # `parent` is not needed: bwrap itself ends with its parent
        else:
            _restrict(parent, *parts)
    except (OSError, ValueError, EOFError, TypeError) as error:
        print(f"{message}: {error}" if command else error, file=sys.stderr)
        sys.exit(126)
    if not command:
        return
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these signals, and the command would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606  # the arguments are the command
    except OSError as error:
        print(f"{os.fsdecode(command[0])}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


def landlock_version() -> int:
    """Return the kernel's version of Landlock. Raises `OSError` if it has none, or one that is too old."""
    if sys.platform != "linux":
        raise OSError("only Linux has it")
    # With the flag 1 the call only returns the version.
    version = _check(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1), "Landlock")
    if version < MIN_ABI:
        raise OSError(f"Landlock is too old (version {version}, needed is {MIN_ABI}: Linux 6.2)")
    return version


def _restrict(parent: int, seccomp: bytes, paths: tuple[list[str], list[str], list[str]]) -> None:
    """Restrict this process by Landlock and `seccomp`, and drop its capabilities."""
    # The kernel kills the command when its parent ends, but not the processes that the command started.
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent death signal")
    if os.getppid() != parent:  # the parent ended before the call above, so no signal will come
        raise ProcessLookupError("the parent process has ended")
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _restrict_files(landlock_version(), *paths)
    # Drop root's capabilities; no_new_privs keeps executed programs from getting them back.
    version_3, no_capabilities = 0x20080522, bytes(24)
    _check(_libc.capset(struct.pack("Ii", version_3, 0), no_capabilities), "capabilities")
    code = ctypes.create_string_buffer(seccomp, len(seccomp))
    header = struct.pack("HxxxxxxP", len(seccomp) // 8, ctypes.addressof(code))  # struct sock_fprog
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0), "the filter of system calls")


def _restrict_files(abi: int, masked: list[str], shown: list[str], writable: list[str]) -> None:
    """Let this process read `shown` paths and all but the `masked`, and write `writable` ones and some devices."""
    everything = _ALL_UP_TO_TRUNCATE | (_IOCTL_DEV if abi >= 5 else 0)
    attributes = struct.pack("QQQ", everything, _TCP, _ABSTRACT_SOCKETS_AND_SIGNALS)
    known = attributes[: 24 if abi >= 6 else 16 if abi >= 4 else 8]  # bytes: older versions know only the first fields
    ruleset = _check(_libc.syscall(_CREATE_RULESET, known, ctypes.c_size_t(len(known)), 0), "a Landlock ruleset")
    _allow(ruleset, "/", _READ_DIR | _EXECUTE)  # so the names of masked files can be listed
    for path in (*_all_but("/", masked), *shown):
        _allow(ruleset, path, _READ_FILE | _READ_DIR | _EXECUTE)
    for path in (*(f"/dev/{device}" for device in _DEVICES), *writable):
        _allow(ruleset, path, everything)
    _check(_libc.syscall(_RESTRICT_SELF, ruleset, 0), "Landlock")


def _all_but(folder: str, masked: list[str]) -> Iterator[str]:
    """Yield the smallest set of paths that covers everything in a folder except the masked paths."""
    masked_below = [mask for mask in masked if mask == folder or mask.startswith(folder.rstrip("/") + "/")]
    if not masked_below:
        yield folder
    elif folder not in masked_below:
        try:
            with os.scandir(folder) as entries:
                paths = [entry.path for entry in entries]
        except OSError:  # it cannot be listed, so nothing in it is allowed
            return
        for path in paths:
            yield from _all_but(path, masked_below)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Add a rule for a path; skip a path that no longer exists, and symlinks, whose targets have rules of their own."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISLNK(mode):
            rule = struct.pack("=Qi", rights if stat.S_ISDIR(mode) else rights & _FILE_RIGHTS, descriptor)
            _check(_libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0), f"a Landlock rule for {path}")
    finally:
        os.close(descriptor)


def _mount_overlays(
    overlays: list[tuple[list[str], str, str, str]], binds: list[tuple[int, str]], clock_ns: int, *, is_trial: bool
) -> None:
    """Mount the overlays in a new namespace, and open the paths in them that bubblewrap is to bind for the command."""
    _enter_mount_namespace()
    for lower, upper, work, merged in overlays:
        _mount(lower, upper, work, merged)
        if is_trial:  # a readable overlay may still fail at the first write, which is the first use of the work folder
            name = f"{merged}/.{os.urandom(8).hex()}"
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            os.unlink(name)  # noqa: PTH108  # pathlib costs milliseconds here
    for descriptor, source in binds:
        os.dup2(_open_real(source), descriptor)
    # The command starts once file times are later than `clock_ns`, so a file's time shows if the command changed it.
    while time.clock_gettime_ns(_COARSE_CLOCK) <= clock_ns:
        time.sleep(0.001)


def _mount(lower: list[str], upper: str, work: str, merged: str) -> None:
    """Mount an overlay by descriptors, because a colon would divide a folder's path, and a new symlink redirect it."""
    target = b"/proc/self/fd/%d" % _open_real(merged)
    layers = [_open_real(path) for path in lower]
    # With `userxattr` the overlay stores its records in attributes that an ordinary user may set. It also excludes
    # redirects, so the upper folder contains every changed file completely.
    options = f"userxattr,lowerdir={':'.join(f'/proc/self/fd/{number}' for number in layers)}"
    if upper:
        options += f",upperdir=/proc/self/fd/{_open_real(upper)},workdir=/proc/self/fd/{_open_real(work)}"
    done = _libc.mount(b"overlay", target, b"overlay", _NO_SETUID | _NO_DEVICES, options.encode())
    _check(done, f"an overlay over {lower[-1]} cannot be mounted")


def _enter_mount_namespace() -> None:
    """Enter a new mount namespace; ordinary users need a new user namespace for that, and stay the same user."""
    uid, gid = os.getuid(), os.getgid()
    if _libc.unshare(_NEW_MOUNTS):
        _check(_libc.unshare(_NEW_MOUNTS | _NEW_USERS), "user namespaces are forbidden here")
        maps = {"setgroups": b"deny", "uid_map": b"%d %d 1" % (uid, uid), "gid_map": b"%d %d 1" % (gid, gid)}
        for name, text in maps.items():  # `setgroups` first, else the map of groups is refused (user_namespaces(7))
            with open(f"/proc/self/{name}", "wb", 0) as file:  # noqa: PTH123
                file.write(text)
    _check(_libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None), "the mounts cannot be made private")


def _open_real(path: str) -> int:
    """Open a path with `O_PATH`. Raises `OSError`, also if there is a symlink in it."""
    descriptor = os.open(path, _PATH_ONLY)
    if os.readlink(f"/proc/self/fd/{descriptor}") != path:  # noqa: PTH115
        os.close(descriptor)
        raise OSError(errno.ELOOP, "a symbolic link is on the way", path)
    return descriptor


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
