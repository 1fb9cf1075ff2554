"""Bounds its own process by a plan, then becomes the command.

The keeper imports it in a process that is to become a command, and a `python -I -S` runs it as a program, so it needs
the standard library alone. It never becomes a command that it could not bound: it ends with 126 and a line that says
why. Without a command it only tries, and prints the version of Landlock. Descriptors that it opens are closed when it
becomes the command.

A plan, in Python's marshal format, is one of two tuples:

- `restrict`, a filter of system calls, and the paths to mask, to show and to let write. Landlock only ever allows, so
  everything but the masked paths has to be allowed to be read.
- `overlays`, a list of overlays, a list of binds, a time. Each overlay has its lower folders from the topmost to the
  lowest, the upper and the work folder (empty where it cannot be written) and the merged one. The command is then a
  bubblewrap. Where the source of a bind is inside a merged folder, it is opened here in place of the descriptor that
  bubblewrap binds, after looking that no symlink is on the way; a bind is the number of a descriptor and the path that
  it is to lead to. The time, in nanoseconds, has to be over before the command starts. The mounts are in a namespace of
  their own, and end with the last process in it.

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

REFUSAL_START = "bwrap: "  # bubblewrap's own errors begin so; after an output with this start a new plan is made
MIN_ABI = 3  # of Landlock (Linux 6.2): before it, a file outside could be truncated

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

_NEW_MOUNTS, _NEW_USERS = 0x00020000, 0x10000000
_NO_SETUID, _NO_DEVICES, _RECURSIVE, _PRIVATE = 1 << 1, 1 << 2, 1 << 14, 1 << 18
_COARSE_CLOCK = 5  # CLOCK_REALTIME_COARSE, which file times are taken from
_LOOK = os.O_RDONLY | getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    plan, *command = sys.argv[1:]
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123  # Python adds LC_CTYPE to what os.environ holds
        environment = dict(line.split(b"=", 1) for line in file.read().split(b"\0") if b"=" in line)
    bound_and_become(os.getppid(), int(plan), list(map(os.fsencode, command)), environment)


def bound_and_become(parent: int, plan_descriptor: int, command: list[bytes], environment: dict[bytes, bytes]) -> None:
    """Confine this process by a plan, then become the command. Without a command, only try the plan and return.

    In a plan with overlays the command is a bubblewrap, which ends with its parent by itself. With any other plan this
    process asks the kernel to be ended together with the process `parent`.
    """
    refusal = "agentcli: the command was not started, because it could not be confined"
    try:
        with os.fdopen(plan_descriptor, "rb") as file:
            kind, *parts = marshal.load(file)  # noqa: S302  # agentcli's own
        if kind == "overlays":
            refusal = f"{REFUSAL_START}no overlay"
            _mount_overlays(*parts, is_trial=not command)
        else:
            _restrict(parent, *parts, is_trial=not command)
    except (OSError, ValueError, EOFError, TypeError) as error:
        print(f"{refusal}: {error}" if command else error, file=sys.stderr)
        sys.exit(126)
    if not command:  # the plan worked, which was all to be tried
        return
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a command would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606  # the arguments are the command
    except OSError as error:
        print(f"{os.fsdecode(command[0])}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


def _restrict(parent: int, program: bytes, paths: tuple[list[str], list[str], list[str]], *, is_trial: bool) -> None:
    """Restrict this process by Landlock, the filter `program` and the loss of its capabilities.

    A trial only looks if that would work, and prints the version of Landlock.
    """
    # The command ends with its parent; what it started in the background may live on.
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent death signal")
    if os.getppid() != parent:
        raise ProcessLookupError("what started it has ended")
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    # With the flag 1 the call only returns the version of Landlock.
    abi = _check(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1), "Landlock")
    if abi < MIN_ABI:
        raise OSError(f"Landlock is too old (version {abi}, needed is {MIN_ABI}: Linux 6.2)")
    if is_trial:
        print(abi)
        return
    _restrict_files(abi, *paths)
    # Root's own capabilities; no_new_privs keeps an executed program from getting them back.
    version_3, no_capabilities = 0x20080522, bytes(24)
    _check(_libc.capset(struct.pack("Ii", version_3, 0), no_capabilities), "capabilities")
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))  # struct sock_fprog
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0), "the filter of system calls")


def _restrict_files(abi: int, masked: list[str], shown: list[str], writable: list[str]) -> None:
    """Let this process read all but `masked` paths that are not `shown`, and write `writable` ones and some devices."""
    everything = _ALL_UP_TO_TRUNCATE | (_IOCTL_DEV if abi >= 5 else 0)
    attributes = struct.pack("QQQ", everything, _TCP, _ABSTRACT_SOCKETS_AND_SIGNALS)
    known = attributes[: 24 if abi >= 6 else 16 if abi >= 4 else 8]  # older versions know only the first fields
    ruleset = _check(_libc.syscall(_CREATE_RULESET, known, ctypes.c_size_t(len(known)), 0), "a Landlock ruleset")
    _allow(ruleset, "/", _READ_DIR | _EXECUTE)  # the names of masked files can be seen too
    for path in (*_all_but("/", masked), *shown):
        _allow(ruleset, path, _READ_FILE | _READ_DIR | _EXECUTE)
    for path in (*(f"/dev/{device}" for device in _DEVICES), *writable):
        _allow(ruleset, path, everything)
    _check(_libc.syscall(_RESTRICT_SELF, ruleset, 0), "Landlock")


def _all_but(folder: str, masked: list[str]) -> Iterator[str]:
    """Yield the fewest paths below which everything may be read except what is masked."""
    masked_below = [mask for mask in masked if mask == folder or mask.startswith(folder.rstrip("/") + "/")]
    if not masked_below:
        yield folder
    elif folder not in masked_below:
        try:
            with os.scandir(folder) as entries:
                paths = [entry.path for entry in entries]
        except OSError:
            return
        for path in paths:
            yield from _all_but(path, masked_below)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Add a rule for a path; skip what has gone meanwhile, and symlinks, whose targets have rules of their own."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISLNK(mode):
            rule = struct.pack("=Qi", rights if stat.S_ISDIR(mode) else rights & _OF_FILES, descriptor)
            _check(_libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0), f"a Landlock rule for {path}")
    finally:
        os.close(descriptor)


def _mount_overlays(
    overlays: list[tuple[list[str], str, str, str]], binds: list[tuple[int, str]], clock_ns: int, *, is_trial: bool
) -> None:
    """Mount the overlays in a namespace of our own, and open the sources of bubblewrap's binds as they appear there.

    Then wait until file times are later than `clock_ns`, so that a file's time shows if the command changed it.
    """
    _leave_the_namespaces()
    for lower, upper, work, merged in overlays:
        _mount(lower, upper, work, merged)
        if is_trial:  # an overlay that can be read may fail on the first write, which is when the work folder is used
            name = f"{merged}/.{os.urandom(8).hex()}"
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            os.unlink(name)  # noqa: PTH108  # pathlib costs milliseconds here
    for descriptor, source in binds:
        os.dup2(_open_real(source), descriptor)
    while time.clock_gettime_ns(_COARSE_CLOCK) <= clock_ns:
        time.sleep(0.001)


def _mount(lower: list[str], upper: str, work: str, merged: str) -> None:
    """Mount by descriptors: a path could have a colon in it, which separates lower folders, or a symlink by now.

    With `userxattr` the overlay keeps what it has to remember in attributes that an ordinary user may set. It also
    rules out redirects, so the upper folder holds every changed file as a whole.
    """
    target = b"/proc/self/fd/%d" % _open_real(merged)
    layers = [_open_real(path) for path in lower]
    options = f"userxattr,lowerdir={':'.join(f'/proc/self/fd/{number}' for number in layers)}"
    if upper:
        options += f",upperdir=/proc/self/fd/{_open_real(upper)},workdir=/proc/self/fd/{_open_real(work)}"
    done = _libc.mount(b"overlay", target, b"overlay", _NO_SETUID | _NO_DEVICES, options.encode())
    _check(done, f"an overlay over {lower[-1]} cannot be mounted")


def _leave_the_namespaces() -> None:
    """Enter a mount namespace of our own; without the right to that, in a user namespace as the same user there."""
    uid, gid = os.getuid(), os.getgid()
    if _libc.unshare(_NEW_MOUNTS):
        _check(_libc.unshare(_NEW_MOUNTS | _NEW_USERS), "user namespaces are forbidden here")
        for name, text in (
            ("setgroups", b"deny"),  # else the map of groups is refused (user_namespaces(7))
            ("uid_map", b"%d %d 1" % (uid, uid)),
            ("gid_map", b"%d %d 1" % (gid, gid)),
        ):
            with open(f"/proc/self/{name}", "wb", 0) as file:  # noqa: PTH123
                file.write(text)
    _check(_libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None), "the mounts cannot be made private")


def _open_real(path: str) -> int:
    """Open a path for no more than looking at it. Raises `OSError`, also for a symlink on the way."""
    descriptor = os.open(path, _LOOK)
    if os.readlink(f"/proc/self/fd/{descriptor}") != path:  # noqa: PTH115
        os.close(descriptor)
        raise OSError(errno.ELOOP, "a symbolic link is on the way", path)
    return descriptor


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
