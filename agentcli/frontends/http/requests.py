"""Defines the bodies of requests and of answers, reads the former, and describes them in the form of OpenAPI 3.1.

https://spec.openapis.org/oas/v3.1.1.html
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.requests import ClientDisconnect, Request

from agentcli.frontends.http.guard import HttpError
from agentcli.frontends.json_forms import input as json_input
from agentcli.llm.provider import ToolSpec
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
        is_message = isinstance(given, NewMessage)
        for part in (json_input.Say(given.message), json_input.ClientTools(given.tools)) if is_message else (given,):
            json_input.check_request(part)
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
