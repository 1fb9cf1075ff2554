"""A command that was tried: what it did to files, to be kept, kept in part, or dropped."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from agentcli.tools.command import CommandResult


class TriedChange(Protocol):
    """One change that can be kept by itself. `name` is unique; `diff` is empty where there is no text to compare."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str:
        """`created`, `changed`, `deleted` or `mode`."""
        ...

    @property
    def what(self) -> str:
        """`file`, `folder`, `link` and the like."""
        ...

    @property
    def diff(self) -> str: ...


class KeepConflict(Protocol):
    """A change that could not be kept, and why."""

    @property
    def name(self) -> str: ...

    @property
    def why(self) -> str: ...


class KeptChanges(Protocol):
    @property
    def names(self) -> Sequence[str]: ...

    @property
    def conflicts(self) -> Sequence[KeepConflict]: ...


class Trial(Protocol):
    """Exactly one of `keep` and `drop` ends it; `drop` may be called again."""

    @property
    def result(self) -> CommandResult: ...

    @property
    def changes(self) -> Sequence[TriedChange]: ...

    async def keep(self, names: Collection[str] | None = None) -> KeptChanges:
        """Bring changes into the real folders: those named, or all. Raises `ToolError`."""
        ...

    async def drop(self) -> None: ...
