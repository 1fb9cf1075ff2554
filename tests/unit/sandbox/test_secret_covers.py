"""What is mounted over a file that commands may not read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agentcli.infra.sandbox.confinement import NOTHING, SecretCovers


@pytest.fixture
def hidden(tmp_path: Path) -> SecretCovers:
    return SecretCovers(tmp_path / "hidden")


@pytest.mark.parametrize(("size", "mode"), [(0, 0o644), (11, 0o600), (5 << 30, 0o755)])
def test_it_is_as_long_and_as_old_and_holds_nothing(hidden: SecretCovers, tmp_path: Path, size: int, mode: int) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"secret"[:size])
    os.truncate(path, size)
    path.chmod(mode)
    os.utime(path, ns=(5, 1_234_567_890))
    status = Path(hidden.over(str(path))).lstat()
    assert (status.st_size, status.st_mtime_ns, status.st_blocks) == (size, 1_234_567_890, 0)
    assert stat.S_IMODE(status.st_mode) == mode & 0o100


def test_the_same_is_mounted_over_what_looks_the_same(hidden: SecretCovers, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / "c").write_bytes(b"y")
    first, second, third = (hidden.over(str(tmp_path / name)) for name in "abc")
    assert first == second != third
    assert SecretCovers(tmp_path / "hidden").over(str(tmp_path / "a")) == first


def test_what_is_old_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"x")
    old = Path(SecretCovers(tmp_path / "hidden").over(str(tmp_path / "a")))
    (tmp_path / "a").write_bytes(b"longer")
    monkeypatch.setattr("agentcli.infra.sandbox.confinement._KEPT_FOR_S", -1)
    assert Path(SecretCovers(tmp_path / "hidden").over(str(tmp_path / "a"))).exists()
    assert not old.exists()


@pytest.mark.parametrize("what", ["missing", "folder", "link"])
def test_where_there_is_no_file_a_device_is(hidden: SecretCovers, tmp_path: Path, what: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    assert hidden.over(str(tmp_path / what)) == NOTHING


def test_where_there_is_no_room_a_device_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert SecretCovers(tmp_path / "file").over(str(tmp_path / "file")) == NOTHING
