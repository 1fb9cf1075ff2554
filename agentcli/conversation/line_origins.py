"""Finds the change that wrote each line of a file, from the recorded changes of files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from agentcli.conversation.entries import Entry, FileChange, FilesChanged, FilesRestored
from agentcli.tools.text.diff import lines_of, opcodes

_MIN_SHARED = 0.5  # share of the lines of a new file that a deleted one had, if it is that file with a new name
_MAX_COMPARED = 100  # deleted files that are compared line by line with a created one

Recorded = tuple[str, Entry]  # an entry with changes of files, and the id of its session
Origin = Recorded | None  # None if no call is known to have written the line
Read = Callable[[str], bytes]  # returns a content by its id, or raises `OSError`


def line_origins(path: str, content: bytes, recorded: Iterable[Recorded], read: Read) -> list[tuple[str, Origin]]:
    """Return each line of a file with the change that wrote it.

    `path` is written as in the log, and `content` is what the file holds now.
    """
    text = _BlamedText()
    for record, change in _history(path, sorted(recorded, key=lambda record: record[1].time), read):
        with suppress(OSError):  # an old content may be gone
            text.follow(change, record if isinstance(record[1].body, FilesChanged) else None, read)
    text.become(_lines(content), None)
    return list(zip(text.lines, text.origins, strict=True))


class _BlamedText:
    """The lines of a file in one of its states, each with its origin."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.origins: list[Origin] = []
        self._known: dict[str, tuple[list[str], list[Origin]]] = {}

    def follow(self, change: FileChange, origin: Origin, read: Read) -> None:
        """Apply a change. Lines that were new before it came from no call. Raises `OSError`."""
        for state, author in ((change.before, None), (change.after, origin)):
            if state is None or not state.content:
                continue
            if known := self._known.get(state.content):  # the file returns to a state whose origins are known
                self.lines, self.origins = known
            else:
                self.become(_lines(read(state.content)), author)
            self._known[state.content] = (self.lines, self.origins)

    def become(self, lines: list[str], origin: Origin) -> None:
        origins: list[Origin] = []
        for tag, start, end, new_start, new_end in opcodes(self.lines, lines):
            origins += self.origins[start:end] if tag == "equal" else [origin] * (new_end - new_start)
        self.lines, self.origins = lines, origins


def _history(path: str, recorded: Sequence[Recorded], read: Read) -> list[tuple[Recorded, FileChange]]:
    """Return the changes of a file, oldest first, also those under its earlier names."""
    found = []
    for record in reversed(recorded):
        body = record[1].body
        changes = body.changes if isinstance(body, FilesChanged | FilesRestored) else ()
        change = next((change for change in changes if change.path == path), None)
        if change is None:
            continue
        if change.before is None and change.after is not None and (source := _renamed_from(change, changes, read)):
            change, path = FileChange(path, source.before, change.after), source.path
        found.append((record, change))
    return found[::-1]


def _renamed_from(created: FileChange, changes: Sequence[FileChange], read: Read) -> FileChange | None:
    """Return the deletion that `created` is probably a rename of: the same content, or most of its lines in common."""
    assert created.after is not None
    deleted = [
        (change.before.content, change)
        for change in changes
        if change.after is None and change.before is not None and change.before.kind == "file" and change.before.content
    ]
    same = next((change for content, change in deleted if content == created.after.content), None)
    if same is not None or not created.after.content or len(deleted) > _MAX_COMPARED:
        return same
    try:
        new = _lines(read(created.after.content))
        alike = [(_share(_lines(read(content)), new), number) for number, (content, _) in enumerate(deleted)]
    except OSError:
        return None
    share, number = max(alike, default=(0.0, 0))
    return deleted[number][1] if share >= _MIN_SHARED else None


def _share(old: Sequence[str], new: Sequence[str]) -> float:
    same = sum(end - start for tag, start, end, _, _ in opcodes(old, new) if tag == "equal")
    return same / max(len(old), len(new), 1)


def _lines(content: bytes) -> list[str]:
    return [line.rstrip("\r\n") for line in lines_of(content.decode(errors="replace"))]
