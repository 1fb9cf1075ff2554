"""Tells for each line of a file which session, turn, call and model wrote it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from agentcli.agent.interfaces import SessionStore
from agentcli.agent.rewind import typed_text
from agentcli.conversation.entries import Assistant, Entry, User
from agentcli.conversation.file_changes import FilesChanged, FilesRestored, stored_path
from agentcli.conversation.line_origins import Recorded, line_origins
from agentcli.errors import StorageError, UsageError
from agentcli.llm.messages import ToolUse
from agentcli.settings.files import read_small_file
from agentcli.tools.summary import call_title

LARGEST_BLAMED = 10_000_000  # bytes


class Author(Struct, frozen=True):
    """The call that wrote a line. `entry_id` is the reply that asked for it, `at` seconds since 1970.

    `prompt` is what the person had asked, in a line; `did` what the call was to do.
    """

    session_id: str
    entry_id: str
    call_id: str
    tool: str
    model: str
    prompt: str
    at: float
    turn: int = 0
    did: str = ""


class BlamedLine(Struct, frozen=True):
    """A line of a file, counted from 1; `author` is None where no session wrote it."""

    line: int
    text: str
    author: Author | None


async def blame(file: Path, store: SessionStore, read: Callable[[str], bytes]) -> list[BlamedLine]:
    """The lines of a file, given by its real path. `read` gives contents of checkpoints. Raises `UserError`."""
    try:
        content = read_small_file(file, most=LARGEST_BLAMED)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}.") from error
    found = await store.file_changes()
    recorded = [
        Recorded(session_id, entry.id, entry.time, entry.body)
        for session_id, entry in found
        if isinstance(entry.body, FilesChanged | FilesRestored)
    ]
    lines = line_origins(stored_path(str(file)), content, recorded, read)
    authors = await _authors({origin for _, origin in lines if origin is not None}, store)
    return [
        BlamedLine(number, text, authors.get(origin.entry_id) if origin else None)
        for number, (text, origin) in enumerate(lines, 1)
    ]


async def _authors(origins: Iterable[Recorded], store: SessionStore) -> dict[str, Author]:
    """By the id of the entry that has the change."""
    by_session: dict[str, dict[str, Recorded]] = {}
    for origin in origins:
        by_session.setdefault(origin.session_id, {})[origin.entry_id] = origin
    found: dict[str, Author] = {}
    for session_id, wanted in by_session.items():
        try:
            _, entries = await store.load(session_id)
        except StorageError:  # removed meanwhile
            continue
        found |= _authors_in(session_id, entries, wanted)
    return found


def _authors_in(session_id: str, entries: Sequence[Entry], wanted: dict[str, Recorded]) -> dict[str, Author]:
    found = {}
    turn, prompt = 0, ""
    calls: dict[str, tuple[Entry, ToolUse, int, str]] = {}  # the newest of each id, which a model may use again
    for entry in entries:
        match entry.body:
            case User(is_reminder=False) as said:
                turn, prompt = turn + 1, " ".join(typed_text(said).split())
            case Assistant(content):
                calls |= {b.id: (entry, b, turn, prompt) for b in content if isinstance(b, ToolUse)}
            case FilesChanged(id, _) if entry.id in wanted and id in calls:
                reply, use, number, asked = calls[id]
                assert isinstance(reply.body, Assistant)
                model = f"{reply.body.provider}/{reply.body.model}"
                did = call_title(use.name, use.input)
                found[entry.id] = Author(session_id, reply.id, id, use.name, model, asked, entry.time, number, did)
            case _:
                pass
    return found


def split_line(name: str, exists: Callable[[str], bool]) -> tuple[str, int | None]:
    """The path and the line of `PATH:LINE`; a file may have such a name. Raises `UsageError`."""
    path, colon, line = name.rpartition(":")
    if not colon or exists(name) or not line.isdecimal():
        return name, None
    if int(line) < 1:
        raise UsageError("Lines count from 1.")
    return path, int(line)


def told_author(author: Author, when: str) -> str:
    """Who wrote a line, and how to go there."""
    return "\n".join(
        (
            f"{author.did}",
            f"  in turn {author.turn} of session {author.session_id}, {when}",
            f"  by {author.model}, asked: {author.prompt}",
            f"  agentcli --resume {author.session_id} goes there",
        )
    )
