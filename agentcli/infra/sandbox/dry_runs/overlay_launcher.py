"""Mounts overlays nobody else sees, then becomes the bubblewrap that uses them.

The keeper imports it in a process that is to become a command; run as a program it only tries whether the mounts work.
It needs the standard library alone. The mounts are in a namespace of its own: they end with the last process in it,
however that ends. A bind whose source is inside a merged folder is opened here, in place of the descriptor of that
number which bubblewrap binds, after looking that no symlink was on the way. It never becomes a command whose overlays
are not in place: it ends with 126 and a line that says why.

The plan, in Python's marshal format: for each overlay its lower folders from the topmost to the lowest, the upper and
the work folder (empty where it cannot be written) and the merged one; numbers of descriptors, with the path that each
is to lead to; a time that has to be over before the command starts, in nanoseconds.
Numbers: Linux, include/uapi/linux/mount.h and sched.h; options: Documentation/filesystems/overlayfs.rst.
"""

from __future__ import annotations

import ctypes
import errno
import marshal
import os
import sys
import time

REFUSAL = "bwrap: "  # what bubblewrap's own complaints begin with: to who waits it is the same

_NEW_MOUNTS, _NEW_USERS = 0x00020000, 0x10000000
_NO_SETUID, _NO_DEVICES, _RECURSIVE, _PRIVATE = 1 << 1, 1 << 2, 1 << 14, 1 << 18
_COARSE_CLOCK = 5  # CLOCK_REALTIME_COARSE: what file times are taken from
_LOOK = os.O_RDONLY | getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        overlays, _, _ = marshal.load(file)  # noqa: S302  # agentcli's own
    try:
        _leave_the_namespaces()
        for overlay in overlays:
            _mount(*overlay)
            _try_to_write(overlay[3])
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(126)


def bound_and_become(parent: int, plan: int, command: list[bytes], environment: dict[bytes, bytes]) -> None:
    """Become `command`, a bubblewrap that ends with its parent by itself; `plan` is a descriptor."""
    try:
        with os.fdopen(plan, "rb") as file:
            overlays, binds, clock = marshal.load(file)  # noqa: S302  # agentcli's own
        _leave_the_namespaces()
        for overlay in overlays:
            _mount(*overlay)
        for number, source in binds:
            opened = _open_real(source)
            os.dup2(opened, number)
            os.close(opened)
        while time.clock_gettime_ns(_COARSE_CLOCK) <= clock:
            time.sleep(0.001)
    except OSError as error:
        print(f"{REFUSAL}no overlay: {error}", file=sys.stderr)
        sys.exit(126)
    os.execve(command[0], command, environment)  # noqa: S606  # without a shell, as meant


def _mount(lower: list[str], upper: str, work: str, merged: str) -> None:
    """Mount by descriptors: a path could have a colon in it, which separates lower folders, or a symlink by now.

    `userxattr` keeps what the overlay has to remember in attributes that an ordinary user may set, and rules out
    redirects, so the upper folder holds every changed file as a whole.
    """
    target = _open_real(merged)
    layers = [_open_real(path) for path in lower]
    options = f"userxattr,lowerdir={':'.join(f'/proc/self/fd/{number}' for number in layers)}"
    above = {"upperdir": _open_real(upper), "workdir": _open_real(work)} if upper else {}
    options += "".join(f",{name}=/proc/self/fd/{number}" for name, number in above.items())
    flags = _NO_SETUID | _NO_DEVICES
    done = _libc.mount(b"overlay", b"/proc/self/fd/%d" % target, b"overlay", flags, options.encode())
    _check(done, f"an overlay over {lower[-1]} cannot be mounted")
    for number in (*layers, *above.values(), target):
        os.close(number)


def _leave_the_namespaces() -> None:
    """Get mounts of our own; where the right to that is missing, in a user namespace, as the same user there."""
    uid, gid = os.getuid(), os.getgid()
    if _libc.unshare(_NEW_MOUNTS):
        _check(_libc.unshare(_NEW_MOUNTS | _NEW_USERS), "user namespaces are forbidden here")
        for name, text in (
            ("setgroups", b"deny"),
            ("uid_map", b"%d %d 1" % (uid, uid)),
            ("gid_map", b"%d %d 1" % (gid, gid)),
        ):
            file = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
            os.write(file, text)
            os.close(file)
    _check(_libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None), "the mounts cannot be made private")


def _try_to_write(folder: str) -> None:
    """A mount that works for reading may still refuse to write: the work folder is used only then."""
    name = f"{folder}/.{os.urandom(8).hex()}"
    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    os.unlink(name)  # noqa: PTH108  # pathlib costs milliseconds here


def _open_real(path: str) -> int:
    descriptor = os.open(path, _LOOK)
    if os.readlink(f"/proc/self/fd/{descriptor}") != path:  # noqa: PTH115
        os.close(descriptor)
        raise OSError(errno.ELOOP, "a symbolic link is on the way", path)
    return descriptor


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what} ({os.strerror(number)})")


if __name__ == "__main__":
    main()
