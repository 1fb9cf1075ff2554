"""Mounts stand-ins over the folders a command may write, so that nothing it does there reaches the disk.

An overlay, where the kernel lets us: it costs the same for a workspace of any size. Else a copy of the folders.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal, Protocol

from agentcli.infra.sandbox.backends.bubblewrap_mounts import Mount, change_mounts
from agentcli.infra.sandbox.backends.landlock import own_python
from agentcli.infra.sandbox.confinement import Launch
from agentcli.infra.sandbox.mounts.mount_points import open_real
from agentcli.infra.sandbox.mounts.protect_plan import is_inside
from agentcli.infra.sandbox.trial.overlay_tree import overlay_changes
from agentcli.infra.sandbox.trial.tree_copy import TreeCopy
from agentcli.infra.sandbox.trial.tree_entries import Entry, Touched

Mechanism = Literal["overlay", "copy"]

_LAUNCHER = Path(__file__).with_name("overlay_launcher.py")
_LONGEST_PROBE_S = 20.0

# File times are those of the kernel's last tick, at most 10 ms ago (CONFIG_HZ is 100 or more): what was written before
# is older than a file that is made after this pause.
_TICK_S = 0.02

# Other machines may change files there, and set their times by clocks of their own.
_REMOTE = re.compile(r"nfs|cifs|smb|9p|ceph|afs|fuse|virtiofs|vboxsf|glusterfs|lustre")


class TrialMounts(Protocol):
    """Stand-ins for all the folders of one command, `areas`."""

    mechanism: Mechanism
    areas: Sequence[str]

    def wrap(self, launch: Launch, hidden: str) -> Launch:
        """Rewrite a command so that stand-ins are bound in place of the areas, and nothing else can be written.

        `hidden` is a folder that it does not see. Raises `OSError`, `ValueError`.
        """
        ...

    def changes(self, take: Callable[[Entry], None]) -> dict[str, Touched]:
        """Find what is different, by area, once the command has ended. `take` may raise. Raises `OSError`."""
        ...

    def close(self) -> None: ...


class OverlayMounts:
    """Overlays in a namespace that the command brings with it; what changed is in `folder`."""

    mechanism: Mechanism = "overlay"

    def __init__(self, areas: Sequence[str], folder: Path) -> None:
        """Raises `OSError` with the reason where overlays do not work here."""
        self.areas = areas
        self._layers = [_make_layer(area, folder / f"overlay-{number}") for number, area in enumerate(areas)]
        why_not = _why_no_overlay(areas) or self._probe()
        if why_not:
            raise OSError(why_not)
        time.sleep(_TICK_S)
        clock = folder / "started"
        clock.touch()
        self._started_ns = clock.stat().st_ctime_ns

    def wrap(self, launch: Launch, hidden: str) -> Launch:
        merged = {area: layer[3] for area, layer in zip(self.areas, self._layers, strict=True)}
        argv = change_mounts(launch.argv, lambda mount: _redirected(mount, merged), hidden)
        passed = _still_used(launch.pass_fds, launch.argv, argv)
        return launch._replace(argv=[*self._launcher(), *argv], pass_fds=passed)

    def changes(self, take: Callable[[Entry], None]) -> dict[str, Touched]:
        return {
            area: overlay_changes(area, layer[1], self._started_ns, take)
            for area, layer in zip(self.areas, self._layers, strict=True)
        }

    def close(self) -> None:
        pass

    def _launcher(self) -> list[str]:
        return [str(own_python()), "-I", "-S", str(_LAUNCHER), json.dumps(self._layers)]

    def _probe(self) -> str:
        done = subprocess.run(
            self._launcher(), stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_LONGEST_PROBE_S
        )
        return done.stderr.decode(errors="replace").strip() if done.returncode else ""


class CopyMounts:
    """Copies in `folder`. What is at or below a path of `hidden` is empty in them."""

    mechanism: Mechanism = "copy"

    def __init__(
        self, areas: Sequence[str], folder: Path, *, hidden: Collection[str], take: Callable[[Entry], None]
    ) -> None:
        """`take` is called for each entry before it is copied, and may raise. Raises `OSError`."""
        self.areas = areas
        self._opened: list[int] = []
        self._paths = {area: str(folder / f"copy-{number}") for number, area in enumerate(areas)}
        self._copies = {area: TreeCopy(area, path, hidden=hidden) for area, path in self._paths.items()}
        for copy in self._copies.values():
            copy.make(take)

    def wrap(self, launch: Launch, hidden: str) -> Launch:
        argv = change_mounts(launch.argv, lambda mount: self._opened_mount(_redirected(mount, self._paths)), hidden)
        passed = (*_still_used(launch.pass_fds, launch.argv, argv), *self._opened)
        return launch._replace(argv=argv, pass_fds=passed)

    def _opened_mount(self, mount: Mount) -> Mount:
        if mount.option != "--bind":
            return mount
        self._opened.append(open_real(mount.source))
        return Mount("--bind-fd", str(self._opened[-1]), mount.path)

    def changes(self, take: Callable[[Entry], None]) -> dict[str, Touched]:
        return {area: copy.changes(take) for area, copy in self._copies.items()}

    def close(self) -> None:
        for descriptor in self._opened:
            os.close(descriptor)
        self._opened.clear()


def _redirected(mount: Mount, sources: dict[str, str]) -> Mount:
    """A writable bind leads into what stands in for the area it is in; elsewhere it is no longer writable."""
    if not mount.is_writable:
        return mount
    for area, source in sources.items():
        if is_inside(mount.path, area):
            return Mount("--bind", source + mount.path.removeprefix(area), mount.path)
    return mount._replace(option=f"--ro-{mount.option.removeprefix('--')}")


def _still_used(passed: Sequence[int], before: Sequence[str], after: Sequence[str]) -> tuple[int, ...]:
    """Without the descriptors of binds that lead elsewhere now: bubblewrap would leave them to the command."""
    dropped = _descriptors(before) - _descriptors(after)
    return tuple(number for number in passed if number not in dropped)


def _descriptors(argv: Sequence[str]) -> set[int]:
    pairs = itertools.pairwise(argv)
    return {int(number) for option, number in pairs if option in {"--bind-fd", "--ro-bind-fd"} and number.isdecimal()}


def _make_layer(area: str, folder: Path) -> tuple[str, str, str, str]:
    """The root of an overlay has the mode and owner of the upper folder."""
    upper, work, merged = (folder / name for name in ("upper", "work", "merged"))
    for one in (upper, work, merged):
        one.mkdir(parents=True, mode=0o700)
    there = Path(area).stat()
    if os.geteuid() == 0:
        os.chown(upper, there.st_uid, there.st_gid)
    upper.chmod(there.st_mode & 0o7777)
    return area, str(upper), str(work), str(merged)


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
