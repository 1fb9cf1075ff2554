"""Defines the bounds of a command, the `Confinement` protocol of the backends that hold it to them, and what they plan.

The *roots* are the workspace's folders. A *mask* hides the contents of a file or folder. A *protected* name cannot be
written although the folder around it can.

A cover is mounted over a secret file. It is as long and as old as the file, and nobody can read it. Git looks at the
length and the time of a file before it reads it (`core.checkStat`, which is `minimal` for commands), so for git a
secret file in the repository, such as one of its tests, is unchanged, and everything else can be committed.
"""

import contextlib
import os
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, Self

import msgspec

from agentcli.infra.sandbox.git_config import SYSTEM_GIT
from agentcli.infra.sandbox.mount_points import Note, is_mount_point, real_path
from agentcli.infra.sandbox.scan import Scan
from agentcli.tools.command import Profile, Reverts


class CommandResources(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that a session provides for its commands, and for the planning of their confinement.

    Commands reach the hosts that were granted to them through `proxy_socket`, that of a `NetworkProxy`, and the `ports`
    of this machine, such as `127.0.0.1:8000`, as if they were open in their own network. In `cache`
    package managers and compilers keep their caches instead of in HOME. The folder belongs to this workspace's commands
    alone and outlives them; without it they use the private /tmp. Mount points are noted in `note` before they are
    made, so that they can be removed after a kill. Sharing a `scan` of the roots saves the walk. `git` is asked what a
    configuration names; commands must not be able to replace it.
    """

    proxy_socket: Path | None = None
    ports: tuple[str, ...] = ()
    cache: Path | None = None
    note: Note | None = None
    scan: Scan = msgspec.field(default_factory=Scan)
    git: str = SYSTEM_GIT


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
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
    resources: CommandResources = msgspec.field(default_factory=CommandResources)


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

    Who starts it may append arguments to `argv`, and put further descriptors before those of `pass_fds`.
    The output begins with `refusal` when the confinement could not be set up, so that nothing ran; it is empty where
    that cannot be known. With `launcher_words` the keeper bounds the command itself (backends/launcher.py), by the plan
    behind the last of `pass_fds`, and leaves out so many arguments at the beginning: they would start the launcher as a
    program. `reverts` is filled when the context is left. `note` is a descriptor of the session's note, by which the
    keeper cleans up if agentcli is killed first. `mounts`, in their order, become arguments at last (`rendered`).
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

    def launch(self, argv: Sequence[str], *, cwd: Path, bounds: Bounds) -> contextlib.AbstractContextManager[Launch]:
        """Prepare one command. Leave the context after its process has ended, not before: protections depend on it.

        The caller starts `argv` in a session of its own, from a thread that lives as long as the command may (where
        the command is tied to its parent, the kernel ties it to the *thread*), with `pass_fds`, and with `environment`
        over what the command gets.

        Raises `OSError`.
        """

    def limits(self, bounds: Bounds) -> tuple[str, ...]:
        """Return the promises of these bounds that this confinement does not keep here, as sentences for the person."""


@contextlib.contextmanager
def memory_file(content: bytes) -> Iterator[int]:
    """Yield a descriptor from which only the launched program can read a content."""
    with os.fdopen(os.memfd_create("agentcli"), "w+b", 0) as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()


def run_probe(argv: Sequence[str], pass_fds: Sequence[int]) -> tuple[bytes, str]:
    """Run a program that shows whether something works here. Raises `OSError` and `SubprocessError`.

    Return its output, and its error message, which is empty if it worked.
    """
    done = subprocess.run(
        argv, pass_fds=pass_fds, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_MAX_PROBE_S
    )
    message = done.stderr.decode(errors="replace").strip() or f"it ended with {done.returncode}"
    return done.stdout, message if done.returncode else ""


class FullConfinement:
    """The attributes of a `Confinement` that can hold commands to all bounds."""

    weakness = ""
    keeps_names = True
    hides_in: tuple[Profile, ...] = ("read-only", "workspace-write")


class Unconfined:
    """Implements `Confinement` by doing nothing, where nothing works or the person wants that; `why` is the reason."""

    name = "none"
    weakness = ""
    keeps_names = False
    hides_in: tuple[Profile, ...] = ()

    def __init__(self, why: str = "") -> None:
        self.why = why

    @contextlib.contextmanager
    def launch(self, argv: Sequence[str], *, cwd: Path, bounds: Bounds) -> Iterator[Launch]:
        yield Launch(list(argv))

    def limits(self, bounds: Bounds) -> tuple[str, ...]:
        return ("Commands are not confined: they can do whatever you can.",)


_PRIVATE = ("/run", "/tmp", "/var/tmp")  # noqa: S108  # where they are, not what is in them
NOTHING = "/dev/null"  # a device, on a mount without devices, so it cannot be read either
_KEPT_FOR_S = 24 * 3_600  # a cover that is mounted stays mounted when its name is removed


class RealPath(NamedTuple):
    """Something that exists, by its real path."""

    path: str
    is_folder: bool


class HideStep(NamedTuple):
    """`hide` a file, `hide folder` entirely, `hide around` what further steps show in it, `show` again."""

    action: Literal["hide", "hide folder", "hide around", "show"]
    path: str


def find_places(paths: Iterable[Path | str]) -> list[RealPath]:
    """Return the `paths` that exist and can be reached, with their symlinks resolved."""
    return [place for path in paths if (place := find_place(str(path))) is not None]


def find_place(path: str) -> RealPath | None:
    """Resolve a path with two system calls, where `os.path.realpath` needs one for each part of it."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        return RealPath(real_path(descriptor), stat.S_ISDIR(os.fstat(descriptor).st_mode))
    finally:
        os.close(descriptor)


def is_real(path: str) -> bool:
    """Return True if something is at this very path, with no symlink on the way."""
    place = find_place(path)
    return place is not None and place.path == path


def is_inside(path: str, folder: str) -> bool:
    """Return True if a normal absolute path is `folder` or leads below it."""
    return path == folder or path.startswith(folder if folder.endswith("/") else folder + "/")


def kind_of(path: str) -> Literal["nothing", "link", "folder", "file"]:
    """Return the kind of what is there; devices, pipes and sockets count as files."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "nothing"
    if stat.S_ISLNK(mode):
        return "link"
    return "folder" if stat.S_ISDIR(mode) else "file"


def plan_hiding(masked: Iterable[RealPath], shown: Iterable[RealPath], reachable: Iterable[str] = ()) -> list[HideStep]:
    """Plan what to hide and what to show: the longest path above a file wins.

    `reachable` folders are mounted later, so no folder around them may be hidden entirely.
    """
    is_hidden = dict.fromkeys(masked, True) | dict.fromkeys(shown, False)
    steps: list[tuple[RealPath, bool]] = []  # outer paths first; True if the path is to be hidden
    for place in sorted(is_hidden, key=lambda place: (place.path.count("/"), place.path)):
        around = [hidden for outer, hidden in steps if is_inside(place.path, outer.path)]
        if is_hidden[place] != (around[-1] if around else False):  # else the innermost step around it does that already
            steps.append((place, is_hidden[place]))
    exceptions = [*(place.path for place, hidden in steps if not hidden), *reachable]
    return [HideStep(_how_to_hide(place, exceptions) if hidden else "show", place.path) for place, hidden in steps]


def _how_to_hide(place: RealPath, exceptions: Sequence[str]) -> Literal["hide", "hide folder", "hide around"]:
    shows_something = any(is_inside(path, place.path) for path in exceptions)
    return ("hide around" if shows_something else "hide folder") if place.is_folder else "hide"


def listening_sockets() -> list[str]:
    """Return the paths of this network namespace's unix sockets (proc_net(5)).

    Commands could connect to them although everything around them is read-only.
    """
    try:
        with open("/proc/net/unix", "rb") as file:  # noqa: PTH123  # pathlib costs as much again as reading it
            lines = file.read().decode(errors="surrogateescape").splitlines()
    except OSError:
        return []
    # A line ends with the path: `0000000000000000: 00000002 00000000 00010000 0001 01 20713 /run/systemd/private`.
    return sorted(filter(_is_socket, {line[line.index(" /") + 1 :] for line in lines if " /" in line}))


def _is_socket(path: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116  # a Path takes longer
    return False


@cache
def private_folders() -> tuple[str, ...]:
    """Return the real paths of the folders that every command gets empty and for itself."""
    return tuple(dict.fromkeys(place.path for place in find_places(_PRIVATE) if place.is_folder))


def is_private(path: str) -> bool:
    """Return True if a command sees something of its own there instead of what is on the disk."""
    return any(is_inside(path, folder) for folder in (*private_folders(), "/dev", "/proc"))


class SecretCovers:
    """Makes covers: files with nothing in them, of no size on the disk, in a folder that all sessions may share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                if time.time() - path.lstat().st_ctime > _KEPT_FOR_S:
                    path.unlink()

    def over(self, path: str) -> str:
        """Return the path of a cover for a file; `NOTHING` for what is no file, or if the disk has no room."""
        with contextlib.suppress(OSError, OverflowError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                return self._cover_like(status)
        return NOTHING

    def _cover_like(self, status: os.stat_result) -> str:
        mode = status.st_mode & stat.S_IXUSR  # the only part of a mode that git compares
        path = self._folder / f"{status.st_size}-{status.st_mtime_ns}-{mode}"
        if not path.exists():
            self._folder.mkdir(mode=0o700, exist_ok=True)
            new = path.with_name(f".{os.urandom(6).hex()}")
            with new.open("xb") as file:
                file.truncate(status.st_size)
                os.utime(file.fileno(), ns=(status.st_mtime_ns, status.st_mtime_ns))
                os.fchmod(file.fileno(), mode)
            new.rename(path)
        return str(path)


class Protection(msgspec.Struct, kw_only=True):
    """The paths that are kept from being written: absolute ones, none twice in a list.

    `writable` folders are mounted on themselves, because a mount point cannot be renamed, removed or replaced; the
    others lie inside these. What is missing becomes read-only too, once there is something to mount on: a folder, or a
    file with the content that means the same as no file. `problems` are sentences for the person about names that
    could not be protected, or only by refusing more.
    """

    writable: list[str] = msgspec.field(default_factory=list)
    read_only: list[str] = msgspec.field(default_factory=list)
    missing_folders: list[str] = msgspec.field(default_factory=list)
    missing_files: dict[str, bytes] = msgspec.field(default_factory=dict)
    problems: list[str] = msgspec.field(default_factory=list)

    def protect(self, folder: str, name: str) -> None:
        """Let `name`, relative to a folder, not be written, made or replaced, nor the folders on the way renamed."""
        parts = [part for part in name.split("/") if part not in {"", "."}]
        path = f"{folder}/{parts[0]}"
        for part in parts[1:]:
            if kind_of(path) != "folder":
                break
            _add(self.writable, path)
            path = f"{path}/{part}"
        match kind_of(path):
            case "link":
                self.problems.append(f"{path} is a symbolic link, which a command can replace.")
                target = os.path.realpath(path)
                if is_inside(target, folder) and target != folder and kind_of(target) != "nothing":
                    _add(self.read_only, target)
            case kind if kind == "nothing" or is_mount_point(path):  # another command's, which goes when that ends
                _add(self.missing_folders, path)
            case _:
                _add(self.read_only, path)

    def add(self, other: Self) -> None:
        for name in ("writable", "read_only", "missing_folders", "problems"):
            for path in getattr(other, name):
                _add(getattr(self, name), path)
        self.missing_files |= other.missing_files


def _add(paths: list[str], path: str) -> None:
    if path not in paths:
        paths.append(path)
