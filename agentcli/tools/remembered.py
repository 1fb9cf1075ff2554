"""The memory of a session beyond its requests: its whole log, and the project's memory files."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from agentcli.llm.messages import Document, Image


class Past(Protocol):
    """All that was said and done in a session, also what its requests no longer hold."""

    def entry(self, id: str) -> tuple[str, tuple[Image | Document, ...]] | None:
        """An entry whole, by its number in the log or its id: its text, and its images and documents."""
        ...

    def search(self, query: str) -> list[str]:
        """Excerpts of entries, each with its number, the best first."""
        ...


class Memory(Protocol):
    """A project's memory files, by relative names. Each method but `index` raises `ToolError`; all of them block."""

    def index(self) -> list[tuple[str, str]]:
        """The files, each with its first line."""
        ...

    def view(self, name: str) -> str: ...

    def write(self, name: str, text: str) -> None:
        """Make or replace a file; one that is there must have been viewed as it is now."""
        ...

    def append(self, name: str, text: str) -> None:
        """Add a line to a file, which is made where it is not there."""
        ...

    def delete(self, name: str) -> None: ...

    def place_of(self, name: str) -> Path:
        """Where a file is, or would be."""
        ...
