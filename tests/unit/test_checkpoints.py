"""What a folder holds is taken down byte for byte, and what changed in it is found."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import time
import zlib
from pathlib import Path

import pytest

from agentcli.conversation.file_changes import FileState, real_path, stored_path
from agentcli.infra.changes.objects import Objects
from agentcli.infra.checkpoints.folder_index import Difference, FolderIndex
from agentcli.infra.checkpoints.listing import SnapshotLimits, TooManyFiles
from agentcli.infra.checkpoints.recorder import Recorder


class Watched:
    """A folder and its index."""

    def __init__(self, base: Path) -> None:
        self.folder, self.base = (base / "project").resolve(), base
        self.folder.mkdir()
        self.objects = Objects(base / "checkpoints")
        self.index = self.new_index()

    def new_index(self, limits: SnapshotLimits = SnapshotLimits()) -> FolderIndex:  # noqa: B008  # frozen
        return FolderIndex(self.folder, self.base / "index", self.objects, limits)

    def write(self, name: str, content: bytes = b"x\n") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def found(self) -> dict[str, Difference]:
        return self.index.refresh()

    def held(self, state: FileState | None) -> bytes:
        assert state is not None
        return self.objects.get(state.content)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_second_look_finds_what_changed_and_nothing_else(watched: Watched) -> None:
    watched.write("same")
    old = watched.write("sub/old", b"before")
    gone = watched.write("gone")
    assert set(watched.found()) == {"same", "sub", "sub/old", "gone"}
    assert watched.found() == {}
    old.write_bytes(b"after")
    gone.unlink()
    watched.write("sub/new/deep")
    found = watched.found()
    assert set(found) == {"sub/old", "gone", "sub/new", "sub/new/deep"}
    assert [watched.held(state) for state in found["sub/old"]] == [b"before", b"after"]
    assert (found["gone"][1], found["sub/new"][0]) == (None, None)


def test_changes_within_a_tick_of_the_clock_are_seen(watched: Watched) -> None:
    path = watched.write("a", b"0000")
    watched.found()
    for number in range(1, 200):
        path.write_bytes(b"%04d" % number)  # as many bytes each time
        ((_, now),) = watched.found().values()
        assert watched.held(now) == b"%04d" % number


def test_modes_links_folders_and_pipes_are_part_of_it(watched: Watched) -> None:
    path = watched.write("tool")
    (watched.folder / "link").symlink_to("tool")
    (watched.folder / "empty").mkdir()
    os.mkfifo(watched.folder / "pipe")
    assert {name: now.kind for name, (_, now) in watched.found().items() if now} == {
        "tool": "file", "link": "link", "empty": "folder", "pipe": "pipe",
    }  # fmt: skip
    path.chmod(0o751)
    (watched.folder / "empty").chmod(0o700)
    (watched.folder / "link").unlink()
    (watched.folder / "link").symlink_to("elsewhere")
    found = watched.found()
    assert set(found) == {"tool", "empty", "link"}
    assert [state and state.mode & 0o777 for state in found["tool"]] == [0o644, 0o751]
    assert [state and state.content for state in found["link"]] == ["tool", "elsewhere"]


def test_a_file_that_becomes_a_folder_and_back_is_told_with_all_that_is_in_it(watched: Watched) -> None:
    watched.write("a")
    watched.found()
    (watched.folder / "a").unlink()
    watched.write("a/b")
    assert set(watched.found()) == {"a", "a/b"}
    (watched.folder / "a/b").unlink()
    (watched.folder / "a").rmdir()
    watched.write("a")
    assert {name: now and now.kind for name, (_, now) in watched.found().items()} == {"a": "file", "a/b": None}


def test_the_next_session_goes_on_from_the_index_of_this_one(watched: Watched) -> None:
    path = watched.write("a", b"one")
    watched.found()
    time.sleep(0.05)
    watched.index = watched.new_index()
    assert watched.found() == {}
    path.write_bytes(b"two")
    watched.index = watched.new_index()
    assert set(watched.found()) == {"a"}
    (watched.base / "index").write_bytes(b"damaged")
    watched.index = watched.new_index()
    assert set(watched.found()) == {"a"}


def test_contents_are_what_they_are_whatever_git_would_make_of_them(watched: Watched) -> None:
    watched.write(".gitattributes", b"* text=auto eol=crlf filter=none ident\n")
    content = b"one\r\ntwo\n$Id$\n\xff\0"
    watched.write("a", content)
    large = random.Random(1).randbytes(3_000_000)
    watched.write("large", large)
    found = watched.found()
    assert watched.held(found["a"][1]) == content
    assert watched.held(found["large"][1]) == large
    id = found["a"][1].content if found["a"][1] else ""
    git = ["git", "--git-dir", str(watched.objects.folder), "cat-file", "-p", id]
    assert subprocess.run(git, check=True, capture_output=True).stdout == content
    assert b"error" not in subprocess.run([*git[:3], "fsck"], check=True, capture_output=True).stderr


def test_a_repository_in_the_folder_is_covered_but_for_what_is_gits(watched: Watched) -> None:
    subprocess.run(["git", "init", "-q", str(watched.folder / "inner")], check=True)
    watched.write("inner/file")
    assert set(watched.found()) == {"inner", "inner/file"}


def test_what_git_ignores_is_covered_up_to_a_limit(watched: Watched) -> None:
    watched.write(".gitignore", b"*.log\nmany\nfew\n")
    for number in range(20):
        watched.write(f"many/{number}")
    for number in range(3):
        watched.write(f"few/{number}")
    watched.write("a.log")
    watched.write("src/__pycache__/a.pyc")
    watched.index = watched.new_index(SnapshotLimits(ignored_files=10))
    assert set(watched.found()) == {
        ".gitignore", "few", "few/0", "few/1", "few/2", "a.log", "src",
    }  # fmt: skip
    assert set(watched.index.left_out) == {"many"}
    for number in range(8):
        watched.write(f"few/more{number}")
    watched.found()
    assert len([path for path in watched.index.left_out if path.startswith("few/more")]) == 2


def test_large_and_excluded_files_and_large_folders_are_left_out(watched: Watched) -> None:
    watched.write("large", b"x" * 2_000)
    watched.write("data/a.csv")
    watched.write("a")
    watched.index = watched.new_index(SnapshotLimits(max_file_bytes=1_000, excluded=("*.csv",)))
    found = watched.found()
    assert found["large"][1] is not None
    assert not found["large"][1].is_stored
    assert "data/a.csv" not in found
    assert watched.index.left_out["data/a.csv"].startswith("excluded")
    assert "large" in watched.index.left_out
    with pytest.raises(TooManyFiles, match="more than 2 files"):
        watched.new_index(SnapshotLimits(max_files=2)).refresh()


def test_a_damaged_content_is_told_as_such(watched: Watched) -> None:
    watched.write("a", b"content")
    ((_, state),) = watched.found().values()
    assert state is not None
    stored = watched.objects.folder / "objects" / state.content[:2] / state.content[2:]
    stored.chmod(0o600)
    for damaged in (b"", stored.read_bytes()[:-3], zlib.compress(b"blob 7\0another")):
        stored.write_bytes(damaged)
        with pytest.raises(OSError, match="damaged"):
            watched.objects.get(state.content)


def test_names_that_are_no_text_survive_the_log() -> None:
    name = os.fsdecode(b"/caf\xe9/\xff")
    assert stored_path(name).encode()
    assert real_path(stored_path(name)) == name


@pytest.mark.slow
async def test_what_a_job_did_is_known_until_it_is_stored_also_where_it_was_told(tmp_path: Path) -> None:
    project = (tmp_path / "project").resolve()
    project.mkdir()

    def recorder() -> Recorder:
        return Recorder(tmp_path / "checkpoints", lambda: [project], "s", scratch=tmp_path)

    killed = recorder()
    await killed.begin("job", None)
    (project / "a").write_text("a")
    (told,) = await killed.under_way()
    told_at = time.time()
    await asyncio.sleep(1.5)  # a sign of life comes each half second
    (project / "b").write_text("b")
    (all_of_it,) = await recorder().interrupted({})
    assert [change.path for change in all_of_it.changes] == [str(project / "a"), str(project / "b")]
    (rest,) = await recorder().interrupted({told.id: told_at})
    assert [change.path for change in rest.changes] == [str(project / "b")]


def test_a_folder_that_is_too_large_as_a_whole_is_not_read_at_all(watched: Watched) -> None:
    for number in range(3):
        watched.write(f"f{number}", os.urandom(400))
    with pytest.raises(TooManyFiles, match="more than 1e-06 GB"):
        watched.new_index(SnapshotLimits(max_bytes=1_000)).refresh()
    assert not (watched.base / "checkpoints/objects").exists()
    index = watched.new_index(SnapshotLimits(max_bytes=2_000))
    index.refresh()
    watched.write("more", os.urandom(2_100))
    with pytest.raises(TooManyFiles):
        index.refresh()
