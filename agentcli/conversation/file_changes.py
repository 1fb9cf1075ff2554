"""The records of what calls did to files, and of what was taken back."""

from __future__ import annotations

from typing import Literal

import msgspec

FileKind = Literal["file", "folder", "link", "pipe"]


class FileState(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """A path's state. `content` is a link's target, or a file's blob id in the checkpoints; empty if it is not kept."""

    kind: FileKind
    mode: int
    content: str = ""
    size: int = 0

    @property
    def is_stored(self) -> bool:
        return self.kind != "file" or bool(self.content)


class FileChange(msgspec.Struct, frozen=True, array_like=True):
    """One path, absolute, before and after; None where nothing was there. See `stored_path` for how it is written."""

    path: str
    before: FileState | None
    after: FileState | None


class FilesChanged(msgspec.Struct, frozen=True, tag_field="kind", tag="files_changed", omit_defaults=True):
    """The changes that a call made to files; `left_out` names what was not looked at.

    If it is not `is_exact`, what others changed while the call ran counts as the call's.
    """

    id: str
    changes: tuple[FileChange, ...]
    is_exact: bool = True
    left_out: tuple[str, ...] = ()


class FilesRestored(msgspec.Struct, frozen=True, tag_field="kind", tag="files_restored", omit_defaults=True):
    """The person took back what the entries named by `takes_back` had done; `changes` is what that did to files.

    What they had done to the paths in `left` stays. An earlier `files_restored` that is taken back is done again.
    """

    takes_back: tuple[str, ...]
    changes: tuple[FileChange, ...] = ()
    left: tuple[str, ...] = ()


# Bytes of a name that are no UTF-8 are lone surrogates in Python, which JSON cannot hold; these code points stand for
# them in the log. They are the last of a private plane, and no name is known to use them.
_SURROGATES = {0xDC80 + n: 0x10FF80 + n for n in range(0x80)}
_STAND_INS = {stands_in: surrogate for surrogate, stands_in in _SURROGATES.items()}


def stored_path(path: str) -> str:
    """A path as the log holds it."""
    return path.translate(_SURROGATES)


def real_path(stored: str) -> str:
    """A path of the log as the system knows it."""
    return stored.translate(_STAND_INS)
