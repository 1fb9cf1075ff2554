"""What has to exist while commands run: made, shared, and removed by the last."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from agentcli.infra.sandbox.mount_points import MountPoints, is_mount_point


def test_the_last_one_removes_it(tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    with closing(MountPoints()) as first:
        assert first.ensure(str(folder))
        assert first.ensure(str(file), b".\n")
        with closing(MountPoints()) as second:
            assert second.ensure(str(folder))
            assert second.ensure(str(file), b".\n")
        assert is_mount_point(str(folder))
        assert file.read_bytes() == b".\n"
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    with closing(MountPoints()) as held:
        assert held.ensure(str(tmp_path / "folder"))
        assert held.ensure(str(tmp_path / "file"))
        assert held.ensure(str(tmp_path / "file"), b".\n")
    assert (tmp_path / "folder").is_dir()
    assert (tmp_path / "file").read_text() == "mine"


def test_files_created_meanwhile_are_left_alone(tmp_path: Path) -> None:
    with closing(MountPoints()) as held:
        held.ensure(str(tmp_path / "folder"))
        held.ensure(str(tmp_path / "file"), b".\n")
        held.ensure(str(tmp_path / "replaced"), b".\n")
        (tmp_path / "folder/inside").touch()
        (tmp_path / "file").write_text("mine")
        (tmp_path / "new").write_text(".\n")
        (tmp_path / "new").rename(tmp_path / "replaced")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "file", "folder", "folder/inside", "replaced",
    ]  # fmt: skip
    assert not (tmp_path / "folder").stat().st_mode & 0o1000


def test_leftovers_of_a_crash_are_taken_over(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(0o1755)
    with closing(MountPoints()) as held:
        held.ensure(str(tmp_path / "folder"))
    assert not (tmp_path / "folder").exists()


def test_it_is_there_as_long_as_anyone_holds_it(tmp_path: Path) -> None:
    folder = tmp_path / "folder"

    def hold(_: int) -> bool:
        there = True
        for _ in range(40):
            with closing(MountPoints()) as held:
                held.ensure(str(folder))
                before = folder.stat().st_ino
                there = there and folder.stat().st_ino == before
        return there

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(hold, range(6)))
    assert not folder.exists()


def test_nothing_is_made_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "link").symlink_to("outside")
    (tmp_path / "name").symlink_to("outside")
    with closing(MountPoints()) as held:
        assert not held.ensure(str(tmp_path / "link/folder"))
        assert not held.ensure(str(tmp_path / "link/file"), b".\n")
        held.ensure(str(tmp_path / "name"))
        assert list((tmp_path / "outside").iterdir()) == []
    assert (tmp_path / "name").is_symlink()


@pytest.mark.skipif(os.getuid() == 0, reason="root can make it")
def test_where_nothing_can_be_made_a_command_cannot_either(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with closing(MountPoints()) as held:
        assert not held.ensure(str(tmp_path / "folder"))
    tmp_path.chmod(0o755)
