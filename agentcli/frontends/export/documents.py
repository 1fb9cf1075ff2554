"""Writes a session in the requested form, without secrets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentcli.agent.calls.masking import Mask
from agentcli.agent.interfaces import SessionInfo
from agentcli.agent.result import usage_object
from agentcli.agent.session import Session
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Entry
from agentcli.conversation.history import title_of
from agentcli.errors import UsageError
from agentcli.frontends.export.markdown import as_markdown
from agentcli.frontends.export.page import as_page
from agentcli.frontends.export.story import story_of
from agentcli.frontends.json_forms.output import wire_messages
from agentcli.version import __version__

Form = Literal["md", "json", "html"]
_ENDINGS: dict[str, Form] = {"": "md", ".md": "md", ".markdown": "md", ".json": "json", ".html": "html", ".htm": "html"}


def form_of(file: str) -> Form:
    """Return the form that a file's ending names; Markdown without one. Raises `UsageError` for any other ending."""
    ending = Path(file).suffix.lower()
    if ending not in _ENDINGS:
        raise UsageError(f"No form is known by the ending {ending}: there is .md, .json and .html.")
    return _ENDINGS[ending]


def document(form: Form, info: SessionInfo, entries: Sequence[Entry], mask: Mask | None) -> tuple[str, int]:
    """Return the document, and the number of places in which a secret was masked. A long one takes seconds."""
    places = 0
    if mask:
        value, places = mask.written(msgspec.to_builtins({"info": info, "entries": list(entries)}))
        info, entries = msgspec.convert(value["info"], SessionInfo), msgspec.convert(value["entries"], list[Entry])
    story = story_of(info, entries)
    match form:
        case "md":
            return as_markdown(story), places
        case "html":
            return as_page(story), places
        case "json":
            value = {
                "session_id": info.id,
                **{name: getattr(info, name) for name in ("cwd", "name", "title", "created", "updated")},
                "model": story.models[-1] if story.models else "",
                **shown(info, entries),
                "usage": usage_object(story.cost.total.usage) | {"cost_usd": story.cost.total.whole_usd},
                "version": __version__,
            }
            return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n", places


async def live_document(session: Session, file: str, known: Sequence[SessionInfo]) -> str:
    """Return the conversation of an open session, in the form that the file's ending names. Raises `UsageError`."""
    form, services, entries = form_of(file), session.runtime.calls.services, session.snapshot().conversation.entries
    cwd, title, now = str(services.workspace.cwd), title_of(entries), time.time()
    begun_at = entries[0].time if entries else now
    begun = SessionInfo(session.id, cwd, title, created=begun_at, updated=now, entries=len(entries))
    info = next((info for info in known if info.id == session.id), begun)
    await services.know_secrets()
    text, _ = await asyncio.to_thread(document, form, info, tuple(entries), services.mask)
    return text


def shown(info: SessionInfo, entries: Sequence[Entry]) -> dict[str, Any]:
    """Return a session as plain values: the messages as the next request would send them, and all entries."""
    messages = wire_messages(Conversation(entries).valid_messages())
    return {"session_id": info.id, "messages": messages, "entries": msgspec.to_builtins(list(entries))}
