"""Answers the requests of clients, or forwards them to the server process that has the session open.

Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agentcli.agent.interfaces import SessionInfo, StreamEvent
from agentcli.agent.permissions.modes import parse_mode
from agentcli.conversation.conversation import Conversation
from agentcli.errors import StorageError, StreamMoved, UserError
from agentcli.frontends.hosts import OpenRequest, session_info, working_folder
from agentcli.frontends.http import requests as forms
from agentcli.frontends.http.hosted import HostedSession
from agentcli.frontends.http.hosting import Hosting
from agentcli.frontends.http.stream import StreamWriter
from agentcli.frontends.json_output import system_object, wire_messages
from agentcli.version import __version__

MAX_LISTED = 200
_MEDIA_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "json": "application/json"}
_OWNER_TIMEOUT_S = 8.0  # longer than the lease of a dead owner, after which another server takes over

_SESSION = "/v1/sessions/{session_id}"


class Routes:
    """The application of one server process. Sessions start in `cwd` if the client names no folder."""

    def __init__(self, hosting: Hosting, *, cwd: Path) -> None:
        self._hosting = hosting
        self._cwd = cwd

    def application(self, *, on_ready: Callable[[], Any], more: Sequence[Route] = ()) -> Starlette:
        """Return the ASGI application, with `more` routes; it calls `on_ready` when it starts to answer."""
        pages = {"/": "page.html", **{f"/{name}": name for name in forms.PAGE_FILES}}
        routes = [
            *(Route(path, _page(name)) for path, name in pages.items()),
            Route("/health", self._health),
            Route("/v1/sessions", self._create, methods=["POST"]),
            Route("/v1/sessions", self._list),
            Route(_SESSION, self._show),
            Route(_SESSION, self._remove, methods=["DELETE"]),
            Route(f"{_SESSION}/messages", self._message, methods=["POST"]),
            Route(f"{_SESSION}/ops", self._op, methods=["POST"]),
            Route(f"{_SESSION}/events", self._events),
            Route("/v1/usage", self._usage),
            *more,
        ]

        @asynccontextmanager
        async def lifespan(app: Starlette) -> Any:
            hosting = asyncio.create_task(self._hosting.run())
            on_ready()
            try:
                yield
            finally:
                hosting.cancel()
                await self._hosting.aclose()

        handlers = {HTTPException: _failure, UserError: _failure}
        return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)

    async def _health(self, request: Request) -> Response:
        return forms.json_answer({"status": "ok", "version": __version__})

    async def _create(self, request: Request) -> Response:
        new: forms.NewSession = forms.parse_body(await forms.body_of(request), forms.NewSession)
        token_user = forms.token_of(request).user_id
        if new.permission_mode:
            parse_mode(new.permission_mode)  # raises an error for an unknown one
        if token_user and new.user_id not in ("", token_user):
            raise forms.HttpError(403, "user", f"This token can start only sessions of {token_user}.")
        cwd = await asyncio.to_thread(working_folder, new.cwd) if new.cwd else self._cwd
        user_id = token_user or new.user_id
        open_request = OpenRequest(cwd=cwd, model=new.model, mode=new.permission_mode, name=new.name, user_id=user_id)
        session_id = await self._hosting.create(open_request)
        return forms.json_answer({"session_id": session_id}, 201, {"Location": f"/v1/sessions/{session_id}"})

    async def _list(self, request: Request) -> Response:
        limit = _query_number(request, "limit", 50, maximum=MAX_LISTED)
        found = await self._hosting.store.list(limit=limit, user_id=forms.token_of(request).user_id or None)
        running = set(await self._hosting.events.running())
        return forms.json_answer([_row(info, is_running=info.id in running) for info in found])

    async def _show(self, request: Request) -> Response:
        info = await self._session_of(request)
        _, entries = await self._hosting.store.load(info.id)
        note = (await StreamWriter.of(self._hosting.events, info.id)).note
        state = await self._hosting.events.state(info.id)
        address = await self._hosting.store.holder(info.id)  # "" for a terminal, None if no program has it open
        is_on_server = info.id in self._hosting.sessions or bool(address)
        shown = _row(info, is_running=state is not None and state.status == "running") | {
            "model": note.model,
            "permission_mode": note.mode,
            "last_event_id": state.last_id if state else 0,
            "held_by": "server" if is_on_server else "terminal" if address == "" else None,
            "messages": wire_messages(Conversation(entries).messages),
        }
        return forms.json_answer(shown)

    async def _remove(self, request: Request) -> Response:
        info = await self._session_of(request)
        owner = None if info.id in self._hosting.sessions else await self._hosting.store.holder(info.id)
        if owner == "":  # a terminal, which has no address to forward to
            raise forms.HttpError(
                409, "in_use", "The session is open in a terminal. Close it there, or take it over first."
            )
        if owner and (answer := await forward(request, owner, b"", is_repeatable=True)) is not None:
            return answer
        await self._hosting.remove(info.id)
        return Response(status_code=204)

    async def _session_of(self, request: Request) -> SessionInfo:
        """Return the session in the request's path. Raises `NoSession`, also for a session of another user."""
        user = forms.token_of(request).user_id or None
        return await session_info(self._hosting.store, request.path_params["session_id"], user_id=user)

    async def _message(self, request: Request) -> Response:
        body, info = await forms.body_of(request), await self._session_of(request)
        new: forms.NewMessage = forms.parse_body(body, forms.NewMessage)
        # The stream_id must be set before forwarding, so that a message forwarded twice is accepted once.
        new = msgspec.structs.replace(new, stream_id=new.stream_id or uuid.uuid4().hex)

        async def submit(hosted: HostedSession) -> dict[str, Any]:
            steers, tools, stream_id = new.mode == "steer", new.tools, new.stream_id
            turn_id = await hosted.accept_message(new.message, steers=steers, tools=tools, stream_id=stream_id)
            return {"stream_id": turn_id}

        return await self._to_owner(request, msgspec.json.encode(new), info, submit, is_repeatable=True)

    async def _op(self, request: Request) -> Response:
        body, info = await forms.body_of(request), await self._session_of(request)
        op: forms.Op = forms.parse_body(body, forms.Op)

        async def submit(hosted: HostedSession) -> dict[str, Any]:
            if not isinstance(op, forms.TakeOver):  # for which `_to_owner` has opened the session here
                await hosted.carry_out(op)
            return {"ok": True}

        return await self._to_owner(request, body, info, submit, take_over=isinstance(op, forms.TakeOver))

    async def _to_owner(
        self,
        request: Request,
        body: bytes,
        info: SessionInfo,
        submit: Callable[[HostedSession], Awaitable[dict[str, Any]]],
        *,
        take_over: bool = False,
        is_repeatable: bool = False,
    ) -> Response:
        """Submit a request to the session here, or forward it to the server that owns it. Raises `UserError`.

        Tries again while the owner changes or cannot be reached, because the lease of a dead owner expires. If the
        connection to an owner breaks, only a request that `is_repeatable` is sent again: others might run twice.
        """
        deadline = time.monotonic() + _OWNER_TIMEOUT_S
        while True:
            owner = await self._hosting.open_or_locate(info.id, take_over=take_over)
            if isinstance(owner, HostedSession):
                try:
                    return forms.json_answer(await submit(owner), 202)
                except StreamMoved:
                    self._hosting.give_up(info.id)  # another server has taken the session over
            elif not owner:  # a terminal has no address
                where = f"Session {info.id} is open in a terminal. You can follow it but not steer it."
                how = 'To take it over, send the op {"type":"take_over"}, which closes it there.'
                raise forms.HttpError(409, "in_use", f"{where} {how}")
            elif answer := await forward(request, owner, body, is_repeatable=is_repeatable):
                return answer
            if time.monotonic() > deadline:
                raise forms.HttpError(
                    503, "no_owner", "The server that has the session open does not answer. Try again."
                )
            await asyncio.sleep(0.25)

    async def _events(self, request: Request) -> Response:
        info = await self._session_of(request)
        last_id = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
        # 18 digits always fit into the 64 bits of an id. No event has the id -1, so the reader gets a `reset`.
        after = int(last_id) if last_id.isdecimal() and len(last_id) < 19 else -1
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # keeps nginx from buffering events
        return StreamingResponse(stream_events(self._hosting, info.id, after), 200, headers, "text/event-stream")

    async def _usage(self, request: Request) -> Response:
        days, session = _query_number(request, "days", 30, maximum=36_500), request.query_params.get("session", "")
        since = time.time() - days * 86_400 if days and not session else 0.0  # the usage of a session is shown whole
        user = forms.token_of(request).user_id or None
        return forms.json_answer((await self._hosting.store.usage(since=since, session=session, user_id=user)).report())


