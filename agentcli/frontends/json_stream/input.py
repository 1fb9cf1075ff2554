"""Reads JSON lines and says what each of them asks for."""

from __future__ import annotations

import asyncio
import base64
import binascii
import codecs
import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Literal, get_args

import msgspec
from msgspec import Struct

from agentcli.llm.json_text import decode_json
from agentcli.llm.messages import Document, Image, Text
from agentcli.llm.provider import ToolSpec

LONGEST_LINE = 64 * 1024 * 1024  # bytes: twice what the Messages API takes in one request
DEEPEST = 100  # levels of lists and objects: what is deeper could not be written to the log again

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
DOCUMENT_TYPES = ("application/pdf",)

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
        data = _json(raw)
        id = _id(data)
        return Line(raw, _asked(data), id)
    except (ValueError, RecursionError) as error:
        return Line(raw, None, id, f"{str(error).rstrip('.')}. {_expected(data)}")


def _json(raw: bytes) -> Any:
    if len(raw) > LONGEST_LINE:
        raise ValueError(f"the line is longer than {LONGEST_LINE // 1024**2} MB")
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from error
    data = decode_json(raw)
    level = [data]
    for _ in range(DEEPEST):
        level = [value for outer in level for value in _values(outer) if isinstance(value, dict | list)]
    if level:
        raise ValueError(f"JSON nested deeper than {DEEPEST} levels")
    return data


def _values(outer: Any) -> Sequence[Any]:
    if isinstance(outer, dict):
        return list(outer.values())
    return outer if isinstance(outer, list) else ()


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


def _asked(data: Any) -> Say | Control:
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
            _check_media(message.blocks)
        case ClientTools(tools):
            for tool in tools:
                _check_tool(tool)
        case ClientResult(_, content) if not isinstance(content, str):
            _check_media(content)
        case _:
            pass
    return asks


def _check_tool(tool: ToolSpec) -> None:
    if not _TOOL_NAME.fullmatch(tool.name):
        raise ValueError(f"{tool.name[:80]!r} is no name of a tool: 1 to 64 letters, digits, _ and -")
    if tool.input_schema.get("type") != "object":
        raise ValueError(f'the input_schema of {tool.name} has not "type": "object"')


def _check_media(blocks: Sequence[Text | Image | Document]) -> None:
    for block in blocks:
        if isinstance(block, Text):
            continue
        source = block.source
        kind, known = ("image", IMAGE_TYPES) if isinstance(block, Image) else ("document", DOCUMENT_TYPES)
        if source.media_type not in known:
            raise ValueError(f"the media_type of an {kind} is {' or '.join(known)}, not {source.media_type!r}")
        try:
            data = base64.b64decode(source.data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"the {kind}'s data is not base64 ({error})") from error
        if not data:
            raise ValueError(f"the {kind} has no data")


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


def read_lines(input: BinaryIO, lines: asyncio.Queue[bytes | None]) -> None:
    """Put lines into the queue from a thread, then None: a pipe's readiness cannot be waited for on every platform."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody listens any more
            with suppress(OSError):  # what cannot be read has ended
                is_first = True
                while line := input.readline(LONGEST_LINE + 1):
                    rest = line
                    line, is_first = line.removeprefix(codecs.BOM_UTF8) if is_first else line, False
                    while len(rest) > LONGEST_LINE and not rest.endswith(b"\n"):
                        rest = input.readline(LONGEST_LINE + 1)
                    if line.strip():
                        loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, name="agentcli-stdin", daemon=True).start()
