"""Reads the bodies of requests, each into its struct."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from starlette.requests import ClientDisconnect, Request

from agentcli.frontends.given_media import check_media
from agentcli.frontends.http.failures import Refused
from agentcli.frontends.json_forms.input import CONTROLS, Control, Message, Say, asked, check_tool
from agentcli.frontends.json_lines import json_in
from agentcli.llm.messages import Document, Image, Text
from agentcli.llm.provider import ToolSpec

LARGEST_BODY = 32 * 1024 * 1024  # bytes: what the Messages API takes in one request

OPS = CONTROLS

T = TypeVar("T")


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

    content: str | tuple[Text | Image | Document, ...]
    mode: Literal["prompt", "steer", "follow_up"] = "prompt"
    tools: tuple[ToolSpec, ...] = ()
    stream_id: Annotated[str, Meta(max_length=128)] = ""


class TakeOver(Struct, frozen=True, tag_field="subtype", tag="take_over"):
    """Have the program that has the session open end, and go on with it here."""


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


def parsed(body: bytes, form: type[T]) -> T:
    """Raises `Refused` that says what was expected."""
    try:
        return msgspec.convert(json_in(body or b"{}"), form)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "invalid", f"{str(error).rstrip('.')}.") from error


def message_of(body: bytes) -> NewMessage:
    """Raises `Refused`."""
    given = parsed(body, NewMessage)
    blocks = Message(given.content).blocks
    try:
        if not blocks:
            raise ValueError("the message is empty")
        check_media(blocks)
        for tool in given.tools:
            check_tool(tool)
    except ValueError as error:
        raise Refused(400, "invalid", f"{error}.") from error
    return given


def op_of(body: bytes) -> Control | TakeOver:
    """What an op asks for; its `type` is a control's `subtype`. Raises `Refused`."""
    try:
        given: Any = json_in(body)
        kind = given.get("type") if isinstance(given, dict) else None
        if kind not in (*OPS, "take_over"):
            raise ValueError(f"type is one of {', '.join((*OPS, 'take_over'))}")
        if kind == "take_over":
            return TakeOver()
        asks = asked({**given, "type": "control", "subtype": kind})
        assert not isinstance(asks, Say)
        return asks
    except (ValueError, RecursionError) as error:
        raise Refused(400, "invalid", f"{str(error).rstrip('.')}.") from error
