"""Turns what a command did to a folder into the pieces that a person decides about.

A piece is a file, a link, or a folder that is empty or whose mode changed. Other folders come and go with what is in
them. What only makes sense as a whole is one piece: the inside of a `.git`, and a folder where a file was or the other
way round.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import Struct

from agentcli.infra.sandbox.trial.tree_entries import Entry, Touched, has_same_content, open_content
from agentcli.tools.text_diff import unified_diff

LARGEST_TEXT = 256_000  # bytes of a file of which a diff is made
LONGEST_DIFFS = 2_000_000  # characters of all the diffs of one try

Kind = Literal["created", "changed", "deleted", "mode"]
What = Literal["file", "folder", "link", "pipe", "repository", "tree"]


class Side(Struct, frozen=True):
    """One side of a change: `mode` are the permission bits, `size` is in bytes, `target` where a link leads."""

    mode: int
    size: int = 0
    target: str = ""


class FileChange(Struct, frozen=True):
    """One piece. `path` is relative to `root`; `name` is unique, as a person calls it.

    `before` is None for what is new, `after` for what is gone, both for a piece of several `files`. `diff` is a unified
    one, empty where the contents are the same, are no text or are too long.
    """

    name: str
    root: Path
    path: str
    kind: Kind
    what: What
    before: Side | None = None
    after: Side | None = None
    diff: str = ""
    files: int = 1


class Piece(NamedTuple):
    """A change, the folder it is in, and the paths it consists of."""

    change: FileChange
    area: str
    touched: Touched
    paths: tuple[str, ...]


def pieces_of(
    area: str,
    touched: Touched,
    *,
    name_of: Callable[[str], str],
    budget: list[int],
) -> list[Piece]:
    """The changes in one folder, by path.

    `name_of` gives an absolute path's name for a person; `budget` holds the characters left for diffs. Raises
    `OSError`.
    """
    paths = [path for path in sorted({*touched.before, *touched.after}) if _differs(*touched.of(path))]
    wholes: dict[str, list[str]] = {}
    pieces: list[Piece] = []
    full = {parent for path in paths for parent in _parents(path)}
    for path in paths:
        whole = _whole(area, path, touched)
        before, after = touched.of(path)
        if whole is not None:
            wholes.setdefault(whole, []).append(path)
        elif not (path in full and _is_folder(before or after) and (before is None or after is None)):
            pieces.append(Piece(_change(area, path, before, after, name_of, budget), area, touched, (path,)))
    for path, inside in wholes.items():
        change = _change_of_many(area, path, touched, inside, name_of)
        pieces.append(Piece(change, area, touched, tuple(inside)))
    return sorted(pieces, key=lambda piece: piece.change.path)


def _whole(area: str, path: str, touched: Touched) -> str | None:
    """The path of the piece that this one is only a part of: the outermost of them."""
    for around in (*_parents(path), path):
        before, after = touched.of(around)
        is_git = os.path.basename(around or area) == ".git"  # noqa: PTH119  # relative paths as text
        if is_git and (around != path or _is_folder(before or after) or around == ""):
            return around
        if before is not None and after is not None and _is_folder(before) != _is_folder(after):
            return around
    return None


def _parents(path: str) -> list[str]:
    """The folders around a relative path, outermost first: `a/b/c` has the area itself, `a` and `a/b`."""
    if not path:
        return []
    parts = path.split("/")
    return ["", *("/".join(parts[:count]) for count in range(1, len(parts)))]


def _differs(before: Entry | None, after: Entry | None) -> bool:
    if before is None or after is None:
        return before is not after
    if (before.kind, before.mode, before.owner, before.target) != (after.kind, after.mode, after.owner, after.target):
        return True
    return before.kind == "file" and not has_same_content(before, after)


def _change(
    area: str,
    path: str,
    before: Entry | None,
    after: Entry | None,
    name_of: Callable[[str], str],
    budget: list[int],
) -> FileChange:
    entry = after or before
    assert entry is not None
    name = name_of(f"{area}/{path}" if path else area)
    is_mode = before is not None and after is not None and before.kind == after.kind
    if is_mode and before is not None and after is not None:
        same = before.kind == "folder" or (before.kind == "file" and has_same_content(before, after))
        is_mode = same and before.target == after.target
    diff = "" if is_mode else _diff(name, before, after, budget)
    kind: Kind = "created" if before is None else "deleted" if after is None else "mode" if is_mode else "changed"
    what: What = entry.kind if entry.kind != "other" else "file"
    return FileChange(name, Path(area), path, kind, what, _side(before), _side(after), diff)


def _change_of_many(
    area: str, path: str, touched: Touched, inside: list[str], name_of: Callable[[str], str]
) -> FileChange:
    before, after = touched.of(path)
    is_git = os.path.basename(path or area) == ".git"  # noqa: PTH119
    is_new = path in inside and before is None
    is_gone = path in inside and after is None
    files = sum(not _is_folder(touched.after.get(one) or touched.before.get(one)) for one in inside)
    name = name_of(f"{area}/{path}" if path else area)
    kind: Kind = "created" if is_new else "deleted" if is_gone else "changed"
    return FileChange(name, Path(area), path, kind, "repository" if is_git else "tree", files=files)


def _side(entry: Entry | None) -> Side | None:
    return None if entry is None else Side(entry.mode, entry.size if entry.kind == "file" else 0, entry.target)


def _diff(name: str, before: Entry | None, after: Entry | None, budget: list[int]) -> str:
    texts = [_text(entry) for entry in (before, after)]
    if budget[0] <= 0 or texts[0] is None or texts[1] is None:
        return ""
    diff = unified_diff(name, texts[0], texts[1])
    budget[0] -= len(diff)
    return diff if budget[0] >= 0 else ""


def _text(entry: Entry | None) -> str | None:
    """A file's text, none at all for no file; None for what is no text or is too long."""
    if entry is None:
        return ""
    if entry.kind != "file" or entry.size > LARGEST_TEXT:
        return None
    try:
        with open_content(entry) as file:
            text = os.read(file, LARGEST_TEXT + 1).decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text


def _is_folder(entry: Entry | None) -> bool:
    return entry is not None and entry.kind == "folder"
