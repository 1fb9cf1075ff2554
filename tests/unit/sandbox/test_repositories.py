"""Finding the repositories in a workspace, and walking its folders."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentcli.infra.sandbox.folder_walk import Extent, FolderWalk
from agentcli.infra.sandbox.git.repositories import Repositories


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)


def names(found: list[str], root: Path) -> list[str]:
    return [str(Path(path).relative_to(root)) for path in found]


def test_the_nearest_come_first_and_the_root_is_not_among_them(tmp_path: Path) -> None:
    make(tmp_path, ".git", "a/b/.git", "c/.git", "d/e", "node_modules/x/.git")
    (tmp_path / "d/e/.git").write_text("gitdir: elsewhere")
    assert names(Repositories().inside(str(tmp_path)), tmp_path) == ["c", "a/b", "d/e", "node_modules/x"]


def test_what_tools_make_is_looked_at_two_levels_deep_after_the_rest(tmp_path: Path) -> None:
    make(
        tmp_path, "build/.git", "build/_deps/x/.git", "build/a/b/c/.git", "dist/x/.git", "w/x/y/z/.git", "a/Pods/P/.git"
    )
    make(tmp_path, "a/__pycache__/x/.git", ".git/modules/.git")
    found = names(Repositories().inside(str(tmp_path)), tmp_path)
    assert found == ["w/x/y/z", "build", "dist/x", "a/Pods/P", "build/_deps/x"]


def test_the_inside_of_a_repository_counts_where_it_lies_open(tmp_path: Path) -> None:
    """Git takes it for one when it is started there."""
    make(tmp_path, "bare/objects", "bare/refs", "half/objects")
    (tmp_path / "bare/HEAD").touch()
    assert names(Repositories().inside(str(tmp_path)), tmp_path) == ["bare"]


@pytest.fixture
def walk() -> FolderWalk[list[str]]:
    extent = Extent(most_folders=5, longest_s=10, shallow=frozenset(["build"]), most_shallow=2, shallow_levels=1)
    return FolderWalk(extent, lambda path, entries: [entry.name for entry in entries if entry.is_file()])


CHANGES = """
import os, shutil, sys
from pathlib import Path
from agentcli.infra.sandbox.folder_walk import Extent, FolderWalk

root = Path(sys.argv[1])
extent = Extent(most_folders=100, longest_s=10, shallow=frozenset(["build"]), most_shallow=100)
walk = FolderWalk(extent, lambda path, entries: sorted(entry.name for entry in entries))

def found():
    return {os.path.relpath(path, root): names for path, names in walk.inside(str(root))}

def check(path, names):
    assert found().get(path) == names, (path, names, found())

(root / "a/b/c").mkdir(parents=True)
(root / "build/x/y").mkdir(parents=True)
check("a/b/c", [])
(root / "a/b/c/file").touch()
check("a/b/c", ["file"])
(root / "a/b/c/d/e/f/.git").mkdir(parents=True)
check("a/b/c/d/e/f", [".git"])
(root / "build/z/deep/er/.git").mkdir(parents=True)
(root / "a").rename(root / "moved")
check("a/b/c", None)
check("moved/b/c/d/e/f", [".git"])
(root / "moved/b/c/d/e/f/more").mkdir()
check("moved/b/c/d/e/f", [".git", "more"])
(root / "other/b").mkdir(parents=True)
found()
(root / "moved/b").rename(root / "was")
(root / "other/b").rename(root / "moved/b")
(root / "moved/b/new").mkdir()
check("moved/b", ["new"])
check("moved/b/c", None)
shutil.rmtree(root / "was")
(root / "was").mkdir()
(root / "was/x").mkdir()
check("was", ["x"])
stamp = (root / "was/x").stat()
(root / "was/x/made").touch()
os.utime(root / "was/x", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
check("was/x", ["made"])
for number in range(50):
    (root / "was" / str(number)).mkdir()
    check(f"was/{number}", [])
print("WATCHED" if walk._trees[str(root)].watch.is_complete else "COMPARED")
"""
WITHOUT_WATCHES = ("unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"', "sh")


@pytest.mark.parametrize(("before", "how"), [((), "WATCHED"), (WITHOUT_WATCHES, "COMPARED")])
def test_what_is_made_at_any_depth_is_found_at_once(tmp_path: Path, before: tuple[str, ...], how: str) -> None:
    if sys.platform != "linux" or subprocess.run([*before, "true"], check=False).returncode:
        pytest.skip("no kernel that notes changes, or no user namespaces, in which that can be taken away")
    command = [*before, sys.executable, "-c", CHANGES, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (how, "")


def test_too_many_folders_are_said_and_shallow_ones_have_room_of_their_own(
    tmp_path: Path, walk: FolderWalk[list[str]]
) -> None:
    make(tmp_path, "a", "b", "c", "d", "build/x/y", "build/z")
    assert names([path for path, _ in walk.inside(str(tmp_path))], tmp_path) == [
        ".",
        "a",
        "b",
        "c",
        "d",
        "build",
        "build/x",
    ]
    assert not walk.is_partial(str(tmp_path))
    make(tmp_path, "e", "f", "g", "h", "i", "j")
    walk.inside(str(tmp_path))
    assert walk.is_partial(str(tmp_path))
    assert "build/x" in names([path for path, _ in walk.inside(str(tmp_path))], tmp_path)  # it was seen before


def test_a_walk_that_ran_out_of_time_goes_on_with_the_next_command(tmp_path: Path) -> None:
    make(tmp_path, *(f"{number}/inside" for number in range(8)), "build/x")

    def look(path: str, entries: object) -> None:
        time.sleep(0.02)

    walk = FolderWalk(Extent(most_folders=100, longest_s=0.05, shallow=frozenset(["build"]), most_shallow=9), look)
    assert len(walk.inside(str(tmp_path))) < 10
    assert walk.is_partial(str(tmp_path))
    for _ in range(5):
        found = walk.inside(str(tmp_path))
    assert len(found) == 1 + 2 * 8 + 1  # of what is `shallow` only the folder itself
    assert not walk.is_partial(str(tmp_path))


def test_what_the_kernel_has_not_noted_is_found_after_a_while(tmp_path: Path, walk: FolderWalk[list[str]]) -> None:
    walk.inside(str(tmp_path))
    make(tmp_path, "a/b")
    tree = walk._trees[str(tmp_path)]
    tree.watch.take()  # as if another machine had made it
    tree.watched_until = 0
    assert names([path for path, _ in walk.inside(str(tmp_path))], tmp_path) == [".", "a", "a/b"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    make(tmp_path, "ws", "outside/.git")
    (tmp_path / "ws/link").symlink_to(tmp_path / "outside")
    (tmp_path / "ws/loop").symlink_to(tmp_path / "ws")
    assert Repositories().inside(str(tmp_path / "ws")) == []
