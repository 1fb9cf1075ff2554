"""Finding the repositories in a workspace, and walking its folders."""

from __future__ import annotations

import shutil
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


def test_new_ones_near_the_root_are_found_at_once(tmp_path: Path) -> None:
    make(tmp_path, "a/b/c/d")
    finder = Repositories()
    assert finder.inside(str(tmp_path)) == []
    make(tmp_path, "new/.git", "a/b/c/d/.git")
    assert names(finder.inside(str(tmp_path)), tmp_path) == ["new"]


@pytest.fixture
def walk() -> FolderWalk[list[str]]:
    extent = Extent(
        most_folders=5, longest_s=10, fresh_levels=1, shallow=frozenset(["build"]), most_shallow=2, shallow_levels=1
    )
    return FolderWalk(extent, lambda path, entries: [entry.name for entry in entries if entry.is_file()])


def test_deep_folders_are_looked_at_where_the_workspace_changed(tmp_path: Path, walk: FolderWalk[list[str]]) -> None:
    make(tmp_path, "a/b/c")

    def found(*, is_changed: bool = False) -> dict[str, list[str]]:
        return {Path(path).name: names for path, names in walk.inside(str(tmp_path), is_changed=is_changed) if names}

    assert found() == {}
    (tmp_path / "a/b/c/file").touch()
    assert found() == {}
    assert found(is_changed=True) == {"c": ["file"]}
    shutil.rmtree(tmp_path / "a/b")
    assert found(is_changed=True) == {}


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
    make(tmp_path, "e", "f")
    walk.inside(str(tmp_path), is_changed=True)
    assert walk.is_partial(str(tmp_path))
    assert "build/x" in names([path for path, _ in walk.inside(str(tmp_path))], tmp_path)  # it was seen before


def test_links_are_not_followed(tmp_path: Path) -> None:
    make(tmp_path, "ws", "outside/.git")
    (tmp_path / "ws/link").symlink_to(tmp_path / "outside")
    (tmp_path / "ws/loop").symlink_to(tmp_path / "ws")
    assert Repositories().inside(str(tmp_path / "ws")) == []
