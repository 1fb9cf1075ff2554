"""Describes the interface of `agentcli serve` as OpenAPI 3.1: python docs/make_openapi.py.

https://spec.openapis.org/oas/v3.1.1.html
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from agentcli.agent.interfaces import SessionInfo
from agentcli.frontends.http.requests import NewMessage, NewSession, Op
from agentcli.version import __version__

FILE = Path(__file__).parents[1] / "agentcli/frontends/http/page/openapi.json"
Time = Annotated[float, msgspec.Meta(description="Seconds since 1970.")]


class ServerHealth(msgspec.Struct, frozen=True):
    status: Literal["ok"] = "ok"
    version: str = __version__


class Begun(msgspec.Struct, frozen=True):
    session_id: str


class MessageTaken(msgspec.Struct, frozen=True):
    stream_id: str


class OpTaken(msgspec.Struct, frozen=True):
    ok: Literal[True] = True


class SessionRow(SessionInfo, frozen=True, kw_only=True):
    """A stored session."""

    id: str = msgspec.field(name="session_id")  # `rename` of the class would leave out inherited fields
    created: Time
    updated: Time
    is_running: bool


class WholeSession(SessionRow, frozen=True, kw_only=True):
    """A stored session with its messages."""

    model: str
    permission_mode: str
    last_event_id: int
    held_by: Literal["server", "terminal"] | None
    messages: Annotated[list[dict[str, Any]], msgspec.Meta(description="In the form of the Messages API.")]


class Failure(msgspec.Struct, frozen=True):
    code: str
    message: str


class Error(msgspec.Struct, frozen=True):
    error: Failure


class Event(msgspec.Struct, frozen=True):
    """`type` is assistant, user, stream_event, system (with a `subtype`) or result.

    Objects of a prompt's turn carry its `stream_id`; the last of them is the result. The system object `reset` contains
    all messages and replaces those that the reader has; `init` with `is_resumed` withdraws an unfinished message.
    `approval_requested` and `question` wait for an op with the same `id`.
    """

    type: str
    subtype: str = ""
    session_id: str = ""
    stream_id: str = ""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A method of a path, as OpenAPI describes it."""

    method: str
    path: str
    summary: str
    body: Any = None  # the type of the request's body
    status: int = 200
    answer: Any = None  # the type of the answer's body
    query: dict[str, type] = {}  # parameters; a name with a hyphen is a header
    is_open: bool = False  # needs no token


SESSION = "/v1/sessions/{session_id}"
LISTS = "List sessions, the most recently used first."
STEERS = "Interrupt, answer a question, return the result of a client tool, change the model or mode."
SENDS = "Send a message. It is stored before the answer; its turn has the stream_id."
FOLLOWS = "Follow the stream from its first event, or after an id. It stays open."
OPERATIONS = (
    Operation(
        method="GET", path="/health", summary="Check that the server is running.", answer=ServerHealth, is_open=True
    ),
    Operation(
        method="POST", path="/v1/sessions", summary="Start a session.", body=NewSession, status=201, answer=Begun
    ),
    Operation(method="GET", path="/v1/sessions", summary=LISTS, answer=list[SessionRow], query={"limit": int}),
    Operation(method="GET", path=SESSION, summary="Show a session with its messages.", answer=WholeSession),
    Operation(method="DELETE", path=SESSION, summary="Move a session to the trash; its stream ends.", status=204),
    Operation(
        method="POST", path=f"{SESSION}/messages", summary=SENDS, body=NewMessage, status=202, answer=MessageTaken
    ),
    Operation(method="POST", path=f"{SESSION}/ops", summary=STEERS, body=Op, status=202, answer=OpTaken),
    Operation(
        method="GET",
        path=f"{SESSION}/events",
        summary=FOLLOWS,
        answer=Event,
        query={"Last-Event-ID": int, "after": int},
    ),
    Operation(
        method="GET",
        path="/v1/usage",
        summary="Show the tokens and costs of sessions.",
        answer=dict[str, Any],
        query={"days": int, "session": str},
    ),
)

_ABOUT = (
    "Sessions of a coding assistant. A session has one stream of events, numbered by increasing integers: follow it "
    "with GET /v1/sessions/{session_id}/events, and send messages and ops separately. Its objects are those of "
    "`agentcli -p --output-format stream-json --include-partial-messages`."
)


def describe(operations: Sequence[Operation]) -> dict[str, Any]:
    forms = [form for operation in operations for form in (operation.body, operation.answer) if form is not None]
    schemas, components = msgspec.json.schema_components([*forms, Error], ref_template="#/components/schemas/{name}")
    failure = _content("application/json", schemas[-1], "Refused.")
    next_schema = iter(schemas)  # in the order of `forms`
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        described: dict[str, Any] = {"summary": operation.summary, "parameters": _parameters(operation)}
        if operation.body is not None:
            is_union = not isinstance(operation.body, type)  # then the body must at least have a `type`
            is_required = is_union or any(field.required for field in msgspec.structs.fields(operation.body))
            described["requestBody"] = {"required": is_required, **_content("application/json", next(next_schema))}
        media_type = "text/event-stream" if operation.answer is Event else "application/json"
        answer = _content(media_type, next(next_schema) if operation.answer is not None else None, "Done.")
        described["responses"] = {str(operation.status): answer, "4XX": failure}
        described |= {"security": []} if operation.is_open else {}  # otherwise the top-level `security` applies
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "agentcli", "version": __version__, "description": _ABOUT},
        "security": [{"token": []}],
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}, "schemas": components},
    }


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    parameters: list[tuple[str, str, type]] = [(name, "path", str) for name in re.findall(r"\{(\w+)\}", operation.path)]
    parameters += [(name, "header" if "-" in name else "query", kind) for name, kind in operation.query.items()]
    return [
        {"name": name, "in": location, "required": location == "path", "schema": msgspec.json.schema(kind)}
        for name, location, kind in parameters
    ]


def _content(media_type: str, schema: Any, description: str = "") -> dict[str, Any]:
    content = {"content": {media_type: {"schema": schema}}} if schema is not None else {}
    return {**({"description": description} if description else {}), **content}


def text() -> str:
    return msgspec.json.format(msgspec.json.encode(describe(OPERATIONS)), indent=1).decode() + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
