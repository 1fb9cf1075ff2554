"""The records of the changes that calls made to files, and of those that were undone."""

from __future__ import annotations

from typing import Literal

import msgspec

FileKind = Literal["file", "folder", "link", "pipe"]


class FileState(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """The state of a path. `content` is a link's target, or the blob id of a file that the checkpoints keep."""

    kind: FileKind
    mode: int
    content: str = ""
    size: int = 0

    @property
    def is_stored(self) -> bool:
        return self.kind != "file" or bool(self.content)


class FileChange(msgspec.Struct, frozen=True, array_like=True):
    """The states of one absolute path before and after; None if nothing was there. `stored_path` has its form."""

    path: str
    before: FileState | None
    after: FileState | None


class FilesChanged(msgspec.Struct, frozen=True, tag_field="kind", tag="files_changed", omit_defaults=True):
    """The changes that a call made to files; `left_out` names the paths that were not compared.

    Unless it `is_exact`, the changes of other programs while the call ran count as the call's.
    """

    id: str
    changes: tuple[FileChange, ...]
    is_exact: bool = True
    left_out: tuple[str, ...] = ()


class FilesRestored(msgspec.Struct, frozen=True, tag_field="kind", tag="files_restored", omit_defaults=True):
    """The person undid the changes of the entries whose ids are in `takes_back`; `changes` is the effect on files.

    The paths in `left` stay as they are. If an earlier `FilesRestored` is undone, its changes are reapplied.
    """

    takes_back: tuple[str, ...]
    changes: tuple[FileChange, ...] = ()
    left: tuple[str, ...] = ()


# Bytes of a name that are no UTF-8 are lone surrogates in Python, which JSON cannot hold. In the log, code points from
# the end of a private plane replace them; no name is known to use these.
_SURROGATES = {0xDC80 + n: 0x10FF80 + n for n in range(0x80)}
_STAND_INS = {stands_in: surrogate for surrogate, stands_in in _SURROGATES.items()}


def stored_path(path: str) -> str:
    """Return a path as the log holds it."""
    return path.translate(_SURROGATES)


def real_path(stored: str) -> str:
    """Return a path of the log as the system knows it."""
    return stored.translate(_STAND_INS)
