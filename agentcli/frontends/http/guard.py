"""Lets in requests with a token, from an address that is ours, and not too often; answers those that fail."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agentcli.errors import AmbiguousSession, NoSession, SessionInUse, StorageError, UsageError, UserError
from agentcli.frontends.json_forms.input import NobodyWaits
from agentcli.settings.structs import ServeTokenSettings

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
