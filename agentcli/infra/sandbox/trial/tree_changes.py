"""Turns what a command did to a folder into the pieces that a person decides about.

A piece is a file, a link, or a folder that is empty or whose mode changed. Other folders come and go with what is in
them. What only makes sense as a whole is one piece: the inside of a `.git`, a folder where a file was or the other way
round, and a folder that came or went with much in it. What other programs obey is never part of another piece.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from msgspec.structs import replace

from agentcli.infra.sandbox.trial.git_words import InGitsWords
from agentcli.infra.sandbox.trial.tree_entries import Entry, Touched, copy_attributes, has_same_content, open_content
from agentcli.safety.paths.protected import is_protected
from agentcli.tools.text.diff import diff_hunks, unified_diff, with_hunks
from agentcli.tools.trial import TriedChange

LARGEST_TEXT = 256_000  # bytes of a file of which a diff is made
LONGEST_DIFFS = 2_000_000  # characters of all the diffs of one try
MUCH = 8  # more files than these make a folder that came or went one piece
HANDFUL = 5  # more files than these have to go, for most of a tree to go

_MOST_NAMED = 5
_INSTALLED = frozenset((".venv", "venv", "node_modules", "site-packages", "vendor"))

_NOT_COUNTED = _INSTALLED | {".git"}


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
    """The changes in one folder, by path; those that need a look first.

    `name_of` gives an absolute path's name for a person; `budget` holds the characters left for diffs. Raises
    `OSError`.
    """
    paths = [path for path in sorted({*touched.before, *touched.after}) if _differs(*touched.of(path))]
    wholes = _Wholes(area, touched, paths)
    inside: dict[str, list[str]] = {}
    pieces: list[Piece] = []
    full = {parent for path in paths for parent in _parents(path)}
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
    return sorted(_with_loss_of_tree(pieces, area, touched), key=_by_weight)


def told_path(path: str) -> str:
    """A path for a person and the log; bytes that are no UTF-8 are written as `\\xff`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def with_worktree(pieces: Sequence[Piece], repository: Piece, words: InGitsWords) -> list[Piece]:
    """The pieces, where those of a worktree are one with its repository: one without the other would be a muddle.

    What programs obey stays a piece of its own. A repository in which git has only noted something is no change.
    """
    top = repository.paths[0].partition(".git")[0]
    others = [
        _marked(piece, top, words) if piece.area == repository.area else piece
        for piece in pieces
        if piece is not repository
    ]
    logs = [path for path in repository.paths if _is_shorter(path, repository.touched)]
    if words.is_same and not logs and all(_is_note(path.rpartition(".git/")[2]) for path in repository.paths):
        return sorted(others, key=_by_weight)
    files = [
        piece
        for piece in others
        if piece.area == repository.area
        and piece.paths[0].startswith(top)
        and not piece.change.is_obeyed
        and piece.change.what != "repository"
    ]
    loses = {piece.change.loses for piece in files}
    change = replace(
        repository.change,
        diff="".join(
            [words.text, *(piece.change.diff or f"{piece.change.kind} {piece.change.name}\n" for piece in files)]
        ),
        files=repository.change.files + sum(piece.change.files for piece in files),
        size=repository.change.size + sum(piece.change.size for piece in files),
        notes=(
            *(f"loses {lost}" for lost in words.lost),
            *(f"loses entries of the log of {told_path(path.rpartition('logs/')[2])}" for path in logs),
            *(f"{piece.change.name}: {note}" for piece in files for note in piece.change.notes),
        ),
        loses="tree" if "tree" in loses else "work" if words.lost or logs or "work" in loses else "",
    )
    paths = (*repository.paths, *(path for piece in files for path in piece.paths))
    whole = Piece(change, repository.area, repository.touched, paths)
    gone = {id(piece) for piece in files}
    return sorted([whole, *(piece for piece in others if id(piece) not in gone)], key=_by_weight)


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


def _marked(piece: Piece, top: str, words: InGitsWords) -> Piece:
    """The piece, marked where it takes away work that was in no commit."""
    taken = words.uncommitted if piece.change.kind == "deleted" else words.reverted
    if piece.change.kind == "created" or not any(path.removeprefix(top) in taken for path in piece.paths):
        return piece
    notes = ("overwrites what was not committed", *piece.change.notes)
    return piece._replace(change=replace(piece.change, notes=notes, loses=piece.change.loses or "work"))


