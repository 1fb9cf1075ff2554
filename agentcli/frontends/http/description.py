"""Describes the server for programs, in the form of OpenAPI 3.1.

https://spec.openapis.org/oas/v3.1.1.html
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from agentcli.frontends.http.requests import OPS, NewMessage, NewSession, TakeOver
from agentcli.version import __version__

_REF = "#/components/schemas/{name}"


@cache
def description() -> dict[str, Any]:
    forms: list[type] = [NewSession, NewMessage, *OPS.values(), TakeOver]
    _, schemas = msgspec.json.schema_components(forms, ref_template=_REF)
    names = [form.__name__ for form in forms[2:]]
    for name in names:
        schemas[name]["properties"]["type"] = schemas[name]["properties"].pop("subtype")
        schemas[name]["required"] = ["type", *(one for one in schemas[name].get("required", ()) if one != "subtype")]
    schemas["Op"] = {
        "oneOf": [{"$ref": _REF.format(name=name)} for name in names],
        "discriminator": {"propertyName": "type"},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "agentcli", "version": __version__, "description": _ABOUT},
        "security": [{"token": []}],
        "paths": _paths(),
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {**schemas, **_ANSWERS},
        },
    }


_ABOUT = (
    "Sessions of a coding assistant. A session has one stream of events, numbered by integers that only grow: follow "
    "it with GET /v1/sessions/{session_id}/events, and send messages and ops beside it. The objects in it are those of "
    "`agentcli -p --output-format stream-json --include-partial-messages`."
)
_TEXT, _WHOLE, _NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
_SESSION = {
    "session_id": _TEXT,
    "cwd": _TEXT,
    "name": _TEXT,
    "title": _TEXT,
    "last_prompt": _TEXT,
    "created": {**_NUMBER, "description": "Seconds since 1970."},
    "updated": {**_NUMBER, "description": "Seconds since 1970."},
    "entries": _WHOLE,
    "user_id": _TEXT,
    "is_running": {"type": "boolean"},
}
_MESSAGES = {"type": "array", "items": {"type": "object"}, "description": "In the form of the Messages API."}
_ANSWERS: dict[str, Any] = {
    "Session": {"type": "object", "properties": _SESSION, "required": list(_SESSION)},
    "WholeSession": {
        "type": "object",
        "properties": {
            **_SESSION,
            "model": _TEXT,
            "permission_mode": _TEXT,
            "last_event_id": _WHOLE,
            "held_by": {"enum": ["server", "terminal", None]},
            "messages": _MESSAGES,
        },
        "required": list(_SESSION),
    },
    "Error": {
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {"code": _TEXT, "message": _TEXT},
                "required": ["code", "message"],
            }
        },
        "required": ["error"],
    },
    "Event": {
        "type": "object",
        "description": (
            "`type` is assistant, user, stream_event, system (with a `subtype`) or result. Objects of a prompt's turn "
            "carry its `stream_id`; its result is the last of them. A system object `reset` holds all messages, and "
            "takes the place of what the reader has; one `init` with `is_resumed` takes back an unfinished message. A "
            "system object `approval_requested` or `question` waits for an op with its `id`."
        ),
        "properties": {"type": _TEXT, "subtype": _TEXT, "session_id": _TEXT, "stream_id": _TEXT},
        "required": ["type"],
    },
}


def _paths() -> dict[str, Any]:
    id = {"name": "session_id", "in": "path", "required": True, "schema": _TEXT}
    after = {"name": "Last-Event-ID", "in": "header", "required": False, "schema": _WHOLE}
    stream_id = {"type": "object", "properties": {"stream_id": _TEXT}, "required": ["stream_id"]}
    session_id = {"type": "object", "properties": {"session_id": _TEXT}, "required": ["session_id"]}
    taken = {"type": "object", "properties": {"ok": {"const": True}}}
    health = {"type": "object", "properties": {"status": {"const": "ok"}, "version": _TEXT}}
    of_session = "/v1/sessions/{session_id}"
    return {
        "/health": {"get": {"summary": "Tell that the server runs.", "security": [], **_answers(200, health)}},
        "/v1/sessions": {
            "get": {
                "summary": "List sessions, the one used last first.",
                "parameters": [_query("limit", _WHOLE)],
                **_answers(200, {"type": "array", "items": _ref("Session")}),
            },
            "post": {
                "summary": "Begin a session.",
                "requestBody": _body("NewSession", is_required=False),
                **_answers(201, session_id),
            },
        },
        of_session: {
            "parameters": [id],
            "get": {"summary": "Show a session with its messages.", **_answers(200, _ref("WholeSession"))},
            "delete": {"summary": "Move a session to the trash; its stream ends.", **_answers(204)},
        },
        f"{of_session}/messages": {
            "parameters": [id],
            "post": {
                "summary": "Say something. It is stored before the answer; its turn carries the stream_id.",
                "requestBody": _body("NewMessage"),
                **_answers(202, stream_id),
            },
        },
        f"{of_session}/ops": {
            "parameters": [id],
            "post": {
                "summary": "Interrupt, answer a question, give the result of a client tool, change model or mode.",
                "requestBody": _body("Op"),
                **_answers(202, taken),
            },
        },
        f"{of_session}/events": {
            "parameters": [id, after, _query("after", _WHOLE)],
            "get": {
                "summary": "Follow the stream from its first event, or from an id on. It stays open.",
                "responses": {
                    "200": {"description": "Events.", "content": {"text/event-stream": {"schema": _ref("Event")}}},
                    "4XX": _failure(),
                },
            },
        },
        "/v1/usage": {
            "get": {
                "summary": "Tell what sessions used and cost.",
                "parameters": [_query("days", _WHOLE), _query("session", _TEXT)],
                **_answers(200, {"type": "object"}),
            }
        },
    }


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": _REF.format(name=name)}


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _body(name: str, *, is_required: bool = True) -> dict[str, Any]:
    return {"required": is_required, "content": {"application/json": {"schema": _ref(name)}}}


def _answers(status: int, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    content = {"content": {"application/json": {"schema": schema}}} if schema else {}
    return {"responses": {str(status): {"description": "Done.", **content}, "4XX": _failure()}}


def _failure() -> dict[str, Any]:
    return {"description": "Refused.", "content": {"application/json": {"schema": _ref("Error")}}}
