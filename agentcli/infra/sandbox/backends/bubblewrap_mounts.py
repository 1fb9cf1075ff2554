"""Renders the mounts of a command as bubblewrap's arguments."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentcli.infra.sandbox.confinement import Launch, Mount, memory_file
from agentcli.infra.sandbox.mounts.protect_plan import is_inside


@contextmanager
def rendered(launch: Launch) -> Iterator[Launch]:
    """Put bubblewrap's options and mounts into memory: they are long, and visible to all that list processes inside."""
    if not launch.mounts:
        yield launch
        return
    end = launch.argv.index("--")
    words = [*launch.argv[1:end], *(word for mount in launch.mounts for word in _arguments(mount))]
    with memory_file(os.fsencode("".join(f"{word}\0" for word in words))) as file:
        argv = [launch.argv[0], "--args", str(file), *launch.argv[end:]]
        yield launch._replace(argv=argv, pass_fds=(file, *launch.pass_fds), mounts=())


def _arguments(mount: Mount) -> tuple[str, ...]:
    if not mount.source:
        return ("--perms", mount.mode, "--tmpfs", mount.path)
    option = "--bind" if mount.is_writable else "--ro-bind"
    if mount.descriptor is None:
        return (option, mount.source, mount.path)
    return (f"{option}-fd", str(mount.descriptor), mount.path)


def writable_folders(mounts: Iterable[Mount]) -> list[str]:
    """The folders in which a command can change the disk; none of them is inside another."""
    paths = sorted({mount.path for mount in mounts if mount.is_writable and Path(mount.path).is_dir()})
    return [path for path in paths if not any(is_inside(path, other) for other in paths if other != path)]
