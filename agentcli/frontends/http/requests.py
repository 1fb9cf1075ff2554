"""Defines the bodies of requests and of answers, reads the former, and describes them in the form of OpenAPI 3.1.

https://spec.openapis.org/oas/v3.1.1.html
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agentcli.errors import AmbiguousSession, NoSession, SessionInUse, StorageError, UsageError, UserError
from agentcli.frontends import json_input
from agentcli.frontends.json_input import NobodyWaits
from agentcli.llm.provider import ToolSpec
from agentcli.settings.structs import ServeTokenSettings
from agentcli.version import __version__

LARGEST_BODY = 32 * 1024 * 1024  # bytes: what the Messages API takes in one request

_REF = "#/components/schemas/{name}"
_ABOUT = (
    "Sessions of a coding assistant. A session has one stream of events, numbered by integers that only grow: follow "
    "it with GET /v1/sessions/{session_id}/events, and send messages and ops beside it. The objects in it are those of "
    "`agentcli -p --output-format stream-json --include-partial-messages`."
)

Time = Annotated[float, Meta(description="Seconds since 1970.")]
Messages = Annotated[list[dict[str, Any]], Meta(description="In the form of the Messages API.")]


class NewSession(Struct, frozen=True, forbid_unknown_fields=True):
    """A session to begin. `cwd` is absolute; what is left out is as the settings of that folder say."""

    cwd: str = ""
    model: str = ""
    permission_mode: str = ""
    user_id: str = ""
    name: str = ""


class NewMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """A message. While a turn runs `steer` reaches the model with its next request; others wait for the turn's end.

    `tools` are the client's own, from the next turn on. With a `stream_id` of the client's own the message is taken
    once, however often it is sent.
    """

    content: str | tuple[json_input.Media, ...]
    mode: Literal["prompt", "steer", "follow_up"] = "prompt"
    tools: tuple[ToolSpec, ...] = ()
    stream_id: Annotated[str, Meta(max_length=128)] = ""

    @property
    def message(self) -> json_input.Message:
        return json_input.Message(self.content)


class TakeOver(Struct, frozen=True, tag="take_over"):
    """Have the program that has the session open end, and go on with it here."""


Op = json_input.Control | TakeOver


class Health(Struct, frozen=True):
    status: Literal["ok"] = "ok"
    version: str = __version__


class Begun(Struct, frozen=True):
    session_id: str


class MessageTaken(Struct, frozen=True):
    stream_id: str


class OpTaken(Struct, frozen=True):
    ok: Literal[True] = True


class SessionRow(Struct, frozen=True, kw_only=True):
    """A stored session."""

    session_id: str
    cwd: str
    name: str
    title: str
    last_prompt: str
    created: Time
    updated: Time
    entries: int
    user_id: str
    is_running: bool


class WholeSession(SessionRow, frozen=True, kw_only=True):
    """A stored session with its messages."""

    model: str
    permission_mode: str
    last_event_id: int
    held_by: Literal["server", "terminal"] | None
    messages: Messages


class Failure(Struct, frozen=True):
    code: str
    message: str


class Error(Struct, frozen=True):
    error: Failure


class Event(Struct, frozen=True):
    """`type` is assistant, user, stream_event, system (with a `subtype`) or result.

    Objects of a prompt's turn carry its `stream_id`; its result is the last of them. A system object `reset` holds all
    messages, and takes the place of what the reader has; one `init` with `is_resumed` takes back an unfinished message.
    A system object `approval_requested` or `question` waits for an op with its `id`.
    """

    type: str
    subtype: str = ""
    session_id: str = ""
    stream_id: str = ""


class Operation(Struct, frozen=True, kw_only=True):
    """A method of a path: the types of its body, its answer and its parameters. One that `is_open` needs no token."""

    method: str
    path: str
    summary: str
    body: Any = None
    status: int = 200
    answer: Any = None
    query: dict[str, type] = {}
    is_open: bool = False


async def body_of(request: Request) -> bytes:
    """Raises `HttpError`."""
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > LARGEST_BODY:
                raise HttpError(413, "too_large", f"A request has at most {LARGEST_BODY // 1024**2} MB.")
            parts.append(part)
    except ClientDisconnect as gone:
        raise HttpError(400, "invalid", "The request broke off.") from gone
    return b"".join(parts)


def parsed(body: bytes, form: Any) -> Any:
    """Return the body as a `form`. Raises `HttpError` that says what was expected."""
    try:
        given = msgspec.convert(json_input.json_in(body or b"{}"), form)
        if isinstance(given, NewMessage):
            json_input.check_request(json_input.UserMessage(given.message))
            json_input.check_request(json_input.ClientTools(given.tools))
        else:
            json_input.check_request(given)
    except (ValueError, RecursionError) as error:
        types = f" The type of an op is one of {', '.join((*json_input.CONTROLS, 'take_over'))}." if form is Op else ""
        raise HttpError(400, "invalid", f"{str(error).rstrip('.')}.{types}") from error
    return given


def openapi(operations: Sequence[Operation]) -> dict[str, Any]:
    forms = [form for one in operations for form in (one.body, one.answer) if form is not None]
    schemas, components = msgspec.json.schema_components([*forms, Error], ref_template=_REF)
    failure = _content("application/json", schemas[-1], "Refused.")
    rest = iter(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        made: dict[str, Any] = {"summary": one.summary}
        places: list[tuple[str, str, type]] = [(name, "path", str) for name in re.findall(r"\{(\w+)\}", one.path)]
        places += [(name, "header" if "-" in name else "query", kind) for name, kind in one.query.items()]
        made["parameters"] = [
            {"name": name, "in": place, "required": place == "path", "schema": msgspec.json.schema(kind)}
            for name, place, kind in places
        ]
        if one.body is not None:
            is_union = not isinstance(one.body, type)
            is_required = is_union or any(field.required for field in msgspec.structs.fields(one.body))
            made["requestBody"] = {"required": is_required, **_content("application/json", next(rest))}
        kind = "text/event-stream" if one.answer is Event else "application/json"
        answer = _content(kind, next(rest) if one.answer is not None else None, "Done.")
        made["responses"] = {str(one.status): answer, "4XX": failure}
        if one.is_open:
            made["security"] = []
        paths.setdefault(one.path, {})[one.method.lower()] = made
    return {
        "openapi": "3.1.0",
        "info": {"title": "agentcli", "version": __version__, "description": _ABOUT},
        "security": [{"token": []}],
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}, "schemas": components},
    }


def _content(kind: str, schema: Any, description: str = "") -> dict[str, Any]:
    content = {"content": {kind: {"schema": schema}}} if schema is not None else {}
    return {**({"description": description} if description else {}), **content}


PAGE_FILES = ("page.css", "page.js", "markdown.js", "questions.js", "stream.js", "view.js")
# These say nothing about any session.
_OPEN = frozenset(("/", "/health", "/openapi.json", *(f"/{name}" for name in PAGE_FILES)))
_HOW_TO_AUTHORIZE = "Send the header Authorization: Bearer TOKEN, with what is in the token file."
_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))


class HttpError(UserError):
    """A request that is not served: an HTTP status, and a word for programs."""

    def __init__(self, status: int, code: str, message: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or {}


def json_answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


_FAILURES: tuple[tuple[type[UserError], int, str], ...] = (
    (NoSession, 404, "not_found"),
    (AmbiguousSession, 404, "not_found"),
    (NobodyWaits, 409, "nobody_waits"),
    (SessionInUse, 409, "in_use"),
    (StorageError, 503, "storage"),
    (UsageError, 400, "invalid"),
    (UserError, 422, "refused"),
)


def failed(error: UserError) -> Response:
    """Answer a request that failed: `{"error": {"code", "message"}}`."""
    if not isinstance(error, HttpError):
        status, code = next((status, code) for kind, status, code in _FAILURES if isinstance(error, kind))
        error = HttpError(status, code, str(error))
    return json_answer({"error": {"code": error.code, "message": str(error)}}, error.status, error.headers)


class Bucket:
    """Lets `per_minute` requests through in a minute, as many of them at once as that is in ten seconds."""

    def __init__(self, per_minute: float) -> None:
        self._rate = per_minute / 60
        self._most = max(1.0, self._rate * 10)
        self._left = self._most
        self._at = time.monotonic()

    def wait_s(self) -> float:
        """Take one, and give 0; or give the seconds until there is one."""
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self._rate


class Guard:
    """ASGI middleware for calls by the names in `hosts`. A token without a `user_id` opens all sessions."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: Sequence[ServeTokenSettings],
        hosts: Collection[str] = (),
        is_socket: bool = False,
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._hosts = {host.lower() for host in hosts} | _LOOPBACK
        self._is_socket = is_socket
        self._buckets = {token.sha256: Bucket(token.rate_per_minute) for token in tokens}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            scope["state"] = {**scope.get("state", {}), "token": self._allowed(HTTPConnection(scope))}
        except HttpError as refused:
            await failed(refused)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allowed(self, asked: HTTPConnection) -> ServeTokenSettings | None:
        """Raises `HttpError`."""
        self._check_names(asked)
        if asked.scope["path"] in _OPEN:
            return None
        token = self._token_of(asked)
        if wait_s := self._buckets[token.sha256].wait_s():
            headers = {"Retry-After": str(int(wait_s) + 1)}
            raise HttpError(429, "rate_limit", f"Too many requests: try again in {wait_s:.1f} s.", headers=headers)
        return token

    def _check_names(self, asked: HTTPConnection) -> None:
        """Another page in the same browser, or a name that leads here by DNS, is none of ours."""
        host = asked.headers.get("host", "")
        if not self._is_socket and _name_of(f"//{host}") not in self._hosts:
            why = f"This server is not called {host[:200]!r}: name it in serve.hosts if it should be."
            raise HttpError(403, "host", why)
        origin = asked.headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise HttpError(403, "origin", f"A page of {origin[:200]!r} may not use this server.")

    def _token_of(self, asked: HTTPConnection) -> ServeTokenSettings:
        kind, _, given = asked.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not given:
            raise HttpError(401, "no_token", _HOW_TO_AUTHORIZE, headers={"WWW-Authenticate": "Bearer"})
        hashed = hashlib.sha256(given.strip().encode()).hexdigest()
        found = [token for token in self._tokens if hmac.compare_digest(token.sha256, hashed)]
        if not found:
            headers = {"WWW-Authenticate": 'Bearer error="invalid_token"'}
            raise HttpError(401, "wrong_token", "That token is not one of this server's.", headers=headers)
        return found[0]


def token_of(request: Request) -> ServeTokenSettings:
    token = request.state.token
    assert isinstance(token, ServeTokenSettings)
    return token


def _name_of(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""
