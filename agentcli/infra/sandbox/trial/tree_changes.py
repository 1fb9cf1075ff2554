"""Turns what a command did to a folder into the pieces that a person decides about.

A piece is a file, a link, or a folder that is empty or whose mode changed. Other folders come and go with what is in
them. What only makes sense as a whole is one piece: the inside of a `.git`, a folder where a file was or the other way
round, and a folder that came or went with much in it. What other programs obey is never part of another piece.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from agentcli.infra.sandbox.trial.tree_entries import Entry, Touched, copy_attributes, has_same_content, open_content
from agentcli.safety.paths.protected import is_protected
from agentcli.tools.text.diff import diff_hunks, unified_diff, with_hunks
from agentcli.tools.trial import TriedChange

LARGEST_TEXT = 256_000  # bytes of a file of which a diff is made
LONGEST_DIFFS = 2_000_000  # characters of all the diffs of one try
MUCH = 8  # more files than these make a folder that came or went one piece

_MOST_NAMED = 5
INSTALLED = frozenset((".venv", "venv", "node_modules", "site-packages", "vendor"))


class Piece(NamedTuple):
    """A change, the folder it is in, and the paths it consists of, relative to that folder.

    A `root` is the one outermost path of a piece with all that is in it, and nothing else is in it.
    """

    change: TriedChange
    area: str
    touched: Touched
    paths: tuple[str, ...]
    root: str = ""


def pieces_of(area: str, touched: Touched, *, name_of: Callable[[str], str], budget: list[int]) -> list[Piece]:
    """The changes in one folder, by path.

    `name_of` gives an absolute path's name for a person; `budget` holds the characters left for diffs. Raises
    `OSError`.
    """
    paths = [path for path in sorted({*touched.before, *touched.after}) if _differs(*touched.of(path))]
    wholes = _Wholes(area, touched, paths)
    inside: dict[str, list[str]] = {}
    pieces: list[Piece] = []
    full = {parent for path in paths for parent in parents_of(path)}
    for path in paths:
        whole = wholes.around(path)
        before, after = touched.of(path)
        if whole is not None:
            inside.setdefault(whole, []).append(path)
        elif not (path in full and _is_folder(before or after) and (before is None or after is None)):
            pieces.append(Piece(_change(area, path, before, after, name_of, budget), area, touched, (path,)))
    for path, those in inside.items():
        everything = {one for one in (*touched.before, *touched.after) if one == path or one.startswith(f"{path}/")}
        root = path if path and everything == {*those} else ""
        change = _change_of_many(area, path, touched, those, name_of)
        pieces.append(Piece(change, area, touched, tuple(those), root))
    return pieces


def told_path(path: str) -> str:
    """A path for a person and the log; bytes that are no UTF-8 are written as `\\xff`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def with_parts(piece: Piece, chosen: Collection[int], made: Path) -> Piece:
    """The piece with only some of the hunks of its one file, whose contents are written to `made`. Raises `OSError`."""
    path = piece.paths[0]
    before, after = piece.touched.of(path)
    assert before is not None
    assert after is not None
    old, new = (_content(entry).decode(errors="surrogateescape") for entry in (before, after))
    made.write_bytes(with_hunks(old, new, chosen).encode(errors="surrogateescape"))
    with open_content(after) as source, made.open("rb") as target:
        copy_attributes(source, target.fileno())
    entry = after._replace(where=str(made), size=made.stat().st_size)
    return piece._replace(touched=Touched({path: before}, {path: entry}, {path} & piece.touched.stale))


def by_weight(piece: Piece) -> tuple[bool, bool, bool, str]:
    """Sorts those first that need a look."""
    change = piece.change
    return (not change.is_obeyed, not change.loses, not change.notes, change.name)


class _Wholes:
    """Finds the piece that a path is only a part of."""

    def __init__(self, area: str, touched: Touched, paths: Sequence[str]) -> None:
        self._area = area
        self._touched = touched
        counts = Counter(parent for path in paths for parent in parents_of(path))
        self._large = {path for path in paths if counts[path] > MUCH and self._came_or_went(path)}

    def around(self, path: str) -> str | None:
        """The path of the outermost of them; what is obeyed is no part of a large folder."""
        large = None
        for around in (*parents_of(path), path):
            before, after = self._touched.of(around)
            is_git = _is_git(self._area, around, self._touched)
            if is_git and (around != path or _is_folder(before or after) or around == ""):
                return around
            if before is not None and after is not None and _is_folder(before) != _is_folder(after):
                return around
            if large is None and around in self._large:
                large = around
        return None if large is None or is_protected(PurePath(path)) else large

    def _came_or_went(self, path: str) -> bool:
        before, after = self._touched.of(path)
        return (before is None or after is None) and _is_folder(before or after) and path != ""


def _is_git(area: str, path: str, touched: Touched) -> bool:
    """True for the folder of a repository: `.git`, or a new one of any name that git would take for a bare one."""
    if os.path.basename(path or area) == ".git":  # noqa: PTH119  # relative paths as text
        return True
    return all(os.path.join(path, name) in touched.after for name in ("HEAD", "objects", "refs"))  # noqa: PTH118


