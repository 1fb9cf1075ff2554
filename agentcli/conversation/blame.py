"""Finds the change that wrote each line of a file."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from agentcli.conversation.entries import Entry, FileChange, FilesChanged, FilesRestored, FileState
from agentcli.tools.text.diff import lines_of, opcodes

_MIN_SHARED = 0.5  # share of lines that a deleted and a created file must have in common to be one renamed file
_MAX_COMPARED = 100  # deleted files that are compared line by line with a created one

SessionEntry = tuple[str, Entry]  # the id of a session, and one of its entries that changes files
Origin = SessionEntry | None  # None if no call is known to have written the line
Read = Callable[[str], bytes]  # returns a content by its id, or raises `OSError`


def line_origins(path: str, content: bytes, recorded: Iterable[SessionEntry], read: Read) -> list[tuple[str, Origin]]:
    """Return each line of a file with the change that wrote it; `recorded` are the changes of all files."""
    text = _BlamedText()
    for (session, entry), change in _changes_of(path, sorted(recorded, key=lambda record: record[1].time), read):
        is_by_call = isinstance(entry.body, FilesChanged)  # otherwise the person undid something
        with suppress(OSError):  # an old content may be gone
            text.follow(change, (session, entry) if is_by_call else None, read)
    text.replace_lines(_lines(content), None)
    return list(zip(text.lines, text.origins, strict=True))


class _BlamedText:
    """The lines of a file in its newest known state, each with its origin."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.origins: list[Origin] = []
        self._known: dict[str, tuple[list[str], list[Origin]]] = {}  # by content id: lines and origins of each state

    def follow(self, change: FileChange, origin: Origin, read: Read) -> None:
        """Apply a change. Lines that are new in its `before` state were written by no call. Raises `OSError`."""
        for state, author in ((change.before, None), (change.after, origin)):
            if state is None or not state.content:  # there was no file, or its content was not kept
                continue
            if state.content not in self._known:  # otherwise the file returns to an earlier state
                self.replace_lines(_lines(read(state.content)), author)
                self._known[state.content] = (self.lines, self.origins)
            self.lines, self.origins = self._known[state.content]

    def replace_lines(self, lines: list[str], origin: Origin) -> None:
        """Replace the whole text. Lines that the file did not have get this origin."""
        origins: list[Origin] = []
        for tag, start, end, new_start, new_end in opcodes(self.lines, lines):
            origins += self.origins[start:end] if tag == "equal" else [origin] * (new_end - new_start)
        self.lines, self.origins = lines, origins


def _changes_of(path: str, recorded: Sequence[SessionEntry], read: Read) -> list[tuple[SessionEntry, FileChange]]:
    """Return the changes of a file, oldest first, including those under its earlier names."""
    found = []
    for session, entry in reversed(recorded):
        changes = entry.body.changes if isinstance(entry.body, FilesChanged | FilesRestored) else ()
        change = next((change for change in changes if change.path == path), None)
        if change is None:
            continue
        created = change.after if change.before is None else None
        if created is not None and (source := _renamed_from(created, changes, read)):
            change, path = FileChange(path, source.before, change.after), source.path  # older entries use this path
        found.append(((session, entry), change))
    return found[::-1]


def _renamed_from(created: FileState, changes: Sequence[FileChange], read: Read) -> FileChange | None:
    """Return the deletion of the file that was probably renamed: it had the content of the new file, or most of it."""
    # Reversed, so that the first of several files with the same content is found.
    deletions = [(each.before, each) for each in reversed(changes) if each.after is None and each.before is not None]
    deleted = {before.content: each for before, each in deletions if before.kind == "file" and before.content}
    if created.content in deleted:
        return deleted[created.content]
    if not created.content or not deleted or len(deleted) > _MAX_COMPARED:
        return None
    try:
        new = _lines(read(created.content))
        shares = {content: _shared_part(_lines(read(content)), new) for content in deleted}
    except OSError:
        return None
    nearest = max(shares, key=shares.__getitem__)
    return deleted[nearest] if shares[nearest] >= _MIN_SHARED else None


def _shared_part(old: Sequence[str], new: Sequence[str]) -> float:
    """Return the lines that two texts have in common, as a share of the longer text."""
    same = sum(end - start for tag, start, end, _, _ in opcodes(old, new) if tag == "equal")
    return same / max(len(old), len(new), 1)


def _lines(content: bytes) -> list[str]:
    return [line.rstrip("\r\n") for line in lines_of(content.decode(errors="replace"))]
