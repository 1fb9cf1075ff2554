"""Authenticates requests, and defines and parses their bodies."""

import hashlib
import time
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

import msgspec
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agentcli.errors import AmbiguousSession, NoSession, SessionInUse, StorageError, UsageError, UserError
from agentcli.frontends import json_input
from agentcli.llm.provider import ToolSpec
from agentcli.settings.structs import ServeTokenSettings

MAX_BODY_BYTES = 32 * 1024 * 1024  # as in the Messages API
PAGE_FILES = ("openapi.json", "page.css", "page.js", "markdown.js", "questions.js", "stream.js", "view.js")


class HttpError(UserError):
    """A rejected request: an HTTP status, and a `code` for programs."""

    def __init__(self, status: int, code: str, message: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or {}


def json_answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


# The error, its HTTP status and its code. The first class that matches an error applies.
_FAILURES: tuple[tuple[type[UserError], int, str], ...] = (
    (NoSession, 404, "not_found"),
    (AmbiguousSession, 404, "not_found"),
    (json_input.NobodyWaits, 409, "nobody_waits"),
    (SessionInUse, 409, "in_use"),
    (StorageError, 503, "storage"),
    (UsageError, 400, "invalid"),
    (UserError, 422, "refused"),
)


def error_answer(error: UserError) -> Response:
    """Answer a request that failed: `{"error": {"code", "message"}}`."""
    if not isinstance(error, HttpError):
        status, code = next((status, code) for kind, status, code in _FAILURES if isinstance(error, kind))
        error = HttpError(status, code, str(error))
    return json_answer({"error": {"code": error.code, "message": str(error)}}, error.status, error.headers)


# Paths that need no token, because they show nothing of a session.
_OPEN_PATHS = frozenset(("/", "/health", *(f"/{name}" for name in PAGE_FILES)))
_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
BURST_S = 10.0  # a token may use the requests of this many seconds at once


class Access:
    """The access of a token: to the sessions of its user, on paths that begin with `path`.

    Its rate limits the requests per minute; up to `BURST_S` seconds' worth of them (at least one) may come at once.
    """

    def __init__(self, token: ServeTokenSettings, path: str) -> None:
        self.token, self.path = token, path
        self._interval_s = 60 / token.rate_per_minute
        self._lead_s = max(0.0, BURST_S - self._interval_s)  # by which requests may come before they are due
        self._due = 0.0  # monotonic time of the next request if requests were evenly spaced

    def admit(self) -> float:
        """Admit a request and return 0, or return the seconds until the next one may come."""
        now = time.monotonic()
        if (wait_s := self._due - self._lead_s - now) > 0:
            return wait_s
        self._due = max(self._due, now) + self._interval_s
        return 0.0


class Guard:
    """ASGI middleware that checks the host, the token and the rate of requests."""

    def __init__(
        self, app: ASGIApp, *, tokens: Sequence[ServeTokenSettings], hosts: Collection[str] = (), is_unix: bool = False
    ) -> None:
        self._app = app
        self._accesses: dict[str, Access] = {}  # by the hash of the token
        for token in tokens:
            self.add_token(token)
        self._hosts = {host.lower() for host in hosts} | _LOOPBACK  # the names of this server
        self._is_unix = is_unix  # a unix socket accepts any name

    def add_token(self, token: ServeTokenSettings, path: str = "/") -> None:
        self._accesses[token.sha256] = Access(token, path)

    def remove_token(self, secret: str) -> None:
        self._accesses.pop(token_hash(secret), None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http":
            # Spaces around a header's value are not part of it, but httptools keeps trailing ones.
            scope["headers"] = [(name, value.strip()) for name, value in scope["headers"]]
            try:
                scope["state"] = {**scope.get("state", {}), "token": self._check(HTTPConnection(scope))}
            except HttpError as error:
                app = error_answer(error)
        await app(scope, receive, send)

    def _check(self, request: HTTPConnection) -> ServeTokenSettings | None:
        """Return the token of a request, or None for a path that needs none. Raises `HttpError`."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        # DNS rebinding: a foreign page's name may resolve to this server's address.
        if not self._is_unix and _host_of(f"//{host}") not in self._hosts:
            raise HttpError(
                403, "host", f"This server does not accept the host {host[:200]!r}. To allow it, add it to serve.hosts."
            )
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise HttpError(403, "origin", f"Pages of {origin[:200]!r} cannot use this server.")
        if request.scope["path"] in _OPEN_PATHS:
            return None
        if not (secret := bearer_of(request)):
            how = "Send the header Authorization: Bearer TOKEN, with the token of the token file."
            raise HttpError(401, "no_token", how, headers={"WWW-Authenticate": "Bearer"})
        # Looked up by its hash, so that the time of the lookup reveals nothing about valid tokens.
        access = self._accesses.get(token_hash(secret))
        if access is None:
            headers = {"WWW-Authenticate": 'Bearer error="invalid_token"'}
            raise HttpError(401, "wrong_token", "This server does not know that token.", headers=headers)
        # A token for one session can do everything with it but delete it.
        is_allowed = request.scope["path"].startswith(access.path) and request.scope["method"] != "DELETE"
        if access.path != "/" and not is_allowed:
            raise HttpError(403, "one_session", "This token only follows and steers one session.")
        if wait_s := access.admit():
            headers = {"Retry-After": str(int(wait_s) + 1)}  # whole seconds, rounded up
            raise HttpError(429, "rate_limit", f"Too many requests. Try again in {wait_s:.1f} s.", headers=headers)
        return access.token


def bearer_of(request: HTTPConnection) -> str:
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


def token_hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def token_of(request: Request) -> ServeTokenSettings:
    return cast("ServeTokenSettings", request.state.token)


def _host_of(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""


class NewSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session to start. `cwd` is absolute; omitted fields are as in the settings of that folder."""

    cwd: str = ""
    model: str = ""
    permission_mode: str = ""
    user_id: str = ""
    name: str = ""


class NewMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message. While a turn runs, `steer` reaches the model with its next request; others wait for the turn's end.

    `tools` are the client's own, from the next turn on. A message with a `stream_id` chosen by the client is accepted
    only once, however often it is sent.
    """

    content: str | tuple[json_input.Media, ...]
    mode: Literal["prompt", "steer", "follow_up"] = "prompt"
    tools: tuple[ToolSpec, ...] = ()
    stream_id: Annotated[str, msgspec.Meta(max_length=128)] = ""

    @property
    def message(self) -> json_input.InputMessage:
        return json_input.InputMessage(self.content)


class TakeOver(msgspec.Struct, frozen=True, tag="take_over"):
    """End the program that has the session open, and continue the session here."""


Op = json_input.Control | TakeOver


async def body_of(request: Request) -> bytes:
    """Return the body of a request. Raises `HttpError` if it is too large or incomplete."""
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > MAX_BODY_BYTES:
                raise HttpError(413, "too_large", f"The request exceeds {MAX_BODY_BYTES // 1024**2} MB.")
            parts.append(part)
    except ClientDisconnect as gone:
        raise HttpError(400, "invalid", "The request was incomplete.") from gone
    return b"".join(parts)


def parse_body(body: bytes, form: Any) -> Any:
    """Parse the body as the type `form`. Raises `HttpError` with the reason if it is not valid."""
    try:
        parsed = msgspec.convert(json_input.decode_input(body or b"{}"), form)
        if isinstance(parsed, NewMessage):  # checked like the same message on stdin
            json_input.check_request(json_input.UserMessage(parsed.message))
            json_input.check_request(json_input.ClientToolsControl(parsed.tools))
        else:
            json_input.check_request(parsed)
    except (ValueError, RecursionError) as error:
        types = f" The op type must be one of {', '.join((*json_input.CONTROLS, 'take_over'))}." if form is Op else ""
        raise HttpError(400, "invalid", f"{str(error).rstrip('.')}.{types}") from error
    return parsed
