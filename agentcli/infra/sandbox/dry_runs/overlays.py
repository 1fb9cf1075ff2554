"""Mounts an overlay over each folder that a dry run may write, and reads the command's changes from it.

An overlay keeps all changes in its upper folder (Documentation/filesystems/overlayfs.rst), and costs the same for a
workspace of any size. Caches that a dry run makes are kept in layers of their own: later dry runs of the session see
them, the real folders never get them.
"""

import marshal
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from agentcli.infra.changes import state
from agentcli.infra.changes.writing import OVERLAY_ATTRIBUTES, remove_tree
from agentcli.infra.sandbox.backends.launcher import SETUP_ERROR_PREFIX
from agentcli.infra.sandbox.backends.linux import launcher_words, writable_folders
from agentcli.infra.sandbox.confinement import (
    Bounds,
    Confinement,
    Launch,
    Mount,
    is_inside,
    kind_of,
    memory_file,
    probe,
)
from agentcli.infra.sandbox.mount_points import LIST_NAME, MountPointList, is_mount_point
from agentcli.settings.files import make_private_folder
from agentcli.tools.command import Command, DryRunLimits

# In a line of mountinfo the fifth field is the mount point, and the one after " - " the type (proc_pid_mountinfo(5)).
_MOUNT = re.compile(r"^(?:\S+ ){4}(\S+) .*? - (\S+)", re.MULTILINE)

# File systems on which other machines may change files, and set times by clocks of their own.
_REMOTE = re.compile(r"nfs|cifs|smb|9p|ceph|afs|fuse|virtiofs|vboxsf|glusterfs|lustre")


class Overlay(NamedTuple):
    """An overlay, by the paths of its folders."""

    real_folder: str  # its lowest layer
    caches: str  # the layer of caches over it, or ""
    upper: str  # receives all changes
    work: str  # for the kernel's own use
    merged: str  # the result, which commands see


class Overlays:
    """Confines a command as usual, with overlays over what it may write; `folder` holds them."""

    def __init__(self, confinement: Confinement, bounds: Bounds, folder: Path, caches_of: Callable[[str], str]) -> None:
        self._confinement = confinement
        mount_point_list = MountPointList(folder / LIST_NAME)  # after a kill they are removed together with `folder`
        self._bounds = replace(bounds, resources=replace(bounds.resources, mount_point_list=mount_point_list))
        self.folder = folder
        self._caches_of = caches_of  # returns the layer of caches over a real folder, or ""
        self._attempts = 0  # starts of the command so far, each with a folder of its own
        self.newest: list[Overlay] = []  # the overlays of the newest attempt, with its changes
        self.started_ns = 0  # the start of the newest attempt, by the clock of file times

    @contextmanager
    def launch(self, argv: Sequence[str], command: Command) -> Iterator[Launch]:
        """Confine a command, with a new overlay over each folder that it may write. Raises `OSError`."""
        self._attempts += 1
        folder = self.folder / str(self._attempts)
        folder.mkdir(mode=0o700)
        if self._bounds.resources.cache is not None:
            make_private_folder(self._bounds.resources.cache)
        with self._confinement.launch(argv, cwd=command.cwd, bounds=self._bounds) as launch:
            real_folders = writable_folders(launch.mounts)
            # These errors have the number 0, because they do not come from the system.
            if own := next((each for each in real_folders if is_inside(str(folder), each)), ""):
                raise OSError(0, f"{own} holds agentcli's own data, so what a command does there cannot be held back")
            if obstacle := _find_mount_obstacle(real_folders):
                raise OSError(0, obstacle)
            clock = folder / "started"  # a file, because the clock of file times differs from other clocks
            clock.touch()
            self.started_ns = clock.stat().st_ctime_ns
            self.newest = []
            for number, real_folder in enumerate(real_folders):
                overlay = _make_overlay(real_folder, self._caches_of(real_folder), folder / f"overlay-{number}")
                # The command's own mounts need their mount points.
                _hide_mount_points(overlay, apart_from={mount.path for mount in launch.mounts})
                self.newest.append(overlay)
            with self._with_overlays(launch) as redirected:
                yield redirected

    @contextmanager
    def launch_inspection(self, argv: Sequence[str], command: Command) -> Iterator[Launch]:
        """Launch a read-only command that examines the changes of an ended one. Raises `OSError`."""
        with (
            self._confinement.launch(argv, cwd=command.cwd, bounds=self._bounds) as launch,
            self._with_overlays(launch, is_read_only=True) as redirected,
        ):
            yield redirected

    @contextmanager
    def _with_overlays(self, launch: Launch, *, is_read_only: bool = False) -> Iterator[Launch]:
        """Replace the writable folders among the mounts with the overlays; nothing else can be written."""
        binds: list[tuple[int, str]] = []
        # `.git/config` is not mounted read-only, because git could not replace it; its changes are checked afterwards.
        kept = [mount for mount in launch.mounts if not mount.path.endswith("/.git/config")]
        # The folder of all dry runs is hidden, because an overlay in it shows what is masked in the workspace.
        mounts = [*(self._redirect(mount, binds) for mount in kept), Mount(str(self.folder.parent))]
        with _overlay_plan(self.newest, self.started_ns, binds=binds, is_read_only=is_read_only) as plan:
            yield launch._replace(
                pass_fds=(*launch.pass_fds, plan),
                launcher_words=0,  # `argv` does not name the launcher, so none of it is skipped
                setup_error_prefix=SETUP_ERROR_PREFIX,
                mounts=tuple(mounts),
                environment={**launch.environment, "GIT_OPTIONAL_LOCKS": "0"},  # `git status` writes no index
            )

    def _redirect(self, mount: Mount, binds: list[tuple[int, str]]) -> Mount:
        """Make a writable mount show the overlay of its folder; without an overlay it becomes read-only.

        Its descriptor and new source are added to `binds`: the launcher opens the source as that descriptor.
        """
        if not mount.is_writable:
            return mount
        for overlay in self.newest:
            if mount.descriptor is not None and is_inside(mount.path, overlay.real_folder):
                source = overlay.merged + mount.path.removeprefix(overlay.real_folder)
                binds.append((mount.descriptor, source))
                return mount._replace(source=source)
        return mount._replace(is_writable=False)


