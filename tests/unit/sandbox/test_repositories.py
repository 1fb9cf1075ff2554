"""Finding the repositories in a workspace."""

from __future__ import annotations

import shutil
from pathlib import Path

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
    full = Repositories(most_folders=8)
    assert "w/x/y/z" in names(full.inside(str(tmp_path)), tmp_path)


def test_the_inside_of_a_repository_counts_where_it_lies_open(tmp_path: Path) -> None:
    """Git takes it for one when it is started there."""
    make(tmp_path, "bare/objects", "bare/refs", "half/objects")
    (tmp_path / "bare/HEAD").touch()
    assert names(Repositories().inside(str(tmp_path)), tmp_path) == ["bare"]


def test_new_ones_near_the_root_are_found_at_once_and_deep_ones_when_asked(tmp_path: Path) -> None:
    make(tmp_path, "a/b/c/d")
    finder = Repositories()
    assert finder.inside(str(tmp_path)) == []
    make(tmp_path, "new/.git", "a/b/c/d/.git")
    assert names(finder.inside(str(tmp_path)), tmp_path) == ["new"]
    assert names(finder.inside(str(tmp_path), is_fresh=True), tmp_path) == ["new", "a/b/c/d"]
    shutil.rmtree(tmp_path / "new")
    assert names(finder.inside(str(tmp_path), is_fresh=True), tmp_path) == ["a/b/c/d"]


def test_too_many_folders_are_said(tmp_path: Path) -> None:
    make(tmp_path, *(f"folder{number}" for number in range(20)))
    finder = Repositories(most_folders=5)
    finder.inside(str(tmp_path))
    assert finder.is_partial(str(tmp_path))


def test_links_are_not_followed(tmp_path: Path) -> None:
    make(tmp_path, "ws", "outside/.git")
    (tmp_path / "ws/link").symlink_to(tmp_path / "outside")
    (tmp_path / "ws/loop").symlink_to(tmp_path / "ws")
    assert Repositories().inside(str(tmp_path / "ws")) == []
