"""The dry run of a command: what it did to files, to be applied, in whole or in part, or discarded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct


class ChangeSummary(Struct, frozen=True, kw_only=True):
    """One change that can be applied by itself.

    `name` is unique, as a person calls it: relative to the workspace, or absolute. `diff` is a unified one, empty where
    the contents are the same, are no text or are too long; of a repository it is what git says. With more than one of
    `hunks` each of the diff's (`diff_hunks`) can be applied by itself. `files` and `size` count what a folder, a tree
    or a repository consists of, in files and bytes. `notes` are what a person should know before it is applied. What
    `is_obeyed` is run or obeyed by other programs unasked. `loses` says what it takes away: work (commits, stashes,
    what was not committed), or the tree: `.git`, or most of the files.
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
    """A change that was not applied: its name, and why, for the person."""

    name: str
    why: str


class ApplyOutcome(Struct, frozen=True):
    """The names of what was applied, and what was not although it was to be."""

    names: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()


class DryRunLimits(Struct, frozen=True):
    """Limits of what a command may have changed: files and folders, and bytes."""

    max_entries: int = 200_000
    max_bytes: int = 2_000_000_000


class DryRun(Protocol):
    """A command that ran without changing anything yet. `changes` has those first that need a look.

    `cached` are folders it made that say they are caches: they are not in the workspace, but later dry runs see them.
    `too_much` says why nothing of it can be applied, where it took or changed more than a dry run can hold.
    """

    @property
    def changes(self) -> Sequence[ChangeSummary]: ...

    @property
    def cached(self) -> Sequence[str]: ...

    @property
    def too_much(self) -> str: ...

    def paths_of(self, name: str) -> Sequence[Path]:
        """The real paths that a change is about."""

    def hides(self, path: Path) -> Literal["", "here", "always"]:
        """Say if there is something at a real path that the command could not see: only as a dry run, or always."""

    async def apply(
        self,
        names: Collection[str] | None = None,
        *,
        hunks: Mapping[str, Collection[int]] | None = None,
        note: Path | None = None,
    ) -> ApplyOutcome:
        """Bring these changes, or all, into the real folders; the others are discarded. Raises `ToolError`.

        Of a change that `hunks` names only those are applied, by number. A file that something else changed since the
        command started is a conflict, and stays as it is. `note` is a file in which the next start says what it has
        finished after a kill.
        """

    async def discard(self) -> None:
        """End it, after `apply` too; may be called again."""
