"""Remembers the contents of files as a session saw them, so that nothing is changed that nobody looked at."""

from __future__ import annotations

import hashlib
from pathlib import Path

from agentcli.errors import ToolError


class FileLedger:
    """The contents of files as this session last saw them, by hash: never by time, which a checkout changes.

    Also what a person was shown of a file when asked about a call, so that nothing else is changed than they approved.
    """

    def __init__(self) -> None:
        self._seen: dict[Path, bytes] = {}
        self._approved: dict[tuple[str, Path], bytes] = {}

    def saw(self, path: Path, content: bytes) -> None:
        self.saw_digest(path, digest_of(content))

    def saw_digest(self, path: Path, digest: bytes) -> None:
        """As `saw`, for a file that was read piece by piece. `digest` is its SHA-256."""
        self._seen[path] = digest

    def hash_of(self, path: Path) -> str:
        """The beginning of a file's SHA-256 as it was last seen; empty where it was not."""
        return self._seen[path].hex()[:12] if path in self._seen else ""

    def replaced(self, path: Path, before: bytes, after: bytes) -> None:
        """Note a change of our own: who knew the contents before knows them now, nobody else."""
        if self._seen.get(path) == digest_of(before):
            self.saw(path, after)

    def require_current(self, path: Path, content: bytes) -> None:
        """Raises `ToolError` unless the file was read and is unchanged since."""
        seen = self._seen.get(path)
        if seen is None:
            raise ToolError(
                f"{path.name} exists and was not read in this session: read it first with file_read, "
                "or change parts of it with file_edit.",
                kind="validation_error",
            )
        if seen != digest_of(content):
            raise ToolError(f"{path.name} has changed since it was read: read it again.", kind="validation_error")

    def approve(self, call_id: str, path: Path, content: bytes) -> None:
        """Note what a call would change, as the person sees it when they are asked."""
        self._approved[call_id, path] = digest_of(content)

    def require_as_approved(self, call_id: str, path: Path, content: bytes) -> None:
        """Raises `ToolError` when the file is not what it was when a person was asked about this call."""
        approved = self._approved.pop((call_id, path), None)
        if approved is not None and approved != digest_of(content):
            raise ToolError(f"{path.name} has changed since it was approved: read it again.", kind="validation_error")


def digest_of(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
