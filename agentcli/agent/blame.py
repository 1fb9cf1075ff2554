"""Traces each line of a file to the session, turn, call and model that wrote it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from agentcli.agent.interfaces import SessionStore
from agentcli.agent.undo import History
from agentcli.conversation.entries import Assistant
from agentcli.conversation.file_changes import stored_path
from agentcli.conversation.line_origins import line_origins
from agentcli.errors import StorageError, UsageError
from agentcli.llm.messages import ToolUse
from agentcli.settings.files import read_small_file
from agentcli.tools.summary import call_title

_MAX_BLAMED = 10_000_000  # bytes


class Author(Struct, frozen=True, kw_only=True):
    """The call that wrote a line, and where it was made.

    `entry_id` is the reply that asked for it, `prompt` the person's prompt in one line, `at` seconds since 1970.
    """

    session_id: str
    entry_id: str
    call: ToolUse
    model: str
    turn: int
    prompt: str
    at: float


class BlamedLine(Struct, frozen=True):
    """A line of a file, counted from 1; `author` is None where no session wrote it."""

    line: int
    text: str
    author: Author | None


async def blame(
    name: str, find: Callable[[str], Path], store: SessionStore, read: Callable[[str], bytes]
) -> list[BlamedLine]:
    """Return the lines of a file, or the one of `PATH:LINE`, with their authors.

    `find` gives the real path of a name, `read` the content with an id. Raises `UserError`.
    """
    path, colon, number = name.rpartition(":")
    if not colon or not number.isdecimal() or find(name).exists():  # a file may have such a name
        path, number = name, ""
    file = find(path)
    try:
        content = read_small_file(file, most=_MAX_BLAMED)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}.") from error
    lines = line_origins(stored_path(str(file)), content, await store.file_changes(), read)
    if number and not 0 < int(number) <= len(lines):
        raise UsageError(f"{path} has {len(lines)} lines, counted from 1: there is no line {number}.")
    authors = await _authors({origin[0] for _, origin in lines if origin is not None}, store)
    blamed = [
        BlamedLine(count, text, authors.get(origin[1].id) if origin else None)
        for count, (text, origin) in enumerate(lines, 1)
    ]
    return blamed[int(number) - 1 :][:1] if number else blamed


async def _authors(session_ids: set[str], store: SessionStore) -> dict[str, Author]:
    """By the id of the entry that has the change."""
    found: dict[str, Author] = {}
    for session_id in session_ids:
        with suppress(StorageError):  # removed meanwhile
            _, entries = await store.load(session_id)
            for call in History(entries).calls.values():
                reply, use = call.reply or (None, None)
                if reply and use and isinstance(reply.body, Assistant):
                    found[call.entry.id] = Author(
                        session_id=session_id,
                        entry_id=reply.id,
                        call=use,
                        model=f"{reply.body.provider}/{reply.body.model}",
                        turn=call.turn[0],
                        prompt=call.turn[1],
                        at=call.entry.time,
                    )
    return found


def format_author(author: Author, when: str) -> str:
    """Describe the author of a line, and how to open that session."""
    return (
        f"{call_title(author.call.name, author.call.input)}\n"
        f"  in turn {author.turn} of session {author.session_id}, {when}\n"
        f"  by {author.model}, asked: {author.prompt}\n  agentcli --resume {author.session_id} goes there"
    )
