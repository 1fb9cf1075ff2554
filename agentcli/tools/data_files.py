"""Where results are kept that are too large for a conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from msgspec import Struct


class DataFile(Struct, frozen=True):
    """A kept result. `size` in bytes, times in seconds since 1970, `hash` the SHA-256 of the contents in hex."""

    path: Path
    hash: str
    size: int
    created: float
    accessed: float
    call_id: str
    session_id: str


class DataFiles(Protocol):
    """The kept results of one session. Equal contents are stored once. All methods block; they raise `OSError`."""

    def store(self, content: bytes, call_id: str) -> DataFile: ...

    def adopt(self, path: Path, call_id: str) -> DataFile:
        """As `keep` for a file that is there already; it is moved."""
        ...

    def find(self, call_id: str) -> DataFile | None:
        """Return the data file of a call of this session, the newest if there are several."""
        ...
