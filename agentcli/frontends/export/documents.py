"""Writes a session in the form that is asked for, without secrets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentcli.agent.accounting.meter import Meter
from agentcli.agent.interfaces import SessionInfo
from agentcli.agent.masking import Mask
from agentcli.agent.session import Session
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Entry
from agentcli.conversation.titles import title_of
from agentcli.errors import UsageError
from agentcli.frontends.export.markdown import as_markdown
from agentcli.frontends.export.page import as_page
from agentcli.frontends.export.story import Story, story_of
from agentcli.llm.messages import Message
from agentcli.llm.wire.anthropic_request import block_to_wire
from agentcli.version import __version__

Form = Literal["md", "json", "html"]
_ENDINGS: dict[str, Form] = {".md": "md", ".markdown": "md", ".json": "json", ".html": "html", ".htm": "html"}


def form_of(file: str) -> Form:
    """The form that a file's ending names; Markdown without one. Raises `UsageError` for any other ending."""
    ending = Path(file).suffix.lower()
    if ending and ending not in _ENDINGS:
        raise UsageError(f"No form is known by the ending {ending}: there is .md, .json and .html.")
    return _ENDINGS.get(ending, "md")


def document(form: Form, info: SessionInfo, entries: Sequence[Entry], mask: Mask | None) -> tuple[str, int]:
    """The document, and in how many places of the session a secret was masked. Takes seconds for a long one."""
    info, entries, places = masked(info, entries, mask) if mask else (info, entries, 0)
    story = story_of(info, entries)
    match form:
        case "md":
            return as_markdown(story), places
        case "html":
            return as_page(story), places
        case "json":
            return _as_json(story, entries), places


async def live_document(session: Session, file: str, known: Sequence[SessionInfo]) -> str:
    """The conversation of an open session, in the form that the file's ending names. Raises `UsageError`."""
    form, services, entries = form_of(file), session.runtime.calls.services, session.snapshot().conversation.entries
    cwd, now = str(services.workspace.cwd), time.time()
    begun = SessionInfo(session.id, cwd, title_of(entries), entries[0].time if entries else now, now, len(entries))
    info = next((info for info in known if info.id == session.id), begun)
    await services.know_secrets()
    text, _ = await asyncio.to_thread(document, form, info, tuple(entries), services.mask)
    return text


def masked(info: SessionInfo, entries: Sequence[Entry], mask: Mask) -> tuple[SessionInfo, list[Entry], int]:
    told, places = mask.written(
        {"info": msgspec.to_builtins(info), "entries": [msgspec.to_builtins(e) for e in entries]}
    )
    return msgspec.convert(told["info"], SessionInfo), msgspec.convert(told["entries"], list[Entry]), places


def shown(info: SessionInfo, entries: Sequence[Entry]) -> dict[str, Any]:
    """A session as plain values: the messages as the next request would send them, and all entries."""
    return {
        "session_id": info.id,
        "messages": [_wire(message) for message in Conversation(entries).valid_messages()],
        "entries": [msgspec.to_builtins(entry) for entry in entries],
    }


def _as_json(story: Story, entries: Sequence[Entry]) -> str:
    info = story.info
    about = {name: getattr(info, name) for name in ("cwd", "name", "title", "created", "updated")}
    model = story.models[-1] if story.models else ""
    value = shown(info, entries)
    value = {
        "session_id": info.id,
        **about,
        "model": model,
        **value,
        "usage": _usage(story.cost),
        "version": __version__,
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def _usage(cost: Meter) -> dict[str, Any]:
    fields = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return {name: getattr(cost.total, name) for name in fields} | {"cost_usd": cost.cost_usd}


def _wire(message: Message) -> dict[str, Any]:
    return {"role": message.role, "content": [block_to_wire(block) for block in message.content]}
