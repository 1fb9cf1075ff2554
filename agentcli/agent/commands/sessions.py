"""Conversations: a new one, another one, a copy, an earlier point of this one, its name, its text."""

from __future__ import annotations

import asyncio
import re
import time
from importlib import import_module
from pathlib import Path

from agentcli.agent.commands.command import Command, CommandHost, Outcome, listed, number_in
from agentcli.agent.commands.transcript import transcript
from agentcli.agent.interfaces import SessionInfo
from agentcli.conversation.titles import shortened
from agentcli.errors import UsageError, UserError
from agentcli.paths import from_home

MOST_LISTED = 20
LONGEST_LABEL = 80  # characters
LONGEST_LISTED = 46  # of a title, so that what else is told of a conversation stands beside it
LONGEST_SAID = 60


async def _clear(host: CommandHost, argument: str) -> Outcome:
    before = host.session.id
    await host.open_session(None)
    return f"A new conversation. The one before: /resume {before[:13]}"


async def _resume(host: CommandHost, which: str) -> Outcome:
    sessions = [info for info in await host.sessions() if info.id != host.session.id]
    if not which:
        if not sessions:
            return "There is no other conversation in this directory."
        options = [_in_columns(info) for info in sessions]
        chosen = await host.choose("Go on with", options)
        if chosen is None:
            return listed(options[:MOST_LISTED], "Go on with one: /resume NUMBER")
        which = sessions[chosen].id
    elif which.isdigit() and len(which) < 4:
        which = sessions[number_in(which, len(sessions), "conversation")].id
    session = await host.open_session(which)
    conversation = session.state.conversation
    waiting = _waiting(len(conversation.queue.follow_ups))
    return f"Going on with {session.id} ({len(conversation.entries)} entries).{waiting}"


def _waiting(count: int) -> str:
    if not count:
        return ""
    return f" {count} message{'s' if count > 1 else ''} from then still wait{'' if count > 1 else 's'} in the queue."


def title_of(info: SessionInfo) -> str:
    return info.name or info.title or "(no prompt)"


def _in_columns(info: SessionInfo) -> tuple[str, str]:
    """When and what it is; then what was said first, where a name does not tell it, and what was said last."""
    title = title_of(info)
    first = info.title if info.name else ""
    last = info.last_prompt if info.last_prompt != info.title else ""
    said = " → ".join(shortened(part, LONGEST_SAID) for part in (first, last) if part)
    return (
        f"{age(time.time() - info.updated):<10}  {shortened(title, LONGEST_LISTED)}",
        f"→ {said}" if last == said else said,
    )


def age(seconds: float) -> str:
    """How long ago something was, in words; a clock that was wrong says nothing."""
    if seconds < 60:
        return "just now" if seconds > -60 else "some time"
    for unit, length, most in (("min", 60, 60), ("h", 3_600, 24), ("d", 86_400, 61), ("months", 2_629_746, 24)):
        if seconds < length * most:
            return f"{int(seconds / length)} {unit} ago"
    return f"{int(seconds / 31_556_952)} y ago"


async def _fork(host: CommandHost, argument: str) -> Outcome:
    before = host.session
    if before.is_busy:
        raise UsageError("A turn is running: interrupt it first, then continue in a copy.")
    if not before.state.conversation.entries:
        return "There is nothing to copy yet."
    copy = await host.open_session(before.id, fork=True)
    return f"Going on in a copy, {copy.id}. The one before stays as it was: /resume {before.id[:13]}"


def label(text: str) -> str:
    return shortened(" ".join(text.split()), LONGEST_LABEL)


async def _rename(host: CommandHost, name: str) -> Outcome:
    if not name:
        raise UsageError("Give a name: /rename NAME")
    await host.stored_sessions.rename(host.session.id, name)
    return f"This conversation is called {name} now."


async def _export(host: CommandHost, name: str) -> Outcome:
    session, services = host.session, host.session.runtime.calls.services
    info = next((info for info in await host.sessions() if info.id == session.id), None)
    prompts = session.prompts()
    title = title_of(info) if info else label(prompts[0][1]) if prompts else "Conversation"
    text = transcript(session.state.conversation.path, title)
    if services.mask is not None:  # people and models write keys too
        await services.know_secrets()
        title, text = services.mask.text(title), await asyncio.to_thread(services.mask.text, text)
    cwd = services.workspace.cwd
    file = await _write_new(cwd, name or f"{_file_name(title)}.md", text)
    return f"Written to {file}."


def _file_name(title: str) -> str:
    return re.sub(r"[^\w]+", "-", title.lower()).strip("-")[:60] or "conversation"


async def _write_new(cwd: Path, name: str, text: str) -> Path:
    """Raises `UserError` for a file that is there already, and for a name that would garble a list of files."""
    if re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", name):
        raise UsageError(f"{name!r} holds a control character: name another file, /export FILE.")
    file = cwd / from_home(name)
    try:
        async with import_module("aiofiles").open(file, "x", encoding="utf-8", errors="replace") as out:
            await out.write(text)
    except FileExistsError as error:
        raise UserError(f"{file} exists: name another file, /export FILE.") from error
    except OSError as error:
        raise UserError(f"{file} could not be written: {error.strerror}.") from error
    return file


SESSION_COMMANDS = (
    Command("clear", "start a new conversation; this one stays stored", _clear, aliases=("new", "reset")),
    Command(
        "resume",
        "go on with a stored conversation",
        _resume,
        "[ID]",
        ("sessions", "continue"),
        forms=("", "NUMBER|ID|NAME"),
    ),
    Command("fork", "go on in a copy of this conversation", _fork, aliases=("branch",)),
    Command("rename", "give this conversation a name", _rename, "NAME", ("title",)),
    Command("export", "write this conversation to a Markdown file", _export, "[FILE]"),
)
