"""Reads programs' JSON lines, and carries out the control requests in them."""

import asyncio
import base64
import codecs
import re
import threading
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Literal, get_args

import msgspec

from agentcli.agent import ops
from agentcli.agent.permissions.modes import parse_mode
from agentcli.agent.questions import check_offered
from agentcli.errors import UserError
from agentcli.frontends.hosts import ScreenlessHost
from agentcli.llm.messages import Block, Document, Image, Text, decode_json
from agentcli.llm.provider import ToolSpec

MAX_LINE_BYTES = 64 * 1024 * 1024  # twice the limit of a Messages API request
MAX_DEPTH = 100  # levels of lists and objects; deeper values could not be encoded for the log
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
DOCUMENT_TYPES = ("application/pdf",)
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
Media = Text | Image | Document


class InputMessage(msgspec.Struct, frozen=True):
    content: str | tuple[Media, ...]
    role: Literal["user"] = "user"

    @property
    def blocks(self) -> tuple[Media, ...]:
        """The content without empty text, which providers reject."""
        blocks = (Text(self.content),) if isinstance(self.content, str) else self.content
        return tuple(block for block in blocks if not isinstance(block, Text) or block.text.strip())


class UserMessage(msgspec.Struct, frozen=True, tag="user"):
    message: InputMessage


class InterruptControl(msgspec.Struct, frozen=True, tag="interrupt"):
    pass


class ModeControl(msgspec.Struct, frozen=True, tag="set_permission_mode"):
    mode: str


class SteerControl(msgspec.Struct, frozen=True, tag="steer"):
    message: InputMessage


class AnswerControl(msgspec.Struct, frozen=True, tag="answer"):
    id: str
    text: str


class DenyControl(msgspec.Struct, frozen=True, tag="deny"):
    id: str
    comment: str = ""


class CommandControl(msgspec.Struct, frozen=True, tag="command"):
    text: str


class ClientToolsControl(msgspec.Struct, frozen=True, tag="client_tools"):
    tools: tuple[ToolSpec, ...]


Decision = ops.Approve | AnswerControl | DenyControl
# Error messages list them in this order. A tag is the `subtype` of a control line, and the `type` of a server's op.
Control = (
    InterruptControl
    | SteerControl
    | ModeControl
    | ops.SetModel
    | ops.Approve
    | AnswerControl
    | DenyControl
    | CommandControl
    | ClientToolsControl
    | ops.ClientResult
)
Request = UserMessage | Control | ops.Prompt  # a `Prompt` is sent as it is: slashes and file names mean nothing in it
CONTROLS: dict[str, type[msgspec.Struct]] = {str(form.__struct_config__.tag): form for form in get_args(Control)}


class InputLine(msgspec.Struct, frozen=True):
    """A line of input: either its request, or the problem with it."""

    raw: bytes
    request: Request | None = None
    id: str | int | None = None  # of a control line
    problem: str = ""


class NobodyWaits(UserError):
    """No question or call with this id is waiting for an answer."""


class InputLines:
    """The lines of an input. A thread reads them, because not every platform can wait for a pipe asynchronously.

    A line that is too long is cut a byte above the limit, and `decode_input` then rejects it.
    """

    def __init__(self, input: BinaryIO) -> None:
        self._next_line: bytes | None = None  # if it was peeked at or put back
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        read_lines(input, self._lines)

    async def peek(self, timeout_s: float) -> bytes | None:
        """Peek at the first line; return None if the input is empty or no line arrives in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                self._next_line = await self._lines.get()
                if self._next_line is None:  # the input is empty, which the iteration must see as well
                    self._lines.put_nowait(None)
        return self._next_line

    def put_back(self, line: bytes) -> None:
        self._next_line = line

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._next_line is not None:
            first, self._next_line = self._next_line, None
            yield first
        while (line := await self._lines.get()) is not None:
            yield line


def read_lines(input: BinaryIO, lines: asyncio.Queue[bytes | None]) -> None:
    """Start a thread that puts the lines into a queue, and None after the last one."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        with suppress(RuntimeError):  # the event loop has ended, so nobody needs the lines any more
            with suppress(OSError):  # a read error is treated as the end of the input
                bom = codecs.BOM_UTF8  # only the first line may begin with a byte order mark
                while line := input.readline(MAX_LINE_BYTES + 1):
                    part = line
                    while len(part) > MAX_LINE_BYTES and not part.endswith(b"\n"):  # skip the rest of a long line
                        part = input.readline(MAX_LINE_BYTES + 1)
                    line = line.removeprefix(bom)
                    bom = b""
                    if line.strip():
                        loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, name="agentcli-stdin", daemon=True).start()


def decode_input(raw: bytes) -> Any:
    """Decode a line. Raises `ValueError` with the reason for a line that is too long, too deep or not valid."""
    if len(raw) > MAX_LINE_BYTES:
        raise ValueError(f"the line is longer than {MAX_LINE_BYTES // 1024**2} MB")
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from error
    data = decode_json(raw)
    level = [data]  # all values at one depth, one level deeper in each round
    for _ in range(MAX_DEPTH):
        parents = [value for value in level if isinstance(value, dict | list)]
        level = [child for parent in parents for child in (parent.values() if isinstance(parent, dict) else parent)]
    if any(isinstance(value, dict | list) for value in level):
        raise ValueError(f"JSON nested deeper than {MAX_DEPTH} levels")
    return data


