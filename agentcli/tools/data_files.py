"""Defines the store of results that are too large for a conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from msgspec import Struct


class DataFile(Struct, frozen=True):
    """A kept result: its size in bytes, and the SHA-256 of its content in hex."""

    path: Path
    hash: str
    size: int


class DataFiles(Protocol):
    """The kept results of one session. Equal contents are stored once. Both methods block, and raise `OSError`."""

    def store(self, content: bytes, call_id: str) -> DataFile: ...

    def find(self, call_id: str) -> Path | None:
        """Return the newest file of a call of this session."""
        ...
