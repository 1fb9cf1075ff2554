"""Defines the bounds of a command, the `Confinement` protocol of the backends that enforce them, and shared planning.

The *roots* are the workspace's folders. A *mask* hides the contents of a file or folder. A *protected* name cannot be
written although the folder around it can.

A *cover* is mounted over a secret file. It has the file's size and time, and nobody can read it. Git compares size and
time before it reads a file (`core.checkStat`, which is `minimal` for commands). For git, a covered file that is
committed, such as sample keys of tests, is therefore unchanged, and everything else can be committed.
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

from agentcli.infra.sandbox.git_config import SYSTEM_GIT, read_small_file
from agentcli.infra.sandbox.mount_points import MountPointList, is_mount_point, real_path
from agentcli.infra.sandbox.scan import Scan
from agentcli.tools.command import Profile, Reverts


class CommandResources(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that a session provides for its commands, and for planning their confinement.

    Package managers and compilers use `cache` instead of HOME. That folder belongs only to this workspace's commands
    and outlives them; without it they use the private /tmp.
    """

    proxy_socket: Path | None = None  # of the `NetworkProxy` through which commands reach the granted hosts
    ports: tuple[str, ...] = ()  # of this machine, such as 127.0.0.1:8000, which commands reach as if they were theirs
    cache: Path | None = None
    mount_point_list: MountPointList | None = None  # by which mount points are removed after a kill
    scan: Scan = msgspec.field(default_factory=Scan)  # of the roots; sharing it saves another walk
    git: str = SYSTEM_GIT  # reads configurations; commands must not be able to replace this program


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a command. Every path is absolute. Symlinks in `masked` are followed, those in grants are not.

    `read-only`: only a private /tmp can be written. `workspace-write`: the `roots` as well. `danger-full-access`: no
    bounds at all; only the backend `Unconfined` accepts such a command.

    `masked` files and folders cannot be read, except for paths in `readable_again`: the longer path wins, and the
    exception if both are equal. `writable` paths can also be written under `workspace-write`; they must exist, and they
    win over protection. `protected` paths cannot be written, created, renamed or removed: names relative to each root,
    and absolute paths inside the roots. Commits work, but files that git would execute are protected as well.
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

# Paths in a plan may disappear before they are mounted: another program's socket, a file that is being replaced. The
# confinement is then planned again, which may happen several times if sockets come and go all the time.
MAX_PLANS = 10


class Mount(NamedTuple):
    """One mount of a command: `path` shows the file or folder at `source`, or an empty folder in memory."""

    path: str
    source: str = ""  # empty: a folder in memory
    descriptor: int | None = None  # of the source, opened before a command could make the path lead elsewhere
    is_writable: bool = False  # the command can change the source on the disk
    mode: str = "0000"  # of the folder in memory


class Launch(NamedTuple):
    """A confined command, ready to start.

    The caller may append arguments to `argv`, and put further descriptors before those of `pass_fds`.

    With `launcher_words`, the keeper confines the command itself (backends/launcher.py), by the plan in the last
    descriptor of `pass_fds`. It skips that many arguments at the start, which would run the launcher as a program.
    """

    argv: list[str]
    pass_fds: tuple[int, ...] = ()  # descriptors that the command inherits
    environment: Mapping[str, str] = {}  # variables to add to the command's environment; never modified
    setup_error_prefix: str = ""  # begins the output if confining failed and nothing ran; "" if no output shows it
    launcher_words: int | None = None
    reverts: Reverts = Reverts()  # filled when the context is left
    cleanup_note: int | None = None  # a descriptor of the session's `CleanupNote`, which the keeper uses after a kill
    mounts: tuple[Mount, ...] = ()  # in this order; `render_mounts` turns them into arguments


class Confinement(Protocol):
    """Enforces the bounds of commands. One object serves any number of commands at the same time."""

    name: str  # `bubblewrap`, `landlock`, `seatbelt`, `docker` or `none`
    enforces_protection: bool = True  # protected names cannot be written; otherwise changes to them must be reverted
    # The profiles in which commands cannot read masked files inside the roots.
    hides_in: tuple[Profile, ...] = ("read-only", "workspace-write")
    weakness: str = ""  # things that commands can do but should not, as part of a sentence
    problem: str = ""  # the reason for the person why a better backend, or this one, does not run

    def launch(self, argv: Sequence[str], *, cwd: Path, bounds: Bounds) -> contextlib.AbstractContextManager[Launch]:
        """Prepare one command. Leave the context only after its process has ended: protections depend on it.

        The caller starts `argv` in a session of its own, with `pass_fds`, and with `environment` added. It starts it
        from a thread that lives at least as long as the command: if the command is to die with its parent, the kernel
        takes the *thread* for the parent. Raises `OSError`.
        """

    def limits(self, bounds: Bounds) -> tuple[str, ...]:
        """Return sentences for the person on what `weakness` does not say: gaps in these bounds on this machine."""
        return ()


