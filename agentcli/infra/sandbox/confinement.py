"""Defines the bounds of a command, and the `Confinement` protocol of the backends that hold it to them.

The *roots* are the workspace's folders. A *mask* hides the contents of a file or folder. A *protected* name cannot be
written although the folder around it can.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec import Struct, field

from agentcli.infra.sandbox.git_config import SYSTEM_GIT
from agentcli.infra.sandbox.mounts.mount_points import Note
from agentcli.infra.sandbox.scan import Scan
from agentcli.tools.command import Profile, Reverts


class CommandResources(Struct, frozen=True, kw_only=True):
    """The resources that a session provides for its commands, and for the planning of their confinement.

    Commands reach the hosts that were granted to them through `proxy_socket`, that of a `NetworkProxy`. In `cache`
    package managers and compilers keep their caches instead of in HOME. The folder belongs to this workspace's commands
    alone and outlives them; without it they use the private /tmp. Mount points are noted in `note` before they are
    made, so that they can be removed after a kill. Sharing a `scan` of the roots saves the walk. `git` is asked what a
    configuration names; commands must not be able to replace it.
    """

    proxy_socket: Path | None = None
    cache: Path | None = None
    note: Note | None = None
    scan: Scan = field(default_factory=Scan)
    git: str = SYSTEM_GIT


class Bounds(Struct, frozen=True, kw_only=True):
    """The limits of a command. Every path is absolute, and symlinks in it are resolved.

    `read-only`: nothing but a private /tmp can be written. `workspace-write`: the `roots` too. `danger-full-access`: no
    bounds at all; such a command is given to no backend but `Unconfined`.

    The contents of `masked` files and folders may not be read, except those that are `readable_again`: the longer path
    wins, and of two equal ones the exception. `writable` are further paths that may be written under
    `workspace-write`; they must exist, and they win over what is protected. What is `protected` may not be written,
    made, renamed or removed: names relative to each root, and absolute paths where they lie in one. With `.git` among
    them a repository is read-only as a whole; without it commits work, while what git would execute stays protected.
    """

    profile: Profile
    roots: tuple[Path, ...]
    home: Path
    masked: tuple[Path, ...] = ()
    readable_again: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    protected: tuple[str, ...] = ()
    resources: CommandResources = field(default_factory=CommandResources)


_MAX_PROBE_S = 20.0

# What a confinement is planned from can be gone before it is mounted: another program's socket, a file that is being
# replaced. Then it is planned again, which may take several times where sockets come and go all the time.
MAX_PLANS = 10


class Mount(NamedTuple):
    """One mount of a command: at `path` it sees what is at `source`, or an empty folder of this mode in memory.

    `descriptor` is that of the source, where it was opened before a command could have led the path elsewhere. Through
    a mount that `is_writable` what is on the disk can be changed.
    """

    path: str
    source: str = ""
    descriptor: int | None = None
    is_writable: bool = False
    mode: str = "0000"


class Launch(NamedTuple):
    """A confined command, ready to start: its arguments, the descriptors to pass on, additions to its environment.

    The output begins with `refusal` when the confinement could not be set up, so that nothing ran; it is empty where
    that cannot be known. With `launcher_words` the keeper bounds the command itself (backends/launcher.py), by the plan
    behind the last of `pass_fds`; so many arguments at the beginning would do the same as a program. `reverts` is
    filled when the context is left. `note` is a descriptor of the session's note, by which the keeper cleans up if
    agentcli is killed first. `mounts`, in their order, are rendered into the arguments last.
    """

    argv: list[str]
    pass_fds: tuple[int, ...] = ()
    environment: Mapping[str, str] = {}  # nobody adds to it
    refusal: str = ""
    launcher_words: int | None = None
    reverts: Reverts = Reverts()
    note: int | None = None
    mounts: tuple[Mount, ...] = ()


class Confinement(Protocol):
    """Holds commands to their bounds. One object serves any number of commands at the same time."""

    name: str  # `bubblewrap`, `landlock`, `seatbelt`, `docker` or `none`
    keeps_names: bool  # True if protected names cannot be written; else changes to them have to be reverted
    hides_in: tuple[Profile, ...]  # the profiles in which commands cannot read what is masked inside the roots
    weakness: str  # what commands can do but should not, as part of a sentence; empty where they are held as meant

    @property
    def why(self) -> str:
        """The reason why nothing better is used, for the person; empty for the best there is."""

    def launch(
        self, argv: Sequence[str], *, cwd: Path, bounds: Bounds, pass_fds: Sequence[int] = ()
    ) -> AbstractContextManager[Launch]:
        """Prepare one command. Leave the context after its process has ended, not before: protections depend on it.

        The caller starts `argv` in a session of its own, from a thread that lives as long as the command may (where
        the command is tied to its parent, the kernel ties it to the *thread*), with `pass_fds`, and with `environment`
        over what the command gets.

        Raises `OSError`.
        """

    def limits(self, bounds: Bounds) -> tuple[str, ...]:
        """Return the promises of these bounds that this confinement does not keep here, as sentences for the person."""


@contextmanager
def memory_file(content: bytes) -> Iterator[int]:
    """Yield a descriptor from which only the launched program can read a content."""
    with os.fdopen(os.memfd_create("agentcli"), "w+b", 0) as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()


def run_probe(argv: Sequence[str], pass_fds: Sequence[int]) -> subprocess.CompletedProcess[bytes]:
    """Run a program that shows whether something works here. Raises `OSError` and `SubprocessError`."""
    return subprocess.run(
        argv, pass_fds=pass_fds, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_MAX_PROBE_S
    )


class Unconfined:
    """Implements `Confinement` by doing nothing, where nothing works or the person wants that; `why` is the reason."""

    name = "none"
    weakness = ""
    keeps_names = False
    hides_in: tuple[Profile, ...] = ()

    def __init__(self, why: str = "") -> None:
        self.why = why

    @contextmanager
    def launch(
        self, argv: Sequence[str], *, cwd: Path, bounds: Bounds, pass_fds: Sequence[int] = ()
    ) -> Iterator[Launch]:
        yield Launch(list(argv), tuple(pass_fds))

    def limits(self, bounds: Bounds) -> tuple[str, ...]:
        return ("Commands are not confined: they can do whatever you can.",)
