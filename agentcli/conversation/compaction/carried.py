"""Collects what no compaction may lose: pinned facts, open tasks, files, and what is read from disk again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import ADDED_FOLDER, Result, User, bare_note
from agentcli.conversation.turns import TurnRecord

MOST_FILES, FEW_FILES = 40, 10
_READS, _CHANGES = ("file_read",), ("file_write", "file_edit")

SeenHash = Callable[[str], str]  # a file's hash as this session last saw it; empty where it has not


class FileNote(Struct, frozen=True):
    """A file that was worked on: what was done to it last, and in which turn."""

    path: str
    done: str
    turn: int
    hash: str = ""

    @property
    def line(self) -> str:
        return f"- {self.path} ({self.done} in turn {self.turn}{f', sha256 {self.hash}' if self.hash else ''})"


class Carried(Struct, frozen=True, kw_only=True):
    """`opening` are the notes of a session's start as they read now, `focus` is what the user asked to keep in mind."""

    pins: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    files: tuple[FileNote, ...] = ()
    opening: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    focus: str = ""

    def parts(self, most_files: int = MOST_FILES) -> list[str]:
        """As the model reads it; of the files the newest, those that were changed before those that were read."""
        newest = sorted(self.files, key=lambda file: (file.done == "read", -file.turn))[:most_files]
        shown = [file.line for file in self.files if file in newest]
        if (more := len(self.files) - len(shown)) > 0:
            shown.insert(0, f"- {more} more before these")
        listed = (
            ("Pinned by the user", [f"- {pin}" for pin in self.pins]),
            ("Task list", list(self.tasks)),
            ("Folders", [f"- {folder}" for folder in self.folders]),
            ("Files worked on, as they were last seen", shown),
            ("The user asked to keep in mind", [self.focus] if self.focus else []),
        )
        return ["\n".join([f"## {heading}", *lines]) for heading, lines in listed if lines]


def collect(
    conversation: Conversation,
    turns: Sequence[TurnRecord],
    opening: Iterable[str],
    seen_hash: SeenHash,
    *,
    focus: str = "",
) -> Carried:
    # The reminders of folders that the user added to the workspace, also those before a compaction.
    bodies = (entry.body for entry in conversation.entries)
    notes = (bare_note(body.text) for body in bodies if isinstance(body, User) and body.is_reminder)
    return Carried(
        pins=tuple(conversation.pins),
        tasks=tuple(_tasks(turns)),
        files=tuple(_files(turns, seen_hash)),
        opening=tuple(opening),
        folders=tuple(dict.fromkeys(note for note in notes if note.startswith(ADDED_FOLDER))),
        focus=focus,
    )


def _tasks(turns: Sequence[TurnRecord]) -> list[str]:
    """The newest task list, if anything of it is open."""
    results = (result for turn in reversed(turns) for result in reversed(turn.observations))
    newest = next((result for result in results if result.name == "todo" and not result.result.is_error), None)
    lines = newest.result.text.splitlines() if newest else []
    return lines if any(not line.startswith("[x]") for line in lines) else []


def _files(turns: Sequence[TurnRecord], seen_hash: SeenHash) -> list[FileNote]:
    """Files by the time they were last worked on; a change is told rather than a later look."""
    found: dict[str, FileNote] = {}
    for turn in turns:
        inputs = {use.id: use.input for use in turn.calls}
        for result in turn.observations:
            for path, done in _worked_on(result, inputs.get(result.result.tool_use_id, {})):
                before = found.pop(path, None)
                is_look = done == "read" and before is not None and before.done == "changed"
                found[path] = before if is_look and before is not None else FileNote(path, done, turn.number)
    return [FileNote(note.path, note.done, note.turn, seen_hash(note.path)) for note in found.values()]


def _worked_on(result: Result, input: dict[str, object]) -> list[tuple[str, str]]:
    if result.result.is_error and result.name != "bash":
        return []
    if result.name in _READS + _CHANGES and isinstance(path := input.get("path"), str):
        return [(path, "read" if result.name in _READS else "changed")]
    kept = result.structured.get("kept") if isinstance(result.structured, dict) else None
    return [(path, "changed") for path in kept or () if isinstance(path, str)]