@contextlib.contextmanager
def memory_file(content: bytes) -> Iterator[int]:
    """Yield a descriptor of a file in memory, which only the launched program can read."""
    with os.fdopen(os.memfd_create("agentcli"), "w+b", 0) as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()


def probe(argv: Sequence[str], pass_fds: Sequence[int]) -> tuple[bytes, str]:
    """Run a program as a test; return its output, and an error message or "". Raises `OSError`, `SubprocessError`."""
    done = subprocess.run(
        argv, pass_fds=pass_fds, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_MAX_PROBE_S
    )
    message = done.stderr.decode(errors="replace").strip() or f"it ended with {done.returncode}"
    return done.stdout, message if done.returncode else ""


class Unconfined(Confinement):
    """Confines nothing: no backend works, for which `problem` is the reason, or by choice."""

    name = "none"
    enforces_protection = False
    hides_in = ()

    def __init__(self, problem: str = "") -> None:
        self.problem = problem

    @contextlib.contextmanager
    def launch(self, argv: Sequence[str], *, cwd: Path, bounds: Bounds) -> Iterator[Launch]:
        yield Launch(list(argv))


_PRIVATE = ("/run", "/tmp", "/var/tmp")  # noqa: S108  # only the paths; their contents are not used
NOTHING = "/dev/null"  # a cover without a size; mounted without device access, it cannot be read either
_KEPT_FOR_S = 24 * 3_600  # after that a cover's file is removed, which does not affect commands that have it mounted


class RealPath(NamedTuple):
    """An existing file or folder, by its real path."""

    path: str
    is_folder: bool


class HideStep(NamedTuple):
    """A step of hiding: `hide` a file, `hide folder` entirely, `hide around` paths in it that are shown, or `show`."""

    action: Literal["hide", "hide folder", "hide around", "show"]
    path: str


def resolve_existing(paths: Iterable[Path | str]) -> list[RealPath]:
    """Return the `paths` that exist and can be reached, with their symlinks resolved."""
    return [resolved for path in paths if (resolved := resolve_path(str(path))) is not None]


def resolve_path(path: str) -> RealPath | None:
    """Resolve a path; return None if nothing can be reached there. `os.path.realpath` needs far more system calls."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        return RealPath(real_path(descriptor), stat.S_ISDIR(os.fstat(descriptor).st_mode))
    finally:
        os.close(descriptor)


def is_real(path: str) -> bool:
    """Return True if this path exists, and no part of it is a symlink."""
    resolved = resolve_path(path)
    return resolved is not None and resolved.path == path


def is_inside(path: str, folder: str) -> bool:
    """Return True if a normalized absolute path is `folder` or inside it."""
    return path == folder or path.startswith(folder if folder.endswith("/") else folder + "/")


def kind_of(path: str) -> Literal["nothing", "symlink", "folder", "file"]:
    """Return the kind of the entry at a path, without following a link; devices, pipes and sockets are files."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "nothing"
    if stat.S_ISLNK(mode):
        return "symlink"
    return "folder" if stat.S_ISDIR(mode) else "file"


def plan_hiding(masked: Iterable[RealPath], shown: Iterable[RealPath], reachable: Iterable[str] = ()) -> list[HideStep]:
    """Plan the steps that hide and show paths: for each file, the longest path that contains it wins.

    `reachable` folders are mounted later, so no folder around them may be hidden entirely.
    """
    hides = dict.fromkeys(masked, True) | dict.fromkeys(shown, False)
    needed: list[RealPath] = []  # outer paths first
    for each in sorted(hides, key=lambda each: (each.path.count("/"), each.path)):
        is_hidden_around = next((hides[outer] for outer in reversed(needed) if is_inside(each.path, outer.path)), False)
        if hides[each] != is_hidden_around:  # otherwise the step for the innermost path around it is enough
            needed.append(each)
    not_hidden = [*(each.path for each in needed if not hides[each]), *reachable]

    def action(each: RealPath) -> Literal["hide", "hide folder", "hide around", "show"]:
        if not hides[each]:
            return "show"
        if not each.is_folder:
            return "hide"
        return "hide around" if any(is_inside(path, each.path) for path in not_hidden) else "hide folder"

    return [HideStep(action(each), each.path) for each in needed]


