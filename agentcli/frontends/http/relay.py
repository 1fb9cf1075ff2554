"""Sends a session's stream to its readers, and requests to the server process that has the session open.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from agentcli.agent.interfaces import StreamEvent
from agentcli.conversation.conversation import Conversation
from agentcli.errors import StorageError
from agentcli.frontends.http.guard import HttpError
from agentcli.frontends.http.hosting import Hosting
from agentcli.frontends.http.stream import StreamWriter
from agentcli.frontends.json_forms.output import system_object, wire_messages

ALIVE_EVERY_S = 15.0
FORWARDED = "x-agentcli-forwarded"
_PAGE = 200  # events that are read at once
_HELLO = b"retry: 1000\n\n"
_ALIVE = b": alive\n\n"
_TIMEOUT = httpx2.Timeout(30.0, connect=2.0)


async def stream_events(hosting: Hosting, session_id: str, after: int) -> AsyncIterator[bytes]:
    """Send the server-sent events after an id until the session is removed; an unknown id gives a `reset` first."""
    events = hosting.events
    async with hosting.reading(session_id):
        await hosting.catch_up(session_id)
        yield _HELLO
        if after and not await events.has(session_id, after):
            event = await _reset(hosting, session_id)
            after = event.id
            yield _frame(event)
        while True:
            try:
                found = await hosting.events_after(session_id, after, _PAGE, wait_s=ALIVE_EVERY_S)
            except StorageError as error:
                yield b": " + str(error).replace("\n", " ").encode() + b"\n\n"
                return  # the reader comes again
            if not found and await events.state(session_id) is None:
                return
            yield b"".join(map(_frame, found)) or _ALIVE
            after = found[-1].id if found else after


def _frame(event: StreamEvent) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (event.id, event.data)


async def _reset(hosting: Hosting, session_id: str) -> StreamEvent:
    """Return the log as an event with the id of the one that told the newest of it: deltas since then follow."""
    note = (await StreamWriter.of(hosting.events, session_id)).note
    info, entries = await hosting.store.load(session_id)
    reset = system_object(
        "reset",
        session_id,
        messages=wire_messages(Conversation(entries[: note.entries]).messages),
        model=note.model,
        permission_mode=note.mode,
        cwd=info.cwd,
        stream_id=note.span,
        is_open=note.is_open,
    )
    return StreamEvent(note.told, msgspec.json.encode(reset))


async def forward(request: Request, address: str, body: bytes, *, is_repeatable: bool = False) -> Response | None:
    """Forward a request once, to `unix:/run/a.sock` or `http://10.0.0.5:8001`; None if it may be tried again.

    That is where it was not asked, or `is_repeatable` and not answered. Raises `HttpError` for others.
    """
    if FORWARDED in request.headers:
        return None
    headers = {"authorization": request.headers["authorization"], FORWARDED: "1", "host": "localhost"}
    kind, _, path = address.partition(":")
    is_local = kind == "unix"
    transport = httpx2.AsyncHTTPTransport(uds=path if is_local else None, verify=False)  # the address is never https
    url = f"{'http://localhost' if is_local else address}{request.url.path}"
    try:
        async with httpx2.AsyncClient(transport=transport, timeout=_TIMEOUT, trust_env=False) as client:
            answer = await client.request(request.method, url, content=body, headers=headers)
    except httpx2.ConnectError:
        return None
    except httpx2.HTTPError as error:
        if is_repeatable:
            return None
        why = "The server that has the session open ended: look what is done."
        raise HttpError(503, "unknown_outcome", why) from error
    return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))
