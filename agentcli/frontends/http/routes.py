"""Answers the requests of clients."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agentcli.agent.interfaces import SessionInfo
from agentcli.agent.permissions.modes import parse_mode
from agentcli.conversation.conversation import Conversation
from agentcli.errors import NoSession, StreamMoved, UsageError, UserError
from agentcli.frontends.http.description import description
from agentcli.frontends.http.failures import Refused, failed, json_answer
from agentcli.frontends.http.forwarding import Forwarding
from agentcli.frontends.http.guard import token_of
from agentcli.frontends.http.hosted import HostedSession
from agentcli.frontends.http.hosting import Hosting
from agentcli.frontends.http.opening import Wanted
from agentcli.frontends.http.page import PAGE_FILES, page_file
from agentcli.frontends.http.requests import NewSession, TakeOver, body_of, message_of, op_of, parsed
from agentcli.frontends.http.sse import sent
from agentcli.frontends.http.stream import StreamWriter
from agentcli.frontends.json_forms.input import Message
from agentcli.llm.wire.anthropic_request import block_to_wire
from agentcli.version import __version__

MOST_LISTED = 200
_TRY_FOR_S = 8.0  # an owner that died is known after its lease

Answer = Callable[[Request], Awaitable[Response]]


class Routes:
    """The application of one server process. Sessions begin in `cwd` where a client names no folder."""

    def __init__(self, hosting: Hosting, forwarding: Forwarding, *, cwd: Path) -> None:
        self._hosting = hosting
        self._forwarding = forwarding
        self._cwd = cwd

    def application(self, *, on_ready: Callable[[], Any]) -> Starlette:
        """The ASGI application; calls `on_ready` once it answers."""
        session = "/v1/sessions/{session_id}"
        routes = [
            Route("/", _page("page.html")),
            *(Route(f"/{name}", _page(name)) for name in PAGE_FILES),
            Route("/health", self._told(self._health)),
            Route("/openapi.json", self._told(self._describe)),
            Route("/v1/sessions", self._told(self._create), methods=["POST"]),
            Route("/v1/sessions", self._told(self._list), methods=["GET"]),
            Route(session, self._told(self._show), methods=["GET"]),
            Route(session, self._told(self._remove), methods=["DELETE"]),
            Route(f"{session}/messages", self._told(self._message), methods=["POST"]),
            Route(f"{session}/ops", self._told(self._op), methods=["POST"]),
            Route(f"{session}/events", self._told(self._events), methods=["GET"]),
            Route("/v1/usage", self._told(self._usage), methods=["GET"]),
        ]

        @asynccontextmanager
        async def running(app: Starlette) -> Any:
            looking = asyncio.create_task(self._hosting.run())
            on_ready()
            try:
                yield
            finally:
                looking.cancel()
                await self._hosting.aclose()
                await self._forwarding.aclose()

        return Starlette(routes=routes, lifespan=running, exception_handlers={HTTPException: _http_failure})

    def _told(self, answer: Answer) -> Answer:
        async def told(request: Request) -> Response:
            try:
                return await answer(request)
            except UserError as error:
                return failed(error)

        return told

    async def _health(self, request: Request) -> Response:
        return json_answer({"status": "ok", "version": __version__})

    async def _describe(self, request: Request) -> Response:
        return json_answer(description())

    # Sessions

    async def _create(self, request: Request) -> Response:
        given, token = parsed(await body_of(request), NewSession), token_of(request)
        if given.permission_mode:
            parse_mode(given.permission_mode)
        if token.user_id and given.user_id not in ("", token.user_id):
            raise Refused(403, "user", f"This token begins sessions of {token.user_id} alone.")
        cwd = await asyncio.to_thread(_folder, given.cwd) if given.cwd else self._cwd
        user_id = token.user_id or given.user_id
        wanted = Wanted(cwd, "", given.model, given.permission_mode, user_id, name=given.name)
        session_id = await self._hosting.create(wanted)
        return json_answer({"session_id": session_id}, 201, {"Location": f"/v1/sessions/{session_id}"})

    async def _list(self, request: Request) -> Response:
        limit = _number(request, "limit", 50, most=MOST_LISTED)
        found = await self._hosting.sessions.list(token_of(request).user_id or None, limit)
        running = set(await self._hosting.events.running())
        return json_answer([_listed(info, is_running=info.id in running) for info in found])

    async def _show(self, request: Request) -> Response:
        info = await self._found(request)
        _, entries = await self._hosting.sessions.load(info.id)
        note = (await StreamWriter.of(self._hosting.events, info.id)).note
        state = await self._hosting.events.state(info.id)
        holder = await self._hosting.sessions.holder(info.id)
        conversation = Conversation(entries)
        told = {
            "model": note.model,
            "permission_mode": note.mode,
            "last_event_id": state.last_id if state else 0,
            "held_by": {None: None, "": "terminal"}.get(holder, "server"),
            "messages": [
                {"role": message.role, "content": [block_to_wire(block) for block in message.content]}
                for message in conversation.messages
            ],
        }
        is_running = state is not None and state.status == "running"
        return json_answer(_listed(info, is_running=is_running) | told)

    async def _remove(self, request: Request) -> Response:
        info = await self._found(request)
        if (there := await self._elsewhere(request, info.id)) is not None:
            return there
        await self._hosting.remove(info.id)
        return Response(status_code=204)

    async def _found(self, request: Request) -> SessionInfo:
        """The session of the address; another user's is not there. Raises `NoSession`."""
        session_id = request.path_params["session_id"]
        user = token_of(request).user_id or None
        info, _ = await self._hosting.sessions.load(session_id, after=1 << 40, user_id=user)
        if info.id != session_id:
            raise NoSession(session_id[:80])
        return info

    # What is asked of a session

    async def _message(self, request: Request) -> Response:
        body, info = await body_of(request), await self._found(request)
        given = message_of(body)
        given = replace(given, stream_id=given.stream_id or uuid.uuid4().hex)  # before it is handed on, perhaps twice

        async def take(hosted: HostedSession) -> dict[str, Any]:
            message, steers = Message(given.content), given.mode == "steer"
            told = await hosted.message(message, steers=steers, tools=given.tools, stream_id=given.stream_id)
            return {"stream_id": told}

        return await self._asked(request, msgspec.json.encode(given), info, take, is_repeatable=True)

    async def _op(self, request: Request) -> Response:
        body, info = await body_of(request), await self._found(request)
        asks = op_of(body)

        async def take(hosted: HostedSession) -> dict[str, Any]:
            if not isinstance(asks, TakeOver):
                await hosted.control(asks)
            return {"ok": True}

        return await self._asked(request, body, info, take, take_over=isinstance(asks, TakeOver))

    async def _asked(
        self,
        request: Request,
        body: bytes,
        info: SessionInfo,
        take: Callable[[HostedSession], Awaitable[dict[str, Any]]],
        *,
        take_over: bool = False,
        is_repeatable: bool = False,
    ) -> Response:
        """Have it done here, or by the server that owns the session. Raises `UserError`."""
        deadline = time.monotonic() + _TRY_FOR_S
        while True:
            owner = await self._hosting.owner(info.id, take_over=take_over)
            if isinstance(owner, HostedSession):
                try:
                    return json_answer(await take(owner), 202)
                except StreamMoved:
                    self._hosting.give_up(info.id)  # another server has taken it
            elif not owner.address:
                raise _held_by_a_terminal(info)
            elif answer := await self._forwarding.forward(request, owner.address, body, is_repeatable=is_repeatable):
                return answer
            if time.monotonic() > deadline:
                raise Refused(503, "no_owner", "The server that has the session open does not answer: try again.")
            await asyncio.sleep(0.25)

    async def _elsewhere(self, request: Request, session_id: str) -> Response | None:
        """The answer of the server that owns the session; None where none does."""
        if self._hosting.hosted(session_id) is not None:
            return None
        owner = await self._hosting.sessions.holder(session_id)
        if owner == "":
            raise Refused(409, "in_use", "A terminal has the session open: end it there, or take it over first.")
        return await self._forwarding.forward(request, owner, b"", is_repeatable=True) if owner else None

    async def _events(self, request: Request) -> Response:
        info = await self._found(request)
        after = 0
        if given := request.headers.get("last-event-id") or request.query_params.get("after"):
            after = int(given) if given.isdecimal() and len(given) < 19 else -1  # what is no id of ours is not known
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(sent(self._hosting, info.id, after), media_type="text/event-stream", headers=headers)

    async def _usage(self, request: Request) -> Response:
        days, session = _number(request, "days", 30, most=36_500), request.query_params.get("session", "")
        since = time.time() - days * 86_400 if days and not session else 0.0
        user = token_of(request).user_id or None
        return json_answer(await self._hosting.sessions.usage(since=since, session_id=session, user_id=user))