def listening_sockets() -> list[str]:
    """Return the paths of the host's unix sockets, to which commands could connect even on a read-only mount."""
    try:
        with open("/proc/net/unix", "rb") as file:  # noqa: PTH123  # proc_net(5); pathlib would double the time
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
    """Return the real paths of the folders that each command sees empty, with its own files in memory."""
    return tuple(dict.fromkeys(each.path for each in resolve_existing(_PRIVATE) if each.is_folder))


def is_private(path: str) -> bool:
    """Return True if a command sees its own version of this path instead of the one on the disk."""
    return any(is_inside(path, folder) for folder in (*private_folders(), "/dev", "/proc"))


class SecretCovers:
    """Creates covers: sparse files, which take no room on the disk, in a folder that all sessions may share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                if time.time() - path.lstat().st_ctime > _KEPT_FOR_S:
                    path.unlink()

    def over(self, path: str) -> str:
        """Return the path of a cover for a file; `NOTHING` if `path` is not a file, or if the disk is full."""
        with contextlib.suppress(OSError, OverflowError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                return self._cover_like(status)
        return NOTHING

    def _cover_like(self, status: os.stat_result) -> str:
        """Return the path of a cover that git takes for a file with this status."""
        mode = status.st_mode & stat.S_IXUSR  # the only bit of the mode that git compares
        path = self._folder / f"{status.st_size}-{status.st_mtime_ns}-{mode}"
        if not path.exists():
            self._folder.mkdir(mode=0o700, exist_ok=True)
            new = path.with_name(f".{os.urandom(6).hex()}")  # other sessions may create the same cover
            with new.open("xb") as file:
                file.truncate(status.st_size)
                os.utime(file.fileno(), ns=(status.st_mtime_ns, status.st_mtime_ns))
                os.fchmod(file.fileno(), mode)
            new.rename(path)
        return str(path)


class Protection(msgspec.Struct, kw_only=True):
    """A plan of the paths that commands must not write: absolute, without duplicates in a list.

    `writable` folders contain the other paths. They are mounted on themselves, because a mount point cannot be renamed,
    removed or replaced. Missing paths become read-only too, after a mount point is created for them: a folder, or a
    file whose content means the same as no file. `problems` are sentences for the person about names that could not be
    protected, or only by denying more than necessary.
    """

    writable: list[str] = msgspec.field(default_factory=list)
    read_only: list[str] = msgspec.field(default_factory=list)
    missing_folders: list[str] = msgspec.field(default_factory=list)
    missing_files: dict[str, bytes] = msgspec.field(default_factory=dict)
    problems: list[str] = msgspec.field(default_factory=list)

    def protect(self, folder: str, name: str, placeholder: bytes | None = None) -> None:
        """Protect `name`, relative to a folder, from being written, created or replaced; its parents from renaming.

        A missing one becomes a file with the content `placeholder`, which must mean the same as no file; without a
        placeholder it becomes a folder.
        """
        *outer, last = [part for part in name.split("/") if part not in {"", "."}]
        path = folder
        for part in outer:
            path = f"{path}/{part}"
            if kind_of(path) != "folder":
                self._protect_entry(path, folder, None)  # then nothing can be created below it, including `name`
                return
            _append_once(self.writable, path)
        self._protect_entry(f"{path}/{last}", folder, placeholder)

    def _protect_entry(self, path: str, folder: str, placeholder: bytes | None) -> None:
        """Add a path to the list for its kind. Of a symlink only the target in `folder` can be protected."""
        kind = kind_of(path)
        is_placeholder = (
            kind == "file"
            and placeholder is not None
            and read_small_file(path).encode(errors="surrogateescape") == placeholder
        )
        if kind == "symlink":
            self.problems.append(f"{path} is a symbolic link, which a command can replace.")
            target = os.path.realpath(path)
            if is_inside(target, folder) and target != folder and kind_of(target) != "nothing":
                _append_once(self.read_only, target)
        # A mount point of another command counts as missing, because it disappears when that command ends.
        elif placeholder is not None and (kind == "nothing" or is_placeholder):
            self.missing_files[path] = placeholder
        elif kind == "nothing" or is_mount_point(path):
            _append_once(self.missing_folders, path)
        else:
            _append_once(self.read_only, path)

    def add(self, other: Self) -> None:
        for name in ("writable", "read_only", "missing_folders", "problems"):
            for path in getattr(other, name):
                _append_once(getattr(self, name), path)
        self.missing_files |= other.missing_files


def _append_once(paths: list[str], path: str) -> None:
    if path not in paths:
        paths.append(path)
