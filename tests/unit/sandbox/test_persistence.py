"""Commands that try to reach out of the workspace by what they leave there for the next one."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentcli.infra.sandbox.confinement import Bounds
from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.infra.sandbox.protection.held_folders import HeldFolders
from agentcli.infra.sandbox.session_confinement import CommandLimits, SessionFolders
from agentcli.tools.command import Command
from tests.conformance.confining import confinement_for, folder_on_disk, git

WHO = "root" if os.getuid() == 0 else "user"


@pytest.fixture
def home() -> Iterator[Path]:
    with folder_on_disk() as folder:
        yield folder


def said_by(root: Path, home: Path, *commands: str, kind: str = "bubblewrap", **limits: object) -> list[str]:
    """What commands of one session say, one after the other."""
    sandbox = LocalSandbox(
        [root],
        environment={"PATH": "/usr/bin:/bin", "HOME": str(home)},
        job_folder=home.parent / f"{home.name}.jobs",
        limits=CommandLimits(profile="workspace-write", home=home, **limits),
        choose=lambda: confinement_for(f"{kind}, {WHO}")[0],
    )

    async def run() -> list[str]:
        try:
            return [(await sandbox.run(Command(c, root, timeout_s=20))).output for c in commands]
        finally:
            await sandbox.aclose()

    return asyncio.run(run())


def test_nothing_in_the_workspace_is_mounted_by_its_path(home: Path) -> None:
    root = home / "ws"
    for number in range(70):
        git_folder = root / f"nested{number}/.git"
        git_folder.mkdir(parents=True)
    confinement, _ = confinement_for(f"bubblewrap, {WHO}")
    with confinement.launch(
        ["true"], cwd=root, bounds=Bounds(profile="workspace-write", roots=(root,), home=home)
    ) as launch:
        by_path = [mount.source for mount in launch.mounts if mount.descriptor is None]
    assert not [path for path in by_path if path.startswith(str(root))]
    assert len(launch.pass_fds) > 70
    tried = "for f in nested*; do touch $f/.git/x 2>/dev/null && echo $f; done; echo done"
    assert said_by(root, home, tried) == ["done\n"]


@pytest.mark.parametrize("kind", ["bubblewrap", "landlock"])
def test_a_cache_that_a_command_can_replace_is_not_used(home: Path, kind: str) -> None:
    outside = home.with_name(f"{home.name}.outside")
    outside.mkdir()
    cache = home / ".cache/agentcli/sandbox/workspace"
    swap = f"cd; rm -rf .cache/agentcli; mkdir -p .cache/agentcli/sandbox; ln -sfn {outside} {cache}"
    swap_above = f"cd; rm -rf .cache/agentcli; ln -sfn {outside} .cache/agentcli"
    try:
        said = said_by(
            home,
            home,
            "echo $PIP_CACHE_DIR",
            swap,
            f"touch {cache}/x",
            swap_above,
            "echo on",
            kind=kind,
            folders=SessionFolders(cache=cache),
        )
        assert str(cache) not in said[0]
        assert said[-1] == "on\n"
        assert not list(outside.iterdir())
    finally:
        for path in outside.rglob("*"):
            path.rmdir() if path.is_dir() else path.unlink()
        outside.rmdir()


@pytest.mark.parametrize("kind", ["bubblewrap", "landlock"])
def test_no_file_becomes_one_that_runs_as_its_owner(home: Path, kind: str) -> None:
    root = home / "ws"
    root.mkdir()
    git(root, "init", "-q")
    said_by(
        root,
        home,
        "cp /bin/true a; chmod 4755 a; chmod u+s a; install -m 4755 /bin/true b; chmod g+s .; chmod 750 a",
        "python3 -c 'import os; os.open(\"c\", os.O_CREAT | os.O_WRONLY, 0o4755)'",
        "git add a && git commit -qm x; echo x >d",
        kind=kind,
    )
    modes = {path.name: path.stat().st_mode for path in root.iterdir() if path.is_file()}
    assert {"a", "d"} <= modes.keys()
    assert not [name for name, mode in modes.items() if mode & stat.S_ISUID]
    assert stat.S_IMODE(modes["a"]) == 0o750


def test_a_folder_that_is_found_again_but_cannot_be_listed_is_not_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError

    moved, old_path = str(tmp_path / "moved"), str(tmp_path / "folder")
    Path(moved).mkdir()
    folders = HeldFolders()
    before = folders.open_at(moved)
    os.close(before.descriptor)
    monkeypatch.setattr(os, "listdir", refuse)
    folders.reopen(old_path, before, [f"{old_path}/config"], moved)
    assert not folders
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(before.descriptor)  # the number that the folder would have had