def _listed(info: SessionInfo, *, is_running: bool) -> dict[str, Any]:
    return {
        "session_id": info.id,
        "cwd": info.cwd,
        "name": info.name,
        "title": info.title,
        "last_prompt": info.last_prompt,
        "created": info.created,
        "updated": info.updated,
        "entries": info.entries,
        "user_id": info.user_id,
        "is_running": is_running,
    }


def _held_by_a_terminal(info: SessionInfo) -> Refused:
    return Refused(
        409,
        "in_use",
        f"Session {info.id} is open in a terminal, where it can be followed but not steered: take it over with the op "
        '{"type":"take_over"}, which ends it there in order.',
    )


def _number(request: Request, name: str, otherwise: int, *, most: int) -> int:
    given = request.query_params.get(name)
    if given is None:
        return otherwise
    if not given.isdecimal() or len(given) > 9 or int(given) > most:
        raise Refused(400, "invalid", f"{name} is a number from 0 to {most}.")
    return int(given)


def _folder(name: str) -> Path:
    folder = Path(name)
    if not folder.is_absolute() or "\0" in name:
        raise UsageError(f"cwd is an absolute path, not {name[:200]!r}.")
    with suppress(OSError):
        if folder.is_dir():
            return folder
    raise UsageError(f"Could not work in {name[:200]}: there is no such folder.")


def _page(name: str) -> Answer:
    async def answer(request: Request) -> Response:
        content, kind = page_file(name)
        policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:"
        headers = {
            "Content-Security-Policy": f"{policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        }
        return Response(content, media_type=kind, headers=headers)

    return answer


async def _http_failure(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return failed(Refused(error.status_code, "not_found", f"{error.detail}: /openapi.json names what there is."))