_AS_CREATED = (-1, -1)  # the owner of a new file: chown changes nothing then


class TooMuch(Exception):
    """A command's changes exceed the limits of a dry run."""


class OverlayReader:
    """Reads the overlays of one command, whose changes together may not exceed the limits."""

    def __init__(self, limits: DryRunLimits, started_ns: int) -> None:
        self._limits = limits
        self._started_ns = started_ns  # the start of the command, by the clock of file times
        self._entries = self._bytes = 0  # counted so far, in all overlays of the command

    def read(self, root: str, upper: str) -> state.ChangeSet:
        """Return the changes below a root, from the folder `upper` with the writes. Raises `OSError`, `TooMuch`."""
        changes = state.ChangeSet(root=root)
        waiting = [("", False)]  # paths, and True if the root's entry there is known to be deleted or replaced
        while waiting:  # without recursion, because a command can nest folders deeper than Python calls
            path, is_original_gone = waiting.pop()
            in_upper = f"{upper}/{path}" if path else upper
            now, original = state.entry_at(in_upper), state.entry_at(changes.at(path))  # `original`: in the root
            assert now is not None
            if os.geteuid() != 0:  # the overlay shows only the user's own group, and a user cannot change owners
                now = now._replace(owner=_AS_CREATED if original is None else original.owner)
            if now.kind == "other" and is_mount_point(changes.at(path)):  # hidden by `_hide_mount_points`, not deleted
                continue
            if path and _is_cache(path, now, original):
                changes.caches.append(path)
                continue
            self._count_against_limits(now.size if now.kind == "file" else 0)
            # A folder is merged with one in the root, unless it is opaque. Anything else hides what the root has there.
            is_merged = now.kind == "folder" and original is not None and original.kind == "folder"
            if not is_original_gone and (not is_merged or _is_opaque(in_upper)):  # all that the root has there is gone
                for gone, entry in state.walk(root, path):
                    self._count_against_limits(0)
                    changes.before[gone] = entry
                    if entry.kind != "folder" and entry.stamp.changed_ns > self._started_ns:
                        changes.stale.add(gone)  # somebody else changed it while the command was running
                is_original_gone = True
            elif not is_original_gone and original is not None:
                changes.before[path] = original
            if now.kind != "other":  # a device marks a deletion; pipes and sockets cannot be applied
                changes.after[path] = now
                _open_to_owner(now)
            if now.kind == "folder":
                waiting += [(state.joined(path, name), is_original_gone) for name in reversed(state.names_in(in_upper))]
        return changes

    def _count_against_limits(self, size: int) -> None:
        self._entries += 1
        self._bytes += size
        limits = self._limits
        if self._entries > limits.max_entries or self._bytes > limits.max_bytes:
            raise TooMuch(f"it changed more than {limits.max_entries:,} files or {limits.max_bytes // 1_000_000:,} MB")


