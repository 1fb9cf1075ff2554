"""Finds the repositories inside a workspace.

A command that makes a repository of its own can give it hooks and configuration; nothing but looking afterwards tells.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from agentcli.infra.sandbox.folder_walk import Extent, FolderWalk

# Full of folders, made by tools, and seldom with a repository in it.
_SHALLOW = frozenset(
    "node_modules .venv venv .tox .nox .mypy_cache .ruff_cache .pytest_cache .cache site-packages"
    " target dist build .gradle .next .nuxt .terraform bower_components Pods DerivedData".split()
)
_EXTENT = Extent(
    most_folders=20_000,
    longest_s=1.0,
    shallow=_SHALLOW,
    most_shallow=1_000,
    shallow_levels=2,
    skipped=frozenset((".git", "__pycache__")),
)


class Repositories:
    """Finds repositories, for all commands of a session."""

    def __init__(self) -> None:
        self._walk = FolderWalk(_EXTENT, _is_repository)

    def inside(self, root: str) -> list[str]:
        """The folders below `root`, itself not among them, that git would take for a repository; the nearest first.

        They have a `.git` in them, or look like the inside of one. What was made since the first time comes last.
        """
        return [path for path, is_repository in self._walk.inside(root) if is_repository and path != root]

    def is_partial(self, root: str) -> bool:
        """True if there were too many folders to look at all of them."""
        return self._walk.is_partial(root)


def _is_repository(folder: str, entries: Sequence[os.DirEntry[str]]) -> bool:
    names = {entry.name for entry in entries}
    return ".git" in names or names >= {"HEAD", "objects", "refs"}
