"""Files that are as git's index has them are not copied, and come back whatever becomes of the repository."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agentcli.infra.changes.objects import Objects
from agentcli.infra.checkpoints.folder_index import FolderIndex
from agentcli.infra.checkpoints.listing import SnapshotLimits

_NAMES = ("plain", "deep/er/file", "two\nlines", "H 100644 " + "0" * 40 + " 0\tplain", "dollar", "umlaut", "ends")


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Project:
    """A repository with a few files, all of them tracked and long enough as they are, and the index of a folder."""

    def __init__(self, base: Path) -> None:
        self.base, self.folder = base, (base / "project").resolve()
        self.objects = Objects(base / "state/checkpoints")
        self.root = self.folder

    def make(self, *init: str, attributes: str = "") -> None:
        git(self.base, "init", "-q", *init, str(self.folder))
        if attributes:
            (self.folder / ".gitattributes").write_text(attributes)
        for name in _NAMES:
            self.write(name, f"{name}\n".encode() * 3)
        self.write("dollar", b"$Id$\n")
        self.write("umlaut", "Bär\n".encode("latin-1"))
        self.write("ends", b"one\r\ntwo\r\n")
        self.write("binary", random.Random(1).randbytes(10_000))

    def write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def commit(self) -> None:
        time.sleep(0.05)  # what was written just before the index could have been written again
        git(self.folder, "add", "-A")
        git(self.folder, "commit", "-qm", "first")

    def index(self) -> FolderIndex:
        return FolderIndex(self.root, self.base / "index", self.objects, SnapshotLimits(min_borrowed=0))

    def copied(self) -> set[bytes]:
        """The contents that were copied."""
        found = (self.objects.folder / "objects").glob("??/*")
        return {self.objects.get(f"{path.parent.name}{path.name}") for path in found}

    def contents(self) -> dict[str, bytes]:
        paths = (path for path in self.root.rglob("*") if path.is_file() and ".git" not in path.parts)
        return {str(path.relative_to(self.root)): path.read_bytes() for path in paths}

    def check(self) -> set[bytes]:
        """Look, remove everything with the repository, look again: each content is there. Gives what was copied."""
        whole = self.contents()
        self.index().refresh()
        copied = self.copied()
        for entry in self.root.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        gone = self.index().refresh()
        held = {path: self.objects.get(before.content) for path, (before, _) in gone.items() if before and before.size}
        assert held == {path: content for path, content in whole.items() if content}
        return copied


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_tracked_files_are_not_copied_and_come_back_without_the_repository(project: Project) -> None:
    project.make()
    project.commit()
    project.write("new", b"untracked")
    project.write("plain", b"changed")
    (project.folder / "binary").chmod(0o755)  # touched: it is read
    assert project.check() == {b"untracked", b"changed", random.Random(1).randbytes(10_000)}


def test_contents_come_back_after_a_gc_and_in_the_next_session(project: Project) -> None:
    project.make()
    project.commit()
    git(project.folder, "gc", "-q")
    before = project.index().refresh()["plain"][1]
    (project.folder / "plain").unlink()
    git(project.folder, "rm", "-q", "--cached", "-r", ".")
    git(project.folder, "commit", "-q", "--amend", "--allow-empty", "-m", "nothing")
    git(project.folder, "reflog", "expire", "--expire=now", "--all")
    git(project.folder, "gc", "-q", "--prune=now")
    found = project.index().refresh()
    assert found["plain"] == (before, None)
    assert before is not None
    assert project.objects.get(before.content) == b"plain\n" * 3


@pytest.mark.parametrize(
    ("attributes", "settings", "read"),
    [
        ("plain filter=turn\n", {"filter.turn.clean": "tr a-z n-za-m"}, "plain"),  # as many bytes as before
        ("* text=auto\n", {}, "ends"),
        ("", {"core.autocrlf": "input"}, "ends"),
        ("dollar ident\n", {}, "dollar"),
        ("umlaut working-tree-encoding=ISO-8859-1\n", {}, "umlaut"),
        ("[attr]special filter=turn\nplain special\n", {"filter.turn.clean": "tr a-z n-za-m"}, "plain"),
    ],
)
def test_what_git_converts_is_copied(project: Project, attributes: str, settings: dict[str, str], read: str) -> None:
    git(project.base, "init", "-q", str(project.folder))
    for name, value in settings.items():
        git(project.folder, "config", name, value)
    project.make(attributes=attributes)
    project.write("dollar", b"$Id: of another day $\n")
    project.commit()
    content = project.contents()[read]
    assert content in project.check()


@pytest.mark.parametrize("place", ["info/attributes", "attributesFile"])
def test_attributes_beside_the_working_tree_count(project: Project, place: str) -> None:
    project.make()
    git(project.folder, "config", "filter.turn.clean", "tr a-z n-za-m")
    text = "plain filter=turn\n"
    if place == "info/attributes":
        (project.folder / ".git/info/attributes").write_text(text)
    else:
        (project.base / "attributes").write_text(text)
        git(project.folder, "config", "core.attributesFile", str(project.base / "attributes"))
    project.commit()
    assert project.check() == {b"plain\n" * 3}


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_a_file_that_git_does_not_look_at_is_read(project: Project, flag: str) -> None:
    project.make()
    project.commit()
    git(project.folder, "update-index", flag, "plain")
    project.write("plain", b"edited")
    assert project.check() == {b"edited"}


def test_an_edit_within_the_tick_of_the_index_is_seen(project: Project) -> None:
    project.make()
    project.write("racy", b"one")
    git(project.folder, "add", "-A")
    project.write("racy", b"two")
    assert b"two" in project.check()


def test_an_edit_with_its_time_set_back_is_seen(project: Project) -> None:
    project.make()
    project.commit()
    git(project.folder, "config", "core.trustctime", "false")
    git(project.folder, "config", "core.checkStat", "minimal")
    times = (project.folder / "plain").stat()
    project.write("plain", b"nialp\n" * 3)
    os.utime(project.folder / "plain", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert project.check() == {b"nialp\n" * 3}


def test_no_program_of_a_repository_is_run(project: Project) -> None:
    project.make()
    project.commit()
    mark = project.base / "ran"
    script = project.folder / ".git/run"
    script.write_text(f"#!/bin/sh\ntouch {mark}\n")
    script.chmod(0o755)
    for name in (
        "core.fsmonitor",
        "core.sshCommand",
        "core.pager",
        "core.editor",
        "filter.turn.clean",
        "alias.ls-files",
    ):
        git(project.folder, "config", name, str(script))
    for hook in ("post-index-change", "fsmonitor-watchman", "pre-auto-gc"):
        shutil.copy(script, project.folder / ".git/hooks" / hook)
    (project.folder / ".git/info/attributes").write_text("deep/er/file filter=turn\n")
    assert project.check() == {b"deep/er/file\n" * 3}
    assert not mark.exists()


def _in_sha256(project: Project) -> None:
    project.make("--object-format=sha256")
    project.commit()


def _refresh_index(project: Project, name: str) -> None:
    """Work in another checkout, with an index written later than its files: what is as new as they are is read."""
    project.root = (project.base / name).resolve()
    time.sleep(0.05)
    git(project.root, "read-tree", "HEAD")
    git(project.root, "update-index", "--refresh")


def _in_a_worktree(project: Project) -> None:
    project.make()
    project.commit()
    git(project.folder, "worktree", "add", "-q", str(project.base / "tree"))
    _refresh_index(project, "tree")


def _with_alternates(project: Project) -> None:
    project.make()
    project.commit()
    git(project.folder, "gc", "-q")
    git(project.base, "clone", "-q", "--shared", str(project.folder), "clone")
    _refresh_index(project, "clone")


def _below_the_top(project: Project) -> None:
    project.make()
    project.commit()
    project.root = project.folder / "deep"


def _with_a_submodule(project: Project) -> None:
    project.make()
    project.commit()
    whole = Project(project.base / "other")
    whole.base.mkdir()
    whole.make()
    whole.commit()
    git(whole.folder, "submodule", "add", "-q", str(project.folder), "sub")
    whole.commit()
    project.root = whole.folder


def _of_names_that_are_no_text(project: Project) -> None:
    project.make()
    os.mkdir(os.fsencode(project.folder) + b"/\xff")  # noqa: PTH102
    project.write(os.fsdecode(b"\xff/\xfe"), b"no text")
    project.commit()


def _with_a_broken_index(project: Project) -> None:
    project.make()
    project.commit()
    (project.folder / ".git/index").write_bytes(b"DIRC\0\0\0\2\0\0\1\0nothing")


def _with_a_split_index(project: Project) -> None:
    project.make()
    project.commit()
    git(project.folder, "update-index", "--split-index")


def _with_version_4(project: Project) -> None:
    project.make()
    project.commit()
    git(project.folder, "update-index", "--index-version", "4")


def _without_its_objects(project: Project) -> None:
    project.make()
    project.commit()
    shutil.rmtree(project.folder / ".git/objects")
    (project.folder / ".git/objects").mkdir()


@pytest.mark.parametrize(
    ("make", "copies_all"),
    [
        (_in_sha256, True),
        (_in_a_worktree, False),
        (_with_alternates, False),
        (_below_the_top, False),
        (_with_a_submodule, None),
        (_of_names_that_are_no_text, False),
        (_with_a_broken_index, True),
        (_with_a_split_index, None),
        (_with_version_4, False),
        (_without_its_objects, True),
    ],
)
def test_kinds_of_repositories(project: Project, make: Callable[[Project], None], copies_all: bool | None) -> None:
    make(project)
    whole = set(project.contents().values())
    copied = project.check()
    assert copies_all is None or copied == (whole if copies_all else set())


def test_objects_on_another_disk_are_packed_beside_the_state(project: Project) -> None:
    if not os.access("/dev/shm", os.W_OK) or Path("/dev/shm").stat().st_dev == project.base.stat().st_dev:
        pytest.skip("there is no other disk")
    project.make()
    project.commit()
    git(project.folder, "gc", "-q")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        project.objects = Objects(Path(other) / "checkpoints")
        assert project.check() == set()


def test_what_was_only_left_out_is_not_taken_for_new(project: Project) -> None:
    project.make()
    project.write(".gitignore", b"large/\n")
    project.write("large/one", b"1" * 100)
    project.commit()
    limits = SnapshotLimits(ignored_bytes=10, min_borrowed=0)
    index = FolderIndex(project.root, project.base / "index", project.objects, limits)
    assert "large/one" not in index.refresh()
    assert set(index.left_out) == {"large"}
    (project.folder / "large").rename(project.folder / "moved")
    assert "moved" not in index.refresh()
