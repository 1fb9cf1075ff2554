"""Mounts an overlay over each folder that a tried command may write, so that nothing it does there reaches the disk.

It costs the same for a workspace of any size.
"""

from __future__ import annotations

import marshal
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from agentcli.infra.sandbox.backends.bubblewrap_layout import writable_folders
from agentcli.infra.sandbox.backends.landlock import own_python
from agentcli.infra.sandbox.confinement import Launch, Mount, memory_file, run_probe
from agentcli.infra.sandbox.dry_runs.overlay_launcher import REFUSAL
from agentcli.infra.sandbox.mounts.protect_plan import is_inside

_LAUNCHER = Path(__file__).with_name("overlay_launcher.py")

# Other machines may change files there, and set their times by clocks of their own.
_REMOTE = re.compile(r"nfs|cifs|smb|9p|ceph|afs|fuse|virtiofs|vboxsf|glusterfs|lustre")


class Overlay(NamedTuple):
    """The overlay over `area`. What is below it: a layer of caches, where there is one, and then the area itself."""

    area: str
    caches: str
    upper: str
    work: str
    merged: str


class Overlays:
    """The overlays of one command. What it changed is in their upper folders, once it has ended.

    `started_ns` is when it started, by file times: what was changed later was not there for it from the beginning.
    """

    def __init__(self, launch: Launch, folder: Path, caches_of: Callable[[str], str]) -> None:
        """`caches_of` gives the folder with the caches of an area; empty for none. Raises `OSError`."""
        areas = writable_folders(launch.mounts)
        if inside := next((area for area in areas if is_inside(str(folder), area)), None):
            raise OSError(0, f"{inside} holds agentcli's own data, so what a command does there cannot be held back")
        if why_not := _why_no_overlay(areas):
            raise OSError(0, why_not)
        clock = folder / "started"
        clock.touch()
        self.started_ns = clock.stat().st_ctime_ns
        self.each = [
            _make_overlay(area, caches_of(area), folder / f"overlay-{number}") for number, area in enumerate(areas)
        ]

    @contextmanager
    def wrap(self, launch: Launch, hidden: str, *, looks_only: bool = False) -> Iterator[Launch]:
        """Rewrite a command so that overlays are bound in place of the areas, and nothing else can be written.

        `hidden` is a folder that it does not see. One that `looks_only` sees what the command before it did, and can
        write nothing. Raises `OSError`.
        """
        binds: list[tuple[int, str]] = []
        mounts = [self._redirected(mount, binds) for mount in launch.mounts]
        with _plan(self.each, self.started_ns, binds=binds, looks_only=looks_only) as plan:
            yield launch._replace(
                pass_fds=(*launch.pass_fds, plan),
                bounded_by="dry_runs.overlay_launcher",
                refusal=REFUSAL,
                mounts=(*mounts, Mount(hidden)),
            )

    def _redirected(self, mount: Mount, binds: list[tuple[int, str]]) -> Mount:
        """A writable bind leads into the overlay of the area it is in; elsewhere it is no longer writable.

        `binds` are the descriptors that the launcher makes lead there, when the overlay is mounted.
        """
        if not mount.is_writable:
            return mount
        for overlay in self.each:
            if mount.descriptor is not None and is_inside(mount.path, overlay.area):
                source = overlay.merged + mount.path.removeprefix(overlay.area)
                binds.append((mount.descriptor, source))
                return mount._replace(source=source)
        return mount._replace(is_writable=False)


def why_no_overlays(areas: Sequence[str], folder: Path) -> str:
    """Say why these areas cannot have overlays here; empty where they can. Really mounts them. Raises `OSError`."""
    if why_not := _why_no_overlay(areas):
        return why_not
    overlays = [_make_overlay(area, "", folder / f"probe-{number}") for number, area in enumerate(areas)]
    with _plan(overlays, 0) as plan:
        done = run_probe([str(own_python()), "-I", "-S", str(_LAUNCHER), str(plan)], (plan,))
    return done.stderr.decode(errors="replace").strip() if done.returncode else ""


@contextmanager
def _plan(
    overlays: Sequence[Overlay], started_ns: int, *, binds: Sequence[tuple[int, str]] = (), looks_only: bool = False
) -> Iterator[int]:
    """A descriptor to read the launcher's plan from."""
    layers = []
    for area, caches, upper, work, merged in overlays:
        lower = [layer for layer in ((upper if looks_only else ""), caches, area) if layer]
        layers.append((lower, "" if looks_only else upper, work, merged))
    with memory_file(marshal.dumps((layers, list(binds), started_ns))) as plan:
        yield plan


def _make_overlay(area: str, caches: str, folder: Path) -> Overlay:
    """The root of an overlay has the mode and owner of the upper folder."""
    upper, work, merged = (folder / name for name in ("upper", "work", "merged"))
    for one in (upper, work, merged):
        one.mkdir(parents=True, mode=0o700)
    there = Path(area).stat()
    if os.geteuid() == 0:
        os.chown(upper, there.st_uid, there.st_gid)
    upper.chmod(there.st_mode & 0o7777)
    return Overlay(area, caches, str(upper), str(work), str(merged))


def _why_no_overlay(areas: Sequence[str]) -> str:
    """Say why an overlay would not do: a mount inside an area would be missing, and remote file systems differ."""
    for kind, path in _mounted():
        for area in areas:
            if path != area and is_inside(path, area):
                return f"{path} is a mount inside the workspace"
            if is_inside(area, path) and _REMOTE.search(kind) and _innermost(area) == path:
                return f"{area} is on a file system of another machine or program ({kind})"
    return ""


def _innermost(path: str) -> str:
    return max((at for _, at in _mounted() if is_inside(path, at)), key=len, default="/")


def _mounted() -> list[tuple[str, str]]:
    """Kinds of file systems and where they are mounted (proc_pid_mountinfo(5)); none where the kernel does not say."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        place, _, source = line.partition(" - ")
        found.append((source.split()[0], re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), place.split()[4])))
    return found
