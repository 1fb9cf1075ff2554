"""Reads the mounts out of the arguments that `bubblewrap` and `bubblewrap_layout` write, and changes some.

What decides whether something can be written is what is really mounted, whichever setting it comes from. So whoever
needs to know where a command can write asks here. An option that is not known here is an error, never passed over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from agentcli.infra.sandbox.confinement import Launch
from agentcli.infra.sandbox.mounts.protect_plan import is_inside

# How many words follow an option.
_WORDS = {
    "--die-with-parent": 0,
    "--new-session": 0,
    "--unshare-all": 0,
    "--unshare-ipc": 0,
    "--unshare-pid": 0,
    "--unshare-net": 0,
    "--unshare-uts": 0,
    "--unshare-user": 0,
    "--unshare-cgroup-try": 0,
    "--cap-drop": 1,
    "--perms": 1,
    "--tmpfs": 1,
    "--dev": 1,
    "--proc": 1,
    "--chdir": 1,
    "--seccomp": 1,
    "--bind": 2,
    "--bind-fd": 2,
    "--ro-bind": 2,
    "--ro-bind-fd": 2,
}
_WRITABLE = ("--bind", "--bind-fd")


class Mount(NamedTuple):
    """One mount, in the order of the arguments. `source` is a path or a descriptor's number; empty for a tmpfs."""

    option: str
    source: str
    path: str

    @property
    def is_writable(self) -> bool:
        """True if what is on the disk can be changed through it."""
        return self.option in _WRITABLE

    @property
    def hides(self) -> bool:
        return self.option == "--tmpfs" or (self.option == "--ro-bind" and self.source != self.path)


def mounts_of(argv: Sequence[str]) -> list[Mount]:
    """The binds and the file systems in memory. Raises `ValueError` for arguments that are not understood."""
    found = []
    for words in _options(argv):
        match words:
            case ["--tmpfs", path]:
                found.append(Mount("--tmpfs", "", path))
            case [option, source, path]:
                found.append(Mount(option, source, path))
            case _:
                pass
    return found


def change_mounts(argv: Sequence[str], change: Callable[[Mount], Mount], hidden: str) -> list[str]:
    """The arguments with every bind changed, and at last an empty folder that nobody may enter over `hidden`.

    Raises `ValueError` as `mounts_of` does.
    """
    words_of_all = list(_options(argv))
    changed = [argv[0]]
    for words in words_of_all:
        if words[0] == "--chdir":
            changed += ("--perms", "0000", "--tmpfs", hidden)
        changed += change(Mount(*words)) if len(words) == 3 else words
    return [*changed, *argv[1 + sum(map(len, words_of_all)) :]]


@contextmanager
def options_in_a_file(launch: Launch) -> Iterator[Launch]:
    """Move bubblewrap's options into memory: they are long, and visible to anyone who lists processes inside."""
    program, *rest = launch.argv
    if Path(program).name != "bwrap" or "--" not in rest:
        yield launch
        return
    end = rest.index("--")
    file = os.memfd_create("options")
    try:
        os.pwrite(file, b"".join(os.fsencode(word) + b"\0" for word in rest[:end]), 0)
        yield launch._replace(argv=[program, "--args", str(file), *rest[end:]], pass_fds=(*launch.pass_fds, file))
    finally:
        os.close(file)


def writable_folders(mounts: Iterable[Mount]) -> list[str]:
    """The folders in which a command can change the disk; none of them is inside another."""
    paths = sorted({mount.path for mount in mounts if mount.is_writable and Path(mount.path).is_dir()})
    return [path for path in paths if not any(is_inside(path, other) for other in paths if other != path)]


def _options(argv: Sequence[str]) -> Iterator[list[str]]:
    position = 1
    while position < len(argv) and argv[position] != "--":
        count = _WORDS.get(argv[position])
        if count is None or position + count >= len(argv):
            raise ValueError(f"bubblewrap's option {argv[position]} is not known here")
        yield list(argv[position : position + count + 1])
        position += count + 1
