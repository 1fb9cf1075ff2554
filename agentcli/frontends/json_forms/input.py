"""Reads JSON lines and says what each of them asks for."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from agentcli.frontends.given_media import check_media
from agentcli.frontends.json_lines import json_in
from agentcli.llm.messages import Document, Image, Text
from agentcli.llm.provider import ToolSpec

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Message(Struct, frozen=True):
    content: str | tuple[Text | Image | Document, ...]
    role: Literal["user"] = "user"

    @property
    def blocks(self) -> tuple[Text | Image | Document, ...]:
        """The content without empty text, which providers refuse."""
        given = (Text(self.content),) if isinstance(self.content, str) else self.content
        return tuple(block for block in given if not isinstance(block, Text) or block.text.strip())


class Say(Struct, frozen=True, tag="user"):
    message: Message


class _Control(Struct, frozen=True, tag_field="subtype"):
    pass


class Interrupt(_Control, frozen=True, tag="interrupt"):
    pass


class Steer(_Control, frozen=True, tag="steer"):
    message: Message


class SetPermissionMode(_Control, frozen=True, tag="set_permission_mode"):
    mode: str


class SetModel(_Control, frozen=True, tag="set_model"):
    model: str


class Approve(_Control, frozen=True, tag="approve"):
    id: str
    scope: Literal["once", "session", "always", "try"] = "once"
    comment: str = ""
    rule: str = ""
    hunks: tuple[int, ...] | None = None
    mode: str = ""


class Answer(_Control, frozen=True, tag="answer"):
    id: str
    text: str


class Deny(_Control, frozen=True, tag="deny"):
    id: str
    comment: str = ""


class RunCommand(_Control, frozen=True, tag="command"):
    text: str


class ClientTools(_Control, frozen=True, tag="client_tools"):
    tools: tuple[ToolSpec, ...]


class ClientResult(_Control, frozen=True, tag="client_result"):
    id: str
    content: str | tuple[Text | Image, ...]
    is_error: bool = False
    structured: Any = None


Decision = Approve | Answer | Deny
Control = Interrupt | Steer | SetPermissionMode | SetModel | Decision | RunCommand | ClientTools | ClientResult
CONTROLS: dict[str, type[_Control]] = {str(form.__struct_config__.tag): form for form in get_args(Control)}


class Line(Struct, frozen=True):
    """A line of input: what it asks for, or the `problem` it has; `id` is that of a control line."""

    raw: bytes
    asks: Say | Control | None = None
    id: str | int | None = None
    problem: str = ""


def parse_line(raw: bytes) -> Line:
    """Never raises: a line that makes no sense is one with a problem, which names what was expected."""
    id: str | int | None = None
    data: Any = None
    try:
        data = json_in(raw)
        id = _id(data)
        return Line(raw, asked(data), id)
    except (ValueError, RecursionError) as error:
        return Line(raw, None, id, f"{str(error).rstrip('.')}. {_expected(data)}")


def _id(data: Any) -> str | int | None:
    match data:
        case {"type": "control", "id": bool()}:
            raise ValueError("id is a string or an integer")
        case {"type": "control", "id": str() | int() | None as id}:
            return id
        case {"type": "control", "id": _}:
            raise ValueError("id is a string or an integer")
        case _:
            return None


def asked(data: Any) -> Say | Control:
    """Raises `ValueError`."""
    match data:
        case {"type": "user"}:
            asks: Say | Control = msgspec.convert(data, Say)
        case {"type": "control"}:
            asks = msgspec.convert(data, Control)
        case _:
            raise ValueError("this is neither a user message nor a control")
    match asks:
        case Say(message) | Steer(message):
            if not message.blocks:
                raise ValueError("the message is empty")
            check_media(message.blocks)
        case ClientTools(tools):
            for tool in tools:
                check_tool(tool)
        case ClientResult(_, content) if not isinstance(content, str):
            check_media(content)
        case _:
            pass
    return asks


def check_tool(tool: ToolSpec) -> None:
    if not _TOOL_NAME.fullmatch(tool.name):
        raise ValueError(f"{tool.name[:80]!r} is no name of a tool: 1 to 64 letters, digits, _ and -")
    if tool.input_schema.get("type") != "object":
        raise ValueError(f'the input_schema of {tool.name} has not "type": "object"')


def _expected(data: Any) -> str:
    """The form that was probably meant."""
    match data:
        case {"type": "user"}:
            return (
                'Expected {"type":"user","message":{"role":"user","content": …}} with a text, or a list of text, image '
                'and document blocks whose source is {"type":"base64","media_type","data"}.'
            )
        case {"type": "control", "subtype": str(subtype)} if form := CONTROLS.get(subtype):
            fields = [field.name if field.required else f"{field.name}?" for field in msgspec.structs.fields(form)]
            return f"Expected {subtype} with {', '.join(fields) or 'nothing more'}."
        case {"type": "control"}:
            return f"Expected a subtype, one of {', '.join(CONTROLS)}."
        case _:
            return 'Expected one JSON object a line, with "type":"user" or "type":"control".'
