"""Answers requests that failed, in one form: `{"error": {"code", "message"}}`."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from agentcli.errors import AmbiguousSession, NoSession, SessionInUse, StorageError, UsageError, UserError
from agentcli.frontends.json_forms.controlling import NobodyWaits


class Refused(UserError):
    """A request that is not served: an HTTP status, and a word for programs."""

    def __init__(self, status: int, code: str, message: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or {}


def json_answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def failed(error: UserError) -> Response:
    match error:
        case Refused(status=status, code=code):
            pass
        case NoSession() | AmbiguousSession():
            status, code = 404, "not_found"
        case NobodyWaits():
            status, code = 409, "nobody_waits"
        case SessionInUse():
            status, code = 409, "in_use"
        case StorageError():
            status, code = 503, "storage"
        case UsageError():
            status, code = 400, "invalid"
        case _:
            status, code = 422, "refused"
    headers = error.headers if isinstance(error, Refused) else {}
    return json_answer({"error": {"code": code, "message": str(error)}}, status, headers)