def _hide_mount_points(overlay: Overlay, apart_from: Collection[str]) -> None:
    """Hide the mount points of running jobs, because git would try to remove these empty folders."""
    for name in state.names_in(overlay.real_folder):
        path = f"{overlay.real_folder}/{name}"
        if path not in apart_from and is_mount_point(path):
            os.mknod(f"{overlay.upper}/{name}", stat.S_IFCHR)  # this device marks a deleted path in an overlay


def probe_overlays(real_folders: Sequence[str], folder: Path) -> str:
    """Try to mount overlays over `real_folders`; return the reason if that fails, else "". Raises `OSError`."""
    if obstacle := _find_mount_obstacle(real_folders):
        return obstacle
    overlays = [_make_overlay(each, "", folder / f"probe-{number}") for number, each in enumerate(real_folders)]
    with _overlay_plan(overlays, 0) as plan:
        _, problem = probe(launcher_words(plan), (plan,))
    return problem


def _overlay_plan(
    overlays: Sequence[Overlay], started_ns: int, *, binds: Sequence[tuple[int, str]] = (), is_read_only: bool = False
) -> AbstractContextManager[int]:
    """Open a plan for launcher.py. With `is_read_only` the upper folders are lower ones, which nothing can write."""
    layers = []
    for real_folder, caches, upper, work, merged in overlays:
        lower = [*filter(None, (upper if is_read_only else "", caches, real_folder))]
        layers.append((lower, "" if is_read_only else upper, work, merged))
    return memory_file(marshal.dumps(("overlays", layers, list(binds), started_ns)))


def _make_overlay(real_folder: str, caches: str, folder: Path) -> Overlay:
    """Create an overlay's folders. The upper one gets the real one's mode and owner, which the overlay then shows."""
    upper, work, merged = (folder / name for name in ("upper", "work", "merged"))
    for path in (upper, work, merged):
        path.mkdir(parents=True, mode=0o700)
    copy_access(Path(real_folder), upper)
    return Overlay(real_folder, caches, str(upper), str(work), str(merged))


def _find_mount_obstacle(folders: Sequence[str]) -> str:
    """Return the reason why one of the folders cannot get an overlay, or ""."""
    mounted = _mounted_file_systems()
    for folder in folders:
        if inside := next((path for _, path in mounted if path != folder and is_inside(path, folder)), ""):
            return f"{inside} is a mount inside the workspace"  # which an overlay would not show
        mount_around = max((path for _, path in mounted if is_inside(folder, path)), key=len, default="/")
        if kind := next((kind for kind, path in mounted if path == mount_around and _REMOTE.search(kind)), ""):
            return f"{folder} is on a file system of another machine or program ({kind})"
    return ""


def _mounted_file_systems() -> list[tuple[str, str]]:
    """Return the types of the mounted file systems and their paths; nothing if /proc cannot be read."""
    text = ""
    with suppress(OSError):
        text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    return [
        (kind, re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), path))  # `\040` is a space
        for path, kind in _MOUNT.findall(text)
    ]


