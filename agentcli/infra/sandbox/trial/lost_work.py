"""Marks the changes that take work away: most of a tree, commits, and what was in no commit."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from agentcli.infra.sandbox.trial.git_words import InGitsWords
from agentcli.infra.sandbox.trial.tree_changes import INSTALLED, Piece, parents_of, told_path
from agentcli.infra.sandbox.trial.tree_entries import Entry, Touched, open_content

HANDFUL = 5  # most of a tree is more files than these, or all

_NOT_COUNTED = INSTALLED | {".git"}


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
        return others
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
    return [whole, *(piece for piece in others if id(piece) not in gone)]


def _marked(piece: Piece, top: str, words: InGitsWords) -> Piece:
    """The piece, marked where it takes away work that was in no commit."""
    taken = words.uncommitted if piece.change.kind == "deleted" else words.reverted
    if piece.change.kind == "created" or not any(path.removeprefix(top) in taken for path in piece.paths):
        return piece
    return _losing_work(piece)


def _losing_work(piece: Piece) -> Piece:
    notes = ("overwrites what was not committed", *piece.change.notes)
    return piece._replace(change=replace(piece.change, notes=notes, loses=piece.change.loses or "work"))


def taken_away(pieces: Sequence[Piece]) -> dict[str, set[str]]:
    """The files of whose contents nothing is left, by their area; without those of which that is known to lose work."""
    gone = {area: _gone_files(touched) for area, touched in {piece.area: piece.touched for piece in pieces}.items()}
    found: dict[str, set[str]] = {}
    for piece in pieces:
        taken = gone[piece.area].intersection(piece.paths)
        if piece.change.kind == "changed" and _is_written_over(piece.change.diff):
            taken.update(piece.paths)
        if taken and not piece.change.loses and piece.change.kind in ("changed", "deleted"):
            found.setdefault(piece.area, set()).update(taken)
    return found


def with_lost_work(pieces: Sequence[Piece], area: str, taken: set[str], uncommitted: Collection[str]) -> list[Piece]:
    """The pieces, marked where they take away what was in no commit; a folder's name there ends with a slash."""
    lost = {
        path for path in taken if path in uncommitted or any(f"{parent}/" in uncommitted for parent in parents_of(path))
    }
    return [_losing_work(piece) if piece.area == area and lost.intersection(piece.paths) else piece for piece in pieces]


def _is_written_over(diff: str) -> bool:
    """True where no line of a text is left, however it is indented now."""
    lines = diff.partition("\n@@ ")[2].splitlines()[1:]
    old, new = ({line[1:].strip() for line in lines if line[0] == sign} - {""} for sign in "-+")
    return bool(old) and not old & new and not any(line[0] == " " for line in lines)


def _is_note(path: str) -> bool:
    return path in {"index", "AUTO_MERGE", "COMMIT_EDITMSG", "ORIG_HEAD", "gc.log"} or path.startswith(
        ("objects", "logs")
    )


def _is_shorter(path: str, touched: Touched) -> bool:
    """True for a log of git's that lost entries."""
    before, after = touched.of(path)
    is_log = ".git/logs/" in f"/{path}" and before is not None and before.kind == "file"
    return is_log and before is not None and (after is None or after.size < before.size)


def with_loss_of_tree(pieces: Sequence[Piece], area: str, touched: Touched) -> list[Piece]:
    """The pieces, marked where together they take away more than half of the files that were there."""
    gone = _gone_files(touched)
    count = _files_in(area, most=2 * len(gone)) if len(gone) > 1 else 0
    is_most = 2 * len(gone) > count if len(gone) > HANDFUL else len(gone) == count
    if not is_most or not count:
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
    sizes = {before.size for before in gone.values()}
    made = [entry for path, entry in touched.after.items() if path not in gone and entry.size in sizes]
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
