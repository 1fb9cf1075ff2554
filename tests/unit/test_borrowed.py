"""Files that are as git's index has them are not copied, and come back whatever becomes of the repository."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from agentcli.infra.changes.folder_index import FolderIndex, SnapshotLimits
from agentcli.infra.changes.state import Objects

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

    def make(self, *init: str) -> None:
        git(self.base, "init", "-q", *init, str(self.folder))
        for name in _NAMES:
            self.write(name, f"{name}\n".encode() * 3)
        self.write("dollar", b"$Id$\n")
        self.write("umlaut", "Bär\n".encode("latin-1"))
        self.write("ends", b"one\r\ntwo\r\n")
        self.write(os.fsdecode(b"\xff/\xfe"), b"no text")
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
        return FolderIndex(self.root, self.base / "index", self.objects, SnapshotLimits(min_files_to_borrow=0))

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


_TURN = "git config filter.turn.clean 'tr a-z n-za-m'"  # as many bytes as before
_PLAIN = b"plain\n" * 3


@pytest.mark.parametrize(
    ("prepare", "commit_and_change", "read"),
    [
        (f"{_TURN}; echo 'plain filter=turn' >.gitattributes", "commit", _PLAIN),
        (f"{_TURN}; printf '[attr]special filter=turn\nplain special\n' >.gitattributes", "commit", _PLAIN),
        (f"{_TURN}; echo 'plain filter=turn' >.git/info/attributes", "commit", _PLAIN),
        (f"{_TURN}; echo 'plain filter=turn' >../mine; git config core.attributesFile $PWD/../mine", "commit", _PLAIN),
        ("echo '* text=auto' >.gitattributes", "commit", b"one\r\ntwo\r\n"),
        ("git config core.autocrlf input", "commit", b"one\r\ntwo\r\n"),
        ("echo 'dollar ident' >.gitattributes; echo '$Id: 1 $' >dollar", "commit", b"$Id: 1 $\n"),
        ("echo 'umlaut working-tree-encoding=ISO-8859-1' >.gitattributes", "commit", "Bär\n".encode("latin-1")),
        ("", "commit; git update-index --assume-unchanged plain; echo edited >plain", b"edited\n"),
        ("", "commit; git update-index --skip-worktree plain; echo edited >plain", b"edited\n"),
        ("echo one >racy", "git add -A; echo two >racy", b"two\n"),  # within the tick of the index
        (
            "git config core.trustctime false; git config core.checkStat minimal; touch -r plain ../times",
            "commit; printf 'nialp\nnialp\nnialp\n' >plain; touch -r ../times plain",
            b"nialp\n" * 3,
        ),
    ],
)  # fmt: skip
def test_what_git_converts_or_does_not_look_at_is_read(
    project: Project, prepare: str, commit_and_change: str, read: bytes
) -> None:
    project.make()
    commit = "commit() { sleep 0.05; git add -A; git -c user.name=a -c user.email=a@example.org commit -qm first; }"
    for script in (prepare, f"{commit}; {commit_and_change}"):
        subprocess.run(["bash", "-c", script], cwd=project.folder, check=True, capture_output=True)
    assert read in project.check()


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


_LATER = "sleep 0.05; git read-tree HEAD; git update-index --refresh"  # the index is written later than the files


@pytest.mark.parametrize(
    ("init", "script", "root", "copies_all"),
    [
        ("--object-format=sha256", "", "", True),
        ("-q", f"git worktree add -q ../tree; cd ../tree; {_LATER}", "../tree", False),
        ("-q", f"git gc -q; git clone -q --shared . ../clone; cd ../clone; {_LATER}", "../clone", False),
        ("-q", "", "deep", False),
        ("-q", "git -c protocol.file.allow=always submodule add -q $PWD sub", "", None),
        ("-q", "printf 'DIRC\\0\\0\\0\\2\\0\\0\\1\\0nothing' >.git/index", "", True),
        ("-q", "git update-index --split-index", "", None),
        ("-q", "git update-index --index-version 4", "", False),
        ("-q", "rm -rf .git/objects; mkdir .git/objects", "", True),
    ],
)  # fmt: skip
def test_kinds_of_repositories(project: Project, init: str, script: str, root: str, *, copies_all: bool | None) -> None:
    project.make(init)
    project.commit()
    subprocess.run(["bash", "-ec", script], cwd=project.folder, check=True, capture_output=True)
    project.root = (project.folder / root).resolve()
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


def test_omitted_files_are_not_treated_as_new(project: Project) -> None:
    project.make()
    project.write(".gitignore", b"large/\n")
    project.write("large/one", b"1" * 100)
    project.commit()
    limits = SnapshotLimits(max_ignored_bytes=10, min_files_to_borrow=0)
    index = FolderIndex(project.root, project.base / "index", project.objects, limits)
    assert "large/one" not in index.refresh()
    assert set(index.state.left_out) == {"large"}
    (project.folder / "large").rename(project.folder / "moved")
    assert "moved" not in index.refresh()