def control_request(raw: bytes | None) -> tuple[str, dict[str, Any]] | None:
    """Return the id and content of an Agent SDK's control request; None for any other line."""
    with suppress(ValueError, RecursionError):
        match decode_input(raw or b""):
            case {"type": "control_request", "request_id": str(id), "request": {"subtype": str()} as request}:
                return id, request
    return None


def parse_line(raw: bytes) -> InputLine:
    """Parse a line. A line that is not valid gets a `problem`. Never raises."""
    id: str | int | None = None
    try:
        data = decode_input(raw)
        match data:
            case {"type": "control", "id": str() | int() | None as line_id} if not isinstance(line_id, bool):
                id = line_id
            case {"type": "control", "id": _}:
                raise ValueError("id must be a string or an integer")
        return InputLine(raw, _request_in(data), id)
    except (ValueError, RecursionError) as error:
        return InputLine(raw, None, id, f"{str(error).rstrip('.')}.")


def _request_in(data: Any) -> UserMessage | Control:
    """Return the request of a decoded line. Raises `ValueError` if it is not a valid one."""
    match data:
        case {"type": "user"}:
            request: UserMessage | Control = msgspec.convert(data, UserMessage)
        case {"type": "control", "subtype": str(subtype)} if subtype in CONTROLS:
            request = msgspec.convert({**data, "type": subtype}, Control)  # whose tags are subtypes
        case {"type": "control"}:
            raise ValueError(f"expected a subtype, one of {', '.join(CONTROLS)}")
        case _:
            raise ValueError('expected one JSON object per line, with "type":"user" or "type":"control"')
    check_request(request)
    return request


def check_request(request: object) -> None:
    """Raise `ValueError` for an empty message, and for tools and media that no model accepts."""
    match request:
        case UserMessage(message) | SteerControl(message):
            if not message.blocks:
                raise ValueError("the message is empty")
            check_media(message.blocks)
        case ClientToolsControl(tools):
            for tool in tools:
                if not _TOOL_NAME.fullmatch(tool.name):
                    raise ValueError(f"{tool.name[:80]!r} is not a tool name: use 1 to 64 letters, digits, _ and -")
                if tool.input_schema.get("type") != "object":
                    raise ValueError(f'the input_schema of {tool.name} needs "type": "object"')
        case ops.ClientResult(_, content) if not isinstance(content, str):
            check_media(content)


def check_media(blocks: Sequence[Media]) -> None:
    """Raise `ValueError` for media of a type that no model accepts, without data, or with data that is not base64."""
    for block in blocks:
        if isinstance(block, Text):
            continue
        source = block.source
        kind, known = ("image", IMAGE_TYPES) if isinstance(block, Image) else ("document", DOCUMENT_TYPES)
        if source.media_type not in known:
            raise ValueError(f"the {kind}'s media_type must be {' or '.join(known)}, not {source.media_type!r}")
        try:
            data = base64.b64decode(source.data, validate=True)
        except ValueError as error:
            raise ValueError(f"the {kind}'s data is not base64 ({error})") from error
        if not data:
            raise ValueError(f"the {kind} has no data")


def content_of(host: ScreenlessHost, message: InputMessage) -> tuple[Block, ...]:
    """Return a message's content. Files that a text names are attached, unless it is a command; blocks stay as sent."""
    content = message.content
    return host.attach(content) if isinstance(content, str) and not host.command_in(content) else message.blocks


async def carry_out_control(host: ScreenlessHost, request: Control) -> None:
    """Carry out a control, except commands and steering messages. Raises `UserError`, such as `NobodyWaits`."""
    session = host.session
    if isinstance(request, Decision):
        _check_is_waiting(request.id, session.open_questions, "question")
    match request:
        case ModeControl(mode):
            session.submit(ops.SetMode(parse_mode(mode)))
        case ops.SetModel(model):
            # Set the model even if the check then fails: the next prompt must not go to the previous model.
            session.submit(request)
            await host.check_model(model)
        case ClientToolsControl(tools):
            session.offer_tools(tools)
        case InterruptControl():
            host.interrupt()
        case AnswerControl(id, text):
            session.submit(ops.Approve(id, allowed=True, comment=text))
        case ops.Approve(id=id, mode=mode, rule=rule):
            answer = msgspec.structs.replace(request, mode=parse_mode(mode) if mode else "")
            check_offered(session.open_questions[id], answer)
            if rule:
                session.check_rule(rule)
            session.submit(answer)
        case DenyControl(id, comment):
            session.submit(ops.Approve(id, allowed=False, comment=comment))
        case ops.ClientResult(id):
            _check_is_waiting(id, session.waiting_for_client, "call")
            session.submit(request)


def _check_is_waiting(id: str, waiting: Collection[str], kind: str) -> None:
    if id not in waiting:
        known = f"waiting: {', '.join(waiting)}" if waiting else "none is waiting"
        raise NobodyWaits(f"No {kind} {id[:80]!r} is waiting for an answer; {known}.")