def parents_of(path: str) -> list[str]:
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
    area: str, path: str, before: Entry | None, after: Entry | None, name_of: Callable[[str], str], budget: list[int]
) -> TriedChange:
    entry = after or before
    assert entry is not None
    name = name_of(f"{area}/{path}" if path else area)
    is_mode = before is not None and after is not None and before.kind == after.kind
    if is_mode and before is not None and after is not None:
        same = before.kind == "folder" or (before.kind == "file" and has_same_content(before, after))
        is_mode = same and before.target == after.target
    told = None if is_mode else _diff(name, before, after, budget)
    diff, hunks = told or ("", 1)
    is_obeyed = is_protected(PurePath(path))
    return TriedChange(
        name,
        "created" if before is None else "deleted" if after is None else "mode" if is_mode else "changed",
        entry.kind if entry.kind != "other" else "file",
        diff,
        1 if is_obeyed else hunks,
        size=entry.size if entry.kind == "file" else 0,
        notes=tuple(_notes(path, before, after, is_shown=is_mode or told is not None)),
        is_obeyed=is_obeyed,
    )


def _notes(path: str, before: Entry | None, after: Entry | None, *, is_shown: bool) -> list[str]:
    notes = []
    if installed := INSTALLED.intersection(path.split("/")):
        notes.append(f"in {min(installed)}")
    if after is not None and after.kind == "link":
        notes.append(f"leads to {told_path(after.target)}")
    if before is not None and after is not None and before.mode != after.mode and before.kind == after.kind:
        notes.append(f"mode {before.mode:o} → {after.mode:o}")
    elif before is None and _is_program(after):
        notes.append("executable")
    if not is_shown and after is not None and after.kind == "file":
        old = f"{before.size:,} → " if before is not None and before.kind == "file" else ""
        notes.append(f"contents not shown: {old}{after.size:,} bytes")
    return notes


def _is_program(entry: Entry | None) -> bool:
    return entry is not None and entry.kind == "file" and bool(entry.mode & 0o111)


def _change_of_many(
    area: str, path: str, touched: Touched, inside: list[str], name_of: Callable[[str], str]
) -> TriedChange:
    before, after = touched.of(path)
    is_git = _is_git(area, path, touched)
    is_new = path in inside and before is None
    is_gone = path in inside and after is None
    entries = [(one, touched.after.get(one) or touched.before[one]) for one in inside]
    files = [(one, entry) for one, entry in entries if entry.kind != "folder"]
    notes = []
    if installed := INSTALLED.intersection(path.split("/")):
        notes.append(f"in {min(installed)}")
    if not is_git and not is_gone:
        programs = [one for one, entry in files if one in touched.after and _is_program(entry)]
        notes += _counted("executable", programs, path)
        links = [
            told_path(f"{one} → {entry.target}")
            for one, entry in files
            if one in touched.after and entry.kind == "link"
        ]
        notes += _counted("link", links, path)
    what = "repository" if is_git else "folder" if is_new != is_gone else "tree"
    return TriedChange(
        name_of(f"{area}/{path}" if path else area),
        "created" if is_new else "deleted" if is_gone else "changed",
        what,  # type: ignore[arg-type]  # one of those
        files=len(files),
        size=sum(entry.size for _, entry in files if entry.kind == "file"),
        notes=tuple(notes),
        # Of a repository that was there, what git would run or obey cannot be written by commands.
        is_obeyed=is_new if is_git else is_protected(PurePath(path)),
        loses="tree" if is_git and is_gone else "",
    )


def _counted(what: str, found: Sequence[str], path: str) -> list[str]:
    if not found:
        return []
    named = ", ".join(told_path(one.removeprefix(f"{path}/")) for one in found[:_MOST_NAMED])
    more = f" and {len(found) - _MOST_NAMED:,} more" if len(found) > _MOST_NAMED else ""
    return [f"{len(found):,} {what}{'s' if len(found) > 1 else ''}: {named}{more}"]


def _diff(name: str, before: Entry | None, after: Entry | None, budget: list[int]) -> tuple[str, int] | None:
    """The diff, and the number of its parts that can be kept; None where there is none although something is there."""
    old, new = _text(before), _text(after)
    if budget[0] <= 0 or old is None or new is None:
        return None
    diff = unified_diff(name, old, new)
    budget[0] -= len(diff)
    hunks = len(diff_hunks(diff))
    shows_less = "\r" in old + new and with_hunks(old, new, range(hunks)) != new  # line ends changed
    if shows_less or "\n" in name:
        hunks = 1
    return (diff, max(hunks, 1)) if budget[0] >= 0 else None


def _text(entry: Entry | None) -> str | None:
    """A file's text, none at all for no file; None for what is no text or is too long."""
    if entry is None or entry.kind != "file":
        return ""
    if entry.size > LARGEST_TEXT:
        return None
    try:
        text = _content(entry).decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text


def _content(entry: Entry) -> bytes:
    with open_content(entry) as file:
        return os.read(file, LARGEST_TEXT + 1)


def _is_folder(entry: Entry | None) -> bool:
    return entry is not None and entry.kind == "folder"
