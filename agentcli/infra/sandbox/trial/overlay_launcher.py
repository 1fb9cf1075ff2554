"""Runs as a program: mounts overlays nobody else sees, then becomes the program that uses them.

Run by `python -I -S`, so it needs the standard library alone. Arguments: the overlays as JSON, a list of
`[lower, upper, work, merged]`, and a bubblewrap with its arguments; without one it only tries whether the mounts work.
The mounts are in a namespace of its own: they end with the last process in it, however that ends.

A bind whose source is inside a `merged` folder is opened here and given to bubblewrap as a descriptor, after looking
that no symlink was on the way. It never becomes a command whose overlays are not in place: it ends with 126 and a line
that says why. Numbers: Linux, include/uapi/linux/mount.h and sched.h; options: Documentation/filesystems/overlayfs.rst.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

_NEW_MOUNTS, _NEW_USERS = 0x00020000, 0x10000000
_NO_SETUID, _NO_DEVICES, _RECURSIVE, _PRIVATE = 1 << 1, 1 << 2, 1 << 14, 1 << 18
_LOOK = os.O_RDONLY | getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC

Layer = Sequence[str]


def main() -> None:
    layers: list[Layer] = json.loads(sys.argv[1])
    command = sys.argv[2:]
    try:
        _leave_the_namespaces()
        for layer in layers:
            _mount_overlay(*layer)
        merged = [layer[3] for layer in layers]
        if command:
            command = _with_descriptors(command, merged)
        else:
            _try_to_write(merged)
    except OSError as error:
        print(f"agentcli: the command was not started, because of its overlay: {error}", file=sys.stderr)
        sys.exit(126)
    if command:
        os.execv(command[0], command)  # noqa: S606  # without a shell, as meant


def _leave_the_namespaces() -> None:
    """Get mounts of our own; where the right to that is missing, in a user namespace, as the same user there."""
    uid, gid = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS):
        _check(libc.unshare(_NEW_MOUNTS | _NEW_USERS), "user namespaces are forbidden here")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path(f"/proc/self/{name}").write_text(text)
    _check(libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None), "the mounts cannot be made private")


def _mount_overlay(lower: str, upper: str, work: str, merged: str) -> None:
    """Mount by descriptors: a path could have a colon in it, which separates lower folders, or a symlink by now.

    `userxattr` keeps what the overlay has to remember in attributes that an ordinary user may set, and rules out
    redirects, so the upper folder holds every changed file as a whole.
    """
    names = {"lowerdir": lower, "upperdir": upper, "workdir": work}
    opened = {name: _open_real(path) for name, path in names.items()}
    target = _open_real(merged)
    options = ",".join([*(f"{name}=/proc/self/fd/{number}" for name, number in opened.items()), "userxattr"])
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.mount(b"overlay", b"/proc/self/fd/%d" % target, b"overlay", _NO_SETUID | _NO_DEVICES, options.encode())
    _check(done, f"an overlay over {lower} cannot be mounted")
    for number in (*opened.values(), target):
        os.close(number)


def _with_descriptors(command: list[str], merged: Sequence[str]) -> list[str]:
    """The arguments in which what is bound from an overlay is a descriptor, that bubblewrap closes."""
    end = command.index("--")
    for position in range(1, end - 1):
        source = command[position + 1]
        if command[position] == "--bind" and any(source == one or source.startswith(f"{one}/") for one in merged):
            number = _open_real(source)
            os.set_inheritable(number, True)
            command[position : position + 2] = ["--bind-fd", str(number)]
    return command


def _try_to_write(merged: Sequence[str]) -> None:
    """A mount that works for reading may still refuse to write: the work folder is used only then."""
    for folder in merged:
        name = f"{folder}/.{os.urandom(8).hex()}"
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        os.unlink(name)  # noqa: PTH108  # pathlib.Path would do the same


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