def _row(info: SessionInfo, *, is_running: bool) -> dict[str, Any]:
    fields = msgspec.structs.asdict(info)
    return {"session_id": fields.pop("id"), **fields, "is_running": is_running}


def _query_number(request: Request, name: str, default: int, *, maximum: int) -> int:
    text = request.query_params.get(name, str(default))
    is_short = len(text) <= 9  # `int` raises an error for very long numbers
    if not text.isdecimal() or not is_short or int(text) > maximum:
        raise forms.HttpError(400, "invalid", f"{name} must be a number from 0 to {maximum}.")
    return int(text)


def _page(name: str) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler for a file of the folder `page`."""
    content, media_type = files(__package__).joinpath("page", name).read_bytes(), _MEDIA_TYPES[name.rpartition(".")[2]]
    policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:"
    headers = {
        "Content-Security-Policy": f"{policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }

    async def answer(request: Request) -> Response:
        return Response(content, media_type=media_type, headers=headers)

    return answer


async def _failure(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):  # from the router: no route has this path (404) or this method (405)
        error = forms.HttpError(error.status_code, "not_found", f"{error.detail}. For all routes, see /openapi.json.")
    assert isinstance(error, UserError)
    return forms.error_answer(error)


KEEPALIVE_S = 15.0
_MAX_EVENTS = 200  # read from the store at once


async def stream_events(hosting: Hosting, session_id: str, after: int) -> AsyncIterator[bytes]:
    """Yield the events after an id until the session is removed; a reader with an unknown id first gets a `reset`."""
    events = hosting.events
    async with hosting.reading(session_id):
        await hosting.catch_up(session_id)
        yield b"retry: 1000\n\n"  # ms until a disconnected reader connects again
        if after and not await events.has(session_id, after):
            event = await _reset_event(hosting, session_id)
            after = event.id
            yield _frame(event)
        while True:
            try:
                found = await hosting.events_after(session_id, after, _MAX_EVENTS, wait_s=KEEPALIVE_S)
            except StorageError as error:
                yield b": " + str(error).replace("\n", " ").encode() + b"\n\n"  # a comment
                return  # the reader will connect again
            if not found and await events.state(session_id) is None:  # the session was removed
                return
            yield b"".join(map(_frame, found)) or b": alive\n\n"
            after = found[-1].id if found else after


def _frame(event: StreamEvent) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (event.id, event.data)


async def _reset_event(hosting: Hosting, session_id: str) -> StreamEvent:
    """Return the conversation as one event, for a reader that missed some; events since its newest entry follow it."""
    note = (await StreamWriter.of(hosting.events, session_id)).note
    info, entries = await hosting.store.load(session_id)
    messages = wire_messages(Conversation(entries[: note.entries]).messages)  # later entries follow as events
    state = {"model": note.model, "permission_mode": note.mode, "cwd": info.cwd}
    turn = {"stream_id": note.turn_stream_id, "is_open": note.is_turn_open}
    reset = system_object("reset", session_id, messages=messages, **state, **turn)
    return StreamEvent(note.last_entry_event, msgspec.json.encode(reset))


FORWARDED = "x-agentcli-forwarded"
_TIMEOUT = httpx2.Timeout(30.0, connect=2.0)


async def forward(request: Request, address: str, body: bytes, *, is_repeatable: bool = False) -> Response | None:
    """Forward a request to `unix:/run/a.sock` or `http://10.0.0.5:8001`; return None if it may be sent again.

    That is safe if no server was reached, or if the request `is_repeatable`. Raises `HttpError` for an unknown outcome.
    """
    if FORWARDED in request.headers:  # another server believed that this one is the owner: prevent a loop
        return None
    headers = {"authorization": request.headers["authorization"], FORWARDED: "1", "host": "localhost"}
    kind, _, path = address.partition(":")
    is_local = kind == "unix"
    transport = httpx2.AsyncHTTPTransport(uds=path if is_local else None, verify=False)  # the address is never https
    url = f"{'http://localhost' if is_local else address}{request.url.path}"
    try:
        async with httpx2.AsyncClient(transport=transport, timeout=_TIMEOUT, trust_env=False) as client:
            answer = await client.request(request.method, url, content=body, headers=headers)
    except httpx2.HTTPError as error:
        if is_repeatable or isinstance(error, httpx2.ConnectError):
            return None
        raise forms.HttpError(
            503, "unknown_outcome", "The server that has the session open stopped. Check what was done."
        ) from error
    return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))
