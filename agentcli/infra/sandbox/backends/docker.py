"""Confines each command in a Docker or podman container of its own, without network, privilege or capability."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path

from agentcli.infra.sandbox.confinement import Bounds, Launch, Protection, find_places, is_inside, run_probe
from agentcli.infra.sandbox.environment import PRIVATE_TMP, cache_environment
from agentcli.infra.sandbox.mount_points import MountPoints
from agentcli.infra.sandbox.protection.planning import plan_protection
from agentcli.tools.command import Profile

_REMOVE_TIMEOUT_S = 30.0
_LIMITS = ("--memory=4g", "--pids-limit=512")


class Docker:
    """Implements `Confinement`. The image must hold what commands need. Descriptors are not passed on."""

    name = "docker"
    weakness = ""
    keeps_names = True
    hides_in: tuple[Profile, ...] = ("read-only", "workspace-write")

    def __init__(self, image: str, *, program: str = "docker") -> None:
        self._image = image
        self._program = program

    @cached_property
    def why(self) -> str:
        """The reason why no command can run, as `docker version` gives it; empty where its daemon answers."""
        try:
            done = run_probe([self._program, "version"], ())
        except (OSError, subprocess.SubprocessError) as error:
            message = getattr(error, "strerror", None) or str(error)
        else:
            message = done.stderr.decode(errors="replace").strip() if done.returncode else ""
        advice = "Start its daemon, or choose another sandbox (sandbox.kind in the settings)."
        return f"{self._program} does not answer: {message.rstrip('.')}. {advice}" if message else ""

    @contextmanager
    def launch(
        self, argv: Sequence[str], *, cwd: Path, bounds: Bounds, pass_fds: Sequence[int] = ()
    ) -> Iterator[Launch]:
        name = f"agentcli-{secrets.token_hex(8)}"
        protection = plan_protection(bounds, str(cwd))
        with closing(MountPoints()) as mount_points:
            caches = cache_environment(str(bounds.resources.cache or f"{PRIVATE_TMP}/.cache"))
            options = [
                *(f"--name={name}", "--rm", "--init", "--interactive", "--network=none", "--read-only"),
                *("--cap-drop=ALL", "--security-opt=no-new-privileges", "--ipc=private", *_LIMITS),
                *(f"--user={os.getuid()}:{os.getgid()}", f"--tmpfs={PRIVATE_TMP}:rw,exec,nosuid,nodev,mode=1777"),
                *(f"--env={key}={value}" for key, value in {"HOME": PRIVATE_TMP, **caches}.items()),
                *(f"--mount={mount}" for mount in _mounts(bounds, protection, mount_points)),
                f"--workdir={cwd}",
            ]
            try:
                yield Launch([self._program, "run", *options, self._image, *argv])
            finally:
                # The container would go on when the program that waits for it is killed.
                subprocess.run(
                    [self._program, "rm", "--force", name],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    check=False,
                    timeout=_REMOVE_TIMEOUT_S,
                )

    def limits(self, bounds: Bounds) -> tuple[str, ...]:
        proxy = ("Commands reach no host, granted or not.",) if bounds.resources.proxy_socket is not None else ()
        return (*plan_protection(bounds, "").problems, *proxy)


def _mounts(bounds: Bounds, protection: Protection, mount_points: MountPoints) -> list[str]:
    # Docker mounts outer folders first, whatever the order here.
    may_write = bounds.profile != "read-only"
    folders = [str(root) for root in bounds.roots]
    granted = [place.path for place in find_places(bounds.writable)] if may_write else []
    mounts = [_bind(path, path, is_writable=may_write) for path in dict.fromkeys([*folders, *granted])]
    if bounds.resources.cache is not None:
        mounts.append(_bind(str(bounds.resources.cache), str(bounds.resources.cache), is_writable=True))
    mounts += [_bind(path, path, is_writable=True) for path in protection.writable if path not in folders]
    held = [path for path in protection.missing_folders if mount_points.hold(path)]
    held += [path for path, what in protection.missing_files.items() if mount_points.hold(path, what)]
    mounts += [_bind(path, path) for path in (*protection.read_only, *held) if path not in granted]
    shown = {place.path for place in find_places(bounds.readable_again)}
    for place in find_places(bounds.masked):
        if place.path not in shown and any(is_inside(place.path, folder) for folder in (*folders, *granted)):
            hidden = _bind(os.devnull, place.path)
            nothing = f"type=tmpfs,destination={place.path},tmpfs-mode=0000,tmpfs-size=4096"
            mounts.append(nothing if place.is_folder else hidden)
    return mounts


def _bind(source: str, target: str, *, is_writable: bool = False) -> str:
    if "," in target or '"' in target:
        raise OSError(f"docker cannot mount {target!r}: its name has a comma or a quote in it")
    return f"type=bind,source={source},destination={target}" + ("" if is_writable else ",readonly")
