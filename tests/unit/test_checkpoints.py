"""What a folder holds is taken down byte for byte, and what changed in it is found."""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
import zlib
from pathlib import Path

import pytest

from agentcli.conversation.entries import FileState
from agentcli.infra.changes.folder_index import Difference, FolderIndex, FolderTooLarge, SnapshotLimits
from agentcli.infra.changes.recorder import Recorder
from agentcli.infra.changes.state import Objects


class Watched:
    """A folder and its index."""

    def __init__(self, base: Path) -> None:
        self.folder, self.base = (base / "project").resolve(), base
        self.folder.mkdir()
        self.objects = Objects(base / "checkpoints")
        self.index = self.new_index()

    def new_index(self, limits: SnapshotLimits = SnapshotLimits()) -> FolderIndex:  # noqa: B008  # frozen
        return FolderIndex(self.folder, self.base / "index", self.objects, limits)

    def run(self, script: str) -> None:
        subprocess.run(["bash", "-c", script], cwd=self.folder, check=True)

    def found(self) -> dict[str, Difference]:
        return self.index.refresh()

    def held(self, state: FileState | None) -> bytes:
        assert state is not None
        return self.objects.get(state.content)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


@pytest.mark.parametrize(
    ("before", "change", "found"),
    [
        (
            "mkdir sub; echo >same; echo 1 >sub/old; echo 1 >gone",
            "echo 2 >sub/old; rm gone; mkdir sub/new; echo >sub/new/deep",
            {"sub/old": "file file", "gone": "file -", "sub/new": "- folder", "sub/new/deep": "- file"},
        ),
        (
            "echo >tool; ln -s tool link; mkdir empty; mkfifo pipe",
            "chmod 751 tool; chmod 700 empty; ln -sf elsewhere link; rm pipe; mkfifo -m 600 pipe",
            {"tool": "file file", "empty": "folder folder", "link": "link link", "pipe": "pipe pipe"},
        ),
        ("echo >a", "rm a; mkdir a; echo >a/b", {"a": "file folder", "a/b": "- file"}),
        ("mkdir a; echo >a/b", "rm -r a; echo >a", {"a": "folder file", "a/b": "file -"}),
        ("echo >a", "git init -q inner; echo >inner/file", {"inner": "- folder", "inner/file": "- file"}),
        ("echo >a", "git init -q --bare bare", {"bare": "- folder"}),
        ("mkdir a; echo >a/b", "mv a c", {"a": "folder -", "a/b": "file -", "c": "- folder", "c/b": "- file"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_new_session", [False, True])
def test_a_second_look_finds_what_changed_and_nothing_else(
    watched: Watched, before: str, change: str, found: dict[str, str], *, is_new_session: bool
) -> None:
    def kinds() -> dict[str, str]:
        return {path: " ".join(one.kind if one else "-" for one in both) for path, both in watched.found().items()}

    watched.run(before)
    assert all(kind.startswith("- ") for kind in kinds().values())
    time.sleep(0.05)  # what is written within a tick of the clock is read again
    for script, expected in (("", {}), (change, found)):
        watched.run(script)
        if is_new_session:
            watched.index = watched.new_index()
        assert kinds() == expected
    (watched.base / "index").write_bytes(b"damaged")  # then all is new
    watched.index = watched.new_index()
    assert all(kind.startswith("- ") for kind in kinds().values())


def test_changes_within_a_tick_of_the_clock_are_seen(watched: Watched) -> None:
    path = watched.folder / "a"
    path.write_bytes(b"0000")
    watched.found()
    for number in range(1, 200):
        path.write_bytes(b"%04d" % number)  # as many bytes each time
        ((_, now),) = watched.found().values()
        assert watched.held(now) == b"%04d" % number


def test_contents_are_what_they_are_whatever_git_would_make_of_them(watched: Watched) -> None:
    contents = {
        ".gitattributes": b"* text=auto eol=crlf filter=none ident\n",
        "a": b"one\r\ntwo\n$Id$\n\xff\0",
        "large": random.Random(1).randbytes(3_000_000),
    }
    for name, content in contents.items():
        (watched.folder / name).write_bytes(content)
    found = watched.found()
    assert {name: watched.held(now) for name, (_, now) in found.items()} == contents
    id = found["a"][1].content if found["a"][1] else ""
    git = ["git", "--git-dir", str(watched.objects.folder), "cat-file", "-p", id]
    assert subprocess.run(git, check=True, capture_output=True).stdout == contents["a"]
    assert b"error" not in subprocess.run([*git[:3], "fsck"], check=True, capture_output=True).stderr
    stored = watched.objects.folder / "objects" / id[:2] / id[2:]
    stored.chmod(0o600)
    for damaged in (b"", stored.read_bytes()[:-3], zlib.compress(b"blob 7\0another")):
        stored.write_bytes(damaged)
        with pytest.raises(OSError, match="damaged"):
            watched.objects.get(id)


def test_ignored_files_are_covered_up_to_a_limit(watched: Watched) -> None:
    watched.run(
        "printf '*.log\nmany\nfew\n' >.gitignore; mkdir -p many few src/__pycache__; touch many/{1..20}"
        " few/{1..3} a.log src/__pycache__/a.pyc"
    )
    watched.index = watched.new_index(SnapshotLimits(max_ignored_files=10))
    assert set(watched.found()) == {".gitignore", "few", "few/1", "few/2", "few/3", "a.log", "src"}
    assert set(watched.index.state.left_out) == {"many"}
    watched.run("touch few/more{1..8}")
    watched.found()
    assert len([path for path in watched.index.state.left_out if path.startswith("few/more")]) == 2


def test_large_and_excluded_files_and_large_folders_are_left_out(watched: Watched) -> None:
    watched.run("head -c 2000 /dev/zero >large; mkdir data; touch data/a.csv a")
    watched.index = watched.new_index(SnapshotLimits(max_file_bytes=1_000, excluded=("*.csv",)))
    large = watched.found()["large"][1]
    assert large is not None
    assert not large.is_stored
    assert set(watched.index.state.left_out) == {"data/a.csv", "large"}
    with pytest.raises(FolderTooLarge, match="more than 2 files"):
        watched.new_index(SnapshotLimits(max_files=2)).refresh()


def test_a_folder_that_is_too_large_as_a_whole_is_not_read_at_all(watched: Watched) -> None:
    watched.run("for n in 1 2 3; do head -c 400 /dev/urandom >$n; done")
    with pytest.raises(FolderTooLarge, match="more than 1e-06 GB"):
        watched.new_index(SnapshotLimits(max_bytes=1_000)).refresh()
    assert not (watched.base / "checkpoints/objects").exists()
    index = watched.new_index(SnapshotLimits(max_bytes=2_000))
    index.refresh()
    watched.run("head -c 2100 /dev/urandom >more")
    with pytest.raises(FolderTooLarge):
        index.refresh()


@pytest.mark.slow
async def test_changes_of_a_killed_job_are_remembered_until_they_are_stored(tmp_path: Path) -> None:
    project = (tmp_path / "project").resolve()
    project.mkdir()

    def recorder() -> Recorder:
        return Recorder(folder=tmp_path / "checkpoints", roots=lambda: [project], session_id="s", scratch=tmp_path)

    killed = recorder()
    await killed.begin("job", None)
    (project / "a").write_text("a")
    (told,) = await killed.changes_in_progress()
    told_at = time.time()
    await asyncio.sleep(1.5)  # a sign of life comes each half second
    (project / "b").write_text("b")
    for stored in ({}, {told.id: told_at}):  # what is stored twice is taken back once
        (all_of_it,) = await recorder().interrupted(stored)
        assert [change.path for change in all_of_it.changes] == [str(project / "a"), str(project / "b")]
    assert await recorder().interrupted({told.id: time.time()}) == []


async def test_what_a_call_names_while_a_job_runs_is_its_own(tmp_path: Path) -> None:
    project = (tmp_path / "project").resolve()
    project.mkdir()
    recorder = Recorder(folder=tmp_path / "checkpoints", roots=lambda: [project], session_id="s", scratch=tmp_path)
    job = await recorder.begin("job", None)
    edit = await recorder.begin("edit", [project / "a"])
    for name in "ab":
        (project / name).write_text(name)
    for mark, name in ((edit, "a"), (job, "b")):
        changed = await recorder.end(mark)
        assert changed is not None
        assert [change.path for change in changed.changes] == [str(project / name)]
    await recorder.aclose()


async def test_a_start_that_is_cancelled_leaves_nothing_under_way(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    roots = [(tmp_path / "project").resolve()]
    recorder = Recorder(folder=tmp_path / "checkpoints", roots=lambda: roots, session_id="s", scratch=tmp_path)
    starting = asyncio.create_task(recorder.begin("call", None))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert await recorder.changes_in_progress() == []
    assert not (tmp_path / "checkpoints/under_way/s").exists()
    (roots[0] / "a").write_text("mine")
    assert await recorder.changes_in_progress() == []
