"""Describes the server for programs, in the form of OpenAPI 3.1.

https://spec.openapis.org/oas/v3.1.1.html
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from agentcli.version import __version__

_REF = "#/components/schemas/{name}"
_ABOUT = (
    "Sessions of a coding assistant. A session has one stream of events, numbered by integers that only grow: follow "
    "it with GET /v1/sessions/{session_id}/events, and send messages and ops beside it. The objects in it are those of "
    "`agentcli -p --output-format stream-json --include-partial-messages`."
)


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
