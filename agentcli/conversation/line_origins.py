"""Finds out which change wrote each line of a file, from what is recorded of its changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from agentcli.conversation.entries import Entry
from agentcli.conversation.file_changes import FileChange, FilesChanged, FilesRestored
from agentcli.tools.text.diff import lines_of, opcodes

_ALIKE = 0.5  # of the lines of a file that was made as another one went: then it is that one by a new name

Recorded = tuple[str, Entry]  # an entry that tells of changes to files, with the id of its session
Origin = Recorded | None  # None: no call is known to have written it
Read = Callable[[str], bytes]  # gives a content by its id, or raises `OSError`


def line_origins(path: str, content: bytes, recorded: Iterable[Recorded], read: Read) -> list[tuple[str, Origin]]:
    """Each line of a file with the change that wrote it. `path` is as the log has it, `content` what the file holds."""
    text = _BlamedText()
    for one, change in _history(path, sorted(recorded, key=lambda one: one[1].time), read):
        with suppress(OSError):  # what it held then is not kept any more
            text.follow(change, one if isinstance(one[1].body, FilesChanged) else None, read)
    text.become(_lines(content), None)
    return list(zip(text.lines, text.origins, strict=True))


class _BlamedText:
    """A file's lines on their way from one state to the next, each with its origin."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.origins: list[Origin] = []
        self._known: dict[str, tuple[list[str], list[Origin]]] = {}

    def follow(self, change: FileChange, who: Origin, read: Read) -> None:
        """Go through a change. What stood there before it and is new was nobody's call. Raises `OSError`."""
        for state, author in ((change.before, None), (change.after, who)):
            if state is None or not state.content:
                continue
            if known := self._known.get(state.content):  # it was so before: whoever wrote it then wrote it
                self.lines, self.origins = known
            else:
                self.become(_lines(read(state.content)), author)
            self._known[state.content] = (self.lines, self.origins)

    def become(self, lines: list[str], who: Origin) -> None:
        origins: list[Origin] = []
        for tag, start, end, new_start, new_end in opcodes(self.lines, lines):
            origins += self.origins[start:end] if tag == "equal" else [who] * (new_end - new_start)
        self.lines, self.origins = lines, origins


def _history(path: str, recorded: Sequence[Recorded], read: Read) -> list[tuple[Recorded, FileChange]]:
    """The changes of a file, oldest first, also those under names that it had before."""
    found = []
    for one in reversed(recorded):
        body = one[1].body
        changes = body.changes if isinstance(body, FilesChanged | FilesRestored) else ()
        change = next((change for change in changes if change.path == path), None)
        if change is None:
            continue
        if change.before is None and change.after is not None and (source := _renamed_from(change, changes, read)):
            change, path = FileChange(path, source.before, change.after), source.path
        found.append((one, change))
    return found[::-1]


def _renamed_from(made: FileChange, changes: Sequence[FileChange], read: Read) -> FileChange | None:
    """The file that went as this one was made and held the same, or nearly."""
    assert made.after is not None
    gone = [
        (change.before.content, change)
        for change in changes
        if change.after is None and change.before is not None and change.before.kind == "file" and change.before.content
    ]
    same = next((change for content, change in gone if content == made.after.content), None)
    if same is not None or not made.after.content or len(gone) > 100:
        return same
    try:
        new = _lines(read(made.after.content))
        alike = [(_share(_lines(read(content)), new), number) for number, (content, _) in enumerate(gone)]
    except OSError:
        return None
    share, number = max(alike, default=(0.0, 0))
    return gone[number][1] if share >= _ALIKE else None


def _share(old: Sequence[str], new: Sequence[str]) -> float:
    """Of the lines of the longer text those that stayed."""
    same = sum(end - start for tag, start, end, _, _ in opcodes(old, new) if tag == "equal")
    return same / max(len(old), len(new), 1)


def _lines(content: bytes) -> list[str]:
    return [line.rstrip("\r\n") for line in lines_of(content.decode(errors="replace"))]
