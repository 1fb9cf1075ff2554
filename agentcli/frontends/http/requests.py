"""Defines the bodies of requests and of answers, and reads the former."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.requests import ClientDisconnect, Request

from agentcli.frontends.http.guard import Refused
from agentcli.frontends.json_forms.input import (
    CONTROLS,
    ClientTools,
    Control,
    Media,
    Message,
    Say,
    check_request,
    json_in,
)
from agentcli.llm.provider import ToolSpec
from agentcli.version import __version__

LARGEST_BODY = 32 * 1024 * 1024  # bytes: what the Messages API takes in one request

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

    content: str | tuple[Media, ...]
    mode: Literal["prompt", "steer", "follow_up"] = "prompt"
    tools: tuple[ToolSpec, ...] = ()
    stream_id: Annotated[str, Meta(max_length=128)] = ""

    @property
    def message(self) -> Message:
        return Message(self.content)


class TakeOver(Struct, frozen=True, tag="take_over"):
    """Have the program that has the session open end, and go on with it here."""


Op = Control | TakeOver


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


async def body_of(request: Request) -> bytes:
    """Raises `Refused`."""
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > LARGEST_BODY:
                raise Refused(413, "too_large", f"A request has at most {LARGEST_BODY // 1024**2} MB.")
            parts.append(part)
    except ClientDisconnect as gone:
        raise Refused(400, "invalid", "The request broke off.") from gone
    return b"".join(parts)


def parsed(body: bytes, form: Any) -> Any:
    """Return the body as a `form`. Raises `Refused` that says what was expected."""
    try:
        given = msgspec.convert(json_in(body or b"{}"), form)
        for part in (Say(given.message), ClientTools(given.tools)) if isinstance(given, NewMessage) else (given,):
            check_request(part)
    except (ValueError, RecursionError) as error:
        types = f" The type of an op is one of {', '.join((*CONTROLS, 'take_over'))}." if form is Op else ""
        raise Refused(400, "invalid", f"{str(error).rstrip('.')}.{types}") from error
    return given