def _is_cache(path: str, now: state.FileEntry, original: state.FileEntry | None) -> bool:
    if ".git" in path.split("/"):  # git itself depends on what is there
        return False
    is_folder = any(entry is not None and entry.kind == "folder" for entry in (now, original))
    if path.rpartition("/")[2] == ".benchmarks" and original is None and now.kind == "folder":
        return not state.names_in(now.source)  # pytest-benchmark makes it in each run, and fills it only on request
    # A folder that existed must have had the tag before: a command could add one to hide its changes from the person.
    return state.is_cache(path, is_folder=is_folder) or (is_folder and state.has_cache_tag((original or now).source))


def _is_opaque(in_upper: str) -> bool:
    """Return True if a folder of an upper layer hides the entries of the lower folders."""
    with suppress(OSError):
        return os.getxattr(in_upper, f"{OVERLAY_ATTRIBUTES}opaque", follow_symlinks=False) == b"y"
    return False


def _open_to_owner(entry: state.FileEntry) -> None:
    """Let the owner read a file or folder in an overlay, whatever its mode; `entry.mode` keeps the original one."""
    needed = {"file": 0o400, "folder": 0o700}.get(entry.kind, 0)
    if entry.mode & needed != needed:
        os.chmod(entry.source, entry.mode | needed)  # noqa: PTH101


class CacheLayers:
    """Keeps a layer of caches for each root in `folder`, which must be on the disk of the upper folders."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._caches: dict[str, set[str]] = {}  # for each root the paths of its caches
        self._users = 0  # the number of dry runs that may have the layers mounted now

    @contextmanager
    def in_use(self) -> Iterator[None]:
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1

    def layer_over(self, root: str) -> str:
        """Return the layer to mount over a root, or "" if it is empty; drop caches whose folder the root has lost."""
        caches = self._caches.get(root, set())
        for path in [path for path in caches if not (Path(root) / path).parent.is_dir()]:
            caches.discard(path)
            outermost_missing = next(folder for folder in state.parents_of(path) if not (Path(root) / folder).is_dir())
            _remove_cache(self._layer(root) / outermost_missing)
        return str(self._layer(root)) if caches else ""

    def add(self, root: str, upper: str, paths: Sequence[str]) -> list[str]:
        """Move caches from an upper folder into the layer; return those that are new and have a cache tag."""
        if self._users > 1 or not paths:  # another dry run, besides the caller's, may have the layer mounted
            return []
        known = self._caches.setdefault(root, set())
        tagged = [path for path in paths if path not in known and state.has_cache_tag(f"{upper}/{path}")]
        with suppress(OSError):  # losing a cache only costs the next command some time
            for path in paths:
                if not (Path(root) / path).parent.is_dir():  # the layer would add this folder to the root
                    continue
                for around in state.parents_of(path):  # the layer's folders hide the modes and owners of the root's
                    (self._layer(root) / around).mkdir(parents=True, exist_ok=True)
                    copy_access(Path(root) / around, self._layer(root) / around)
                _merge_caches(f"{upper}/{path}", f"{self._layer(root)}/{path}")
                known.add(path)
        return [path for path in tagged if path in known]

    def _layer(self, root: str) -> Path:
        return self._folder / f"caches-{[*self._caches].index(root)}"  # numbered in the order of their first use


def copy_access(source: Path, target: Path) -> None:
    """Copy the mode of a folder to another one and, if we are root, its owner. Raises `OSError`."""
    status = source.stat()
    if os.geteuid() == 0:
        os.chown(target, status.st_uid, status.st_gid)
    target.chmod(stat.S_IMODE(status.st_mode))


def _merge_caches(source: str, target: str) -> None:
    """Move `source` to `target`, which it replaces; a folder is merged with an existing one."""
    waiting = [(source, target)]
    while waiting:
        source, target = waiting.pop()
        kinds = {kind_of(source), kind_of(target)}
        if kinds == {"folder"}:
            waiting += [(f"{source}/{name}", f"{target}/{name}") for name in os.listdir(source)]  # noqa: PTH208
            continue
        if "folder" in kinds:  # rename does not replace a file by a folder, or the other way round
            _remove_cache(Path(target))
        os.rename(source, target)  # noqa: PTH104


def _remove_cache(path: Path) -> None:
    if kind_of(str(path)) == "folder":
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)
