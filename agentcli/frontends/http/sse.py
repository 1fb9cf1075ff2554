"""Sends a session's stream as server-sent events, from where the reader left off.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from agentcli.agent.event_store import StreamEvent
from agentcli.conversation.conversation import Conversation
from agentcli.errors import StorageError
from agentcli.frontends.http.hosting import Hosting
from agentcli.frontends.http.stream import StreamWriter
from agentcli.frontends.json_forms.entry_objects import system_object
from agentcli.llm.wire.anthropic_request import block_to_wire

ALIVE_EVERY_S = 15.0
_PAGE = 200  # events that are read at once
_HELLO = b"retry: 1000\n\n"
_ALIVE = b": alive\n\n"


async def sent(hosting: Hosting, session_id: str, after: int) -> AsyncIterator[bytes]:
    """The stream after an event's id, as bytes of the protocol; ends when the session is removed.

    After an id that is not known (any more) the first event is a `reset`: it holds the whole conversation, and takes
    the place of all the reader has.
    """
    events = hosting.events
    async with hosting.reading(session_id):
        await hosting.catch_up(session_id)
        yield _HELLO
        if after and not await events.has(session_id, after):
            event = await _reset(hosting, session_id)
            after = event.id
            yield _in_form(event)
        while True:
            try:
                found = await hosting.events_after(session_id, after, _PAGE, wait_s=ALIVE_EVERY_S)
            except StorageError as error:
                yield b": " + str(error).replace("\n", " ").encode() + b"\n\n"
                return  # the reader comes again
            if not found and await events.state(session_id) is None:
                return
            yield b"".join(map(_in_form, found)) or _ALIVE
            after = found[-1].id if found else after


def _in_form(event: StreamEvent) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (event.id, event.data)


async def _reset(hosting: Hosting, session_id: str) -> StreamEvent:
    """What the log holds, as an event with the id of the one that told the newest of it: deltas since then follow."""
    note = (await StreamWriter.of(hosting.events, session_id)).note
    info, entries = await hosting.sessions.load(session_id)
    conversation = Conversation(entries[: note.entries])
    messages: list[dict[str, Any]] = [
        {"role": message.role, "content": [block_to_wire(block) for block in message.content]}
        for message in conversation.messages
    ]
    told = {
        "messages": messages,
        "model": note.model,
        "permission_mode": note.mode,
        "cwd": info.cwd,
        "stream_id": note.span,
        "is_open": note.is_open,
    }
    return StreamEvent(note.told, msgspec.json.encode(system_object("reset", session_id, **told)))