def _is_note(path: str) -> bool:
    return path in {"index", "AUTO_MERGE", "COMMIT_EDITMSG", "ORIG_HEAD", "gc.log"} or path.startswith(
        ("objects", "logs")
    )


def _is_shorter(path: str, touched: Touched) -> bool:
    """True for a log of git's that lost entries."""
    before, after = touched.of(path)
    is_log = ".git/logs/" in f"/{path}" and before is not None and before.kind == "file"
    return is_log and before is not None and (after is None or after.size < before.size)


def _by_weight(piece: Piece) -> tuple[bool, bool, bool, str]:
    change = piece.change
    return (not change.is_obeyed, not change.loses, not change.notes, change.name)


def _with_loss_of_tree(pieces: Sequence[Piece], area: str, touched: Touched) -> list[Piece]:
    """The pieces, marked where together they take away more than half of the files that were there."""
    gone = _gone_files(touched)
    count = _files_in(area, most=2 * len(gone)) if len(gone) > HANDFUL else 0
    if 2 * len(gone) <= count or not count:
        return [*pieces]
    notes: tuple[str, ...] = (f"{len(gone):,} of the {count:,} files in {told_path(area)} would be gone or empty",)
    marked = []
    for piece in pieces:
        if gone.intersection(piece.paths):
            piece = piece._replace(change=replace(piece.change, loses="tree", notes=(*notes, *piece.change.notes)))
            notes = ()  # said once
        marked.append(piece)
    return marked


def _gone_files(touched: Touched) -> set[str]:
    """The files that were deleted or emptied; not those that were moved, or can be installed again."""
    gone = {}
    for path, before in touched.before.items():
        after = touched.after.get(path)
        is_gone = after is None or after.kind != "file" or (before.size and not after.size)
        if before.kind == "file" and is_gone and not _NOT_COUNTED.intersection(path.split("/")):
            gone[path] = before
    if len(gone) <= HANDFUL:
        return {*gone}
    sizes = {before.size for before in gone.values()}
    made = [entry for path, entry in touched.after.items() if path not in touched.before and entry.size in sizes]
    moved = {_digest(entry) for entry in made if entry.kind == "file"}
    return {path for path, before in gone.items() if not moved or _digest(before) not in moved}


def _digest(entry: Entry) -> bytes:
    """Of the contents; nothing else is like what cannot be read."""
    try:
        with open_content(entry) as descriptor, open(descriptor, "rb", closefd=False) as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return entry.where.encode(errors="surrogateescape")


def _files_in(area: str, *, most: int) -> int:
    """Counts files until there are more than `most`."""
    count = 0
    for folder, names, files in os.walk(area):
        names[:] = [name for name in names if name not in _NOT_COUNTED]
        count += sum(not os.path.islink(f"{folder}/{name}") for name in files)  # noqa: PTH114
        if count > most:
            break
    return count


class _Wholes:
    """Finds the piece that a path is only a part of."""

    def __init__(self, area: str, touched: Touched, paths: Sequence[str]) -> None:
        self._area = area
        self._touched = touched
        counts = Counter(parent for path in paths for parent in _parents(path))
        self._large = {path for path in paths if counts[path] > MUCH and self._came_or_went(path)}

    def around(self, path: str) -> str | None:
        """The path of the outermost of them; what is obeyed is no part of a large folder."""
        large = None
        for around in (*_parents(path), path):
            before, after = self._touched.of(around)
            is_git = os.path.basename(around or self._area) == ".git"  # noqa: PTH119  # relative paths as text
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
    if installed := _INSTALLED.intersection(path.split("/")):
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
    is_git = os.path.basename(path or area) == ".git"  # noqa: PTH119
    is_new = path in inside and before is None
    is_gone = path in inside and after is None
    entries = [(one, touched.after.get(one) or touched.before[one]) for one in inside]
    files = [(one, entry) for one, entry in entries if entry.kind != "folder"]
    notes = []
    if installed := _INSTALLED.intersection(path.split("/")):
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
