"""A command that was tried: what it did to files, to be kept, kept in part, or dropped."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from agentcli.tools.command import CommandResult


class TriedChange(Struct, frozen=True):
    """One change that can be kept by itself.

    `name` is unique, as a person calls it: relative to the workspace, or absolute. `diff` is a unified one, empty where
    the contents are the same, are no text or are too long; of a repository it is what git says. With more than one of
    `hunks` each of the diff's (`diff_hunks`) can be kept by itself. `files` and `size`
    count what a folder, a tree or a repository consists of, in files and bytes. `notes` are what a person should know
    before they keep it. What `is_obeyed` is run or obeyed by other programs unasked. `loses` says what it takes away:
    work (commits, stashes, what was not committed), or the tree: `.git`, or most of the files.
    """

    name: str
    kind: Literal["created", "changed", "deleted", "mode"]
    what: Literal["file", "folder", "link", "pipe", "repository", "tree"]
    diff: str = ""
    hunks: int = 1
    files: int = 1
    size: int = 0
    notes: tuple[str, ...] = ()
    is_obeyed: bool = False
    loses: Literal["", "work", "tree"] = ""


class Conflict(Struct, frozen=True):
    """A change that was not kept: its name, and why, for the person."""

    name: str
    why: str


class Kept(Struct, frozen=True):
    """The names of what was kept, and what was not although it was to be."""

    names: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()


class TryLimits(Struct, frozen=True):
    """Limits of what a tried command may have changed: files and folders, and bytes."""

    most_entries: int = 200_000
    most_bytes: int = 2_000_000_000


class Trial(Protocol):
    """A command that was tried in a sandbox. `drop` ends it, after `keep` too, and may be called again."""

    @property
    def result(self) -> CommandResult: ...

    @property
    def changes(self) -> Sequence[TriedChange]:
        """Those that need a look come first."""
        ...

    @property
    def cached(self) -> Sequence[str]:
        """Folders it made that say they are caches: they are not in the workspace, but later tries see them."""
        ...

    @property
    def too_much(self) -> str:
        """Says why nothing of it can be kept, where it took or changed more than a try can hold; else empty."""
        ...

    def paths_of(self, name: str) -> Sequence[Path]:
        """The real paths that a change is about."""
        ...

    def hides(self, path: Path) -> Literal["", "here", "always"]:
        """Tell if there is something at a real path that the command could not see: only as it is a try, or always."""
        ...

    async def keep(
        self,
        names: Collection[str] | None = None,
        *,
        parts: Mapping[str, Collection[int]] | None = None,
        note: Path | None = None,
    ) -> Kept:
        """Bring changes into the real folders: those named, or all. Raises `ToolError`.

        Of a change that `parts` names only these hunks are kept, by number. `note` is a file in which the next start
        says what it has finished after a kill.
        """
        ...

    async def drop(self) -> None: ...
