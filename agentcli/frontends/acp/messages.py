"""Defines the fields used from the client's requests, and parses its prompts.

Schema: https://agentclientprotocol.com/protocol/schema. Unknown fields are ignored.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from msgspec import Struct, field

from agentcli.frontends.json_input import DOCUMENT_TYPES, IMAGE_TYPES, Media, check_media
from agentcli.llm.messages import Base64Source, Document, Image, Text


class AcpMessage(Struct, frozen=True, rename="camel"):
    """An object of the protocol."""


class ClientCapabilities(AcpMessage, frozen=True):
    fs: dict[str, Any] | None = None
    elicitation: dict[str, Any] | None = None
    auth: dict[str, Any] | None = None
    session: dict[str, Any] | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")

    @property
    def has_files(self) -> bool:
        """True if the client both reads and writes files: with only one of them, its and our versions would diverge."""
        return self.fs is not None and bool(self.fs.get("readTextFile") and self.fs.get("writeTextFile"))

    @property
    def has_forms(self) -> bool:
        return self.elicitation is not None and self.elicitation.get("form") is not None

    @property
    def takes_notices(self) -> bool:
        return self.session is not None and self.session.get("notices") is not None

    @property
    def has_terminal_login(self) -> bool:
        """True if the client can run the login in a terminal; older clients say so in `_meta`."""
        return bool((self.auth or {}).get("terminal") or (self.meta or {}).get("terminal-auth"))


class TextContent(AcpMessage, frozen=True, tag="text"):
    text: str


class ImageContent(AcpMessage, frozen=True, tag="image"):
    data: str
    mime_type: str


class LinkContent(AcpMessage, frozen=True, tag="resource_link"):
    uri: str
    name: str = ""


class Resource(AcpMessage, frozen=True):
    """An embedded resource, which has either a `text` or a `blob`."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: str | None = None  # base64


class ResourceContent(AcpMessage, frozen=True, tag="resource"):
    resource: Resource


Content = TextContent | ImageContent | LinkContent | ResourceContent


class Initialize(AcpMessage, frozen=True):
    protocol_version: int
    client_capabilities: ClientCapabilities | None = None


class Authenticate(AcpMessage, frozen=True):
    method_id: str


class NamedValue(AcpMessage, frozen=True):
    name: str
    value: str


class McpServer(AcpMessage, frozen=True, kw_only=True):
    """A server to connect to: with `type` stdio by its `command`, otherwise by its `url`."""

    name: str
    type: Literal["stdio", "http", "sse", "acp"] = "stdio"
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[NamedValue, ...] = ()
    url: str = ""
    headers: tuple[NamedValue, ...] = ()

    @property
    def entry(self) -> dict[str, Any]:
        if self.type == "stdio":
            env = {variable.name: variable.value for variable in self.env}
            return {"command": self.command, "args": list(self.args), "env": env}
        return {"type": self.type, "url": self.url, "headers": {header.name: header.value for header in self.headers}}


class NewSessionRequest(AcpMessage, frozen=True):
    cwd: str
    mcp_servers: tuple[McpServer, ...] | None = None
    additional_directories: tuple[str, ...] | None = None


class StoredSession(NewSessionRequest, frozen=True, kw_only=True):
    """A stored session to load with its messages, to resume without them, or to fork."""

    session_id: str


class ListSessions(AcpMessage, frozen=True):
    cwd: str | None = None


class SessionRequest(AcpMessage, frozen=True):
    session_id: str


class PromptRequest(SessionRequest, frozen=True):
    prompt: tuple[Content, ...]


class SetModeRequest(SessionRequest, frozen=True):
    mode_id: str


class SetOption(SessionRequest, frozen=True):
    config_id: str
    value: str


PARAMETERS: dict[str, type[AcpMessage]] = {  # by the methods that a client may call
    "initialize": Initialize,
    "authenticate": Authenticate,
    "session/new": NewSessionRequest,
    "session/load": StoredSession,
    "session/resume": StoredSession,
    "session/fork": StoredSession,
    "session/list": ListSessions,
    "session/close": SessionRequest,
    "session/delete": SessionRequest,
    "session/prompt": PromptRequest,
    "session/set_mode": SetModeRequest,
    "session/set_config_option": SetOption,
}

_LINES = re.compile(r"L(\d+)(?:[:-]L?(\d+))?")  # L10, L10:20 or L10-L20


class PromptParts(Struct, frozen=True):
    """The parts of an editor's prompt."""

    text: str  # with links to files as `@path`
    links: tuple[str, ...]  # the links to files as `@"path"`, which paths with spaces need
    media: tuple[Media, ...]  # images and embedded files


def parse_prompt(content: Sequence[Content], cwd: Path) -> PromptParts:
    """Parse a prompt, in whose text `@path` stands for each file that the person has linked or embedded.

    Raises `ValueError` if it is empty, or has images or documents that no model accepts.
    """
    text = ""
    links: list[str] = []
    media: list[Media] = []
    for previous, part in zip((None, *content), content, strict=False):
        if text and not text[-1].isspace():  # two texts are separate paragraphs, but a link belongs to a line
            text += "\n" if isinstance(previous, TextContent) and isinstance(part, TextContent) else " "
        match part:
            case TextContent(typed):
                text += typed
            case LinkContent(uri, name) if (file := _file_and_lines(uri, cwd)) is not None:
                path, lines = file
                links.append(f'@"{path}"{lines}')  # in this form, the file is attached even if its path has spaces
                text += f"@{path}{lines}"
            case LinkContent(uri, name):
                text += f"[{name}]({uri})"
            case ResourceContent(resource):
                name = "".join(_file_and_lines(resource.uri, cwd) or (resource.uri,))
                text += f"@{name}"
                media += _embedded(resource, name)
            case ImageContent(data, mime_type):
                media.append(Image(Base64Source(mime_type, data)))
    check_media(media)
    if not text.strip() and not media:
        raise ValueError("the prompt is empty")
    return PromptParts(text, tuple(links), tuple(media))


def _file_and_lines(uri: str, cwd: Path) -> tuple[str, str] | None:
    """Split a `file:` URI into its path, relative to `cwd` if inside, and its lines (`:10-20`); None for other URIs."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    if parts.scheme != "file":
        return None
    path = unquote(parts.path, errors="replace").removeprefix(f"{os.path.normpath(cwd)}/")
    lines = _LINES.fullmatch(parts.fragment)
    return path, f":{lines[1]}-{lines[2] or lines[1]}" if lines else ""


def _embedded(resource: Resource, name: str) -> Iterator[Media]:
    """Yield an embedded file for the model: a text, an image, a document, or a note about other contents."""
    kind, blob = resource.mime_type or "", resource.blob or ""
    if resource.text is not None:
        yield Text(f'<file path="{name}">\n{resource.text}\n</file>')
    elif kind in IMAGE_TYPES:
        yield Image(Base64Source(kind, blob))
    elif kind in DOCUMENT_TYPES:
        yield Document(Base64Source(kind, blob))
    else:
        size = len(blob) * 3 // 4  # base64 has four characters for three bytes
        yield Text(f'<file path="{name}">\n[{kind or "binary"}, about {size:,} bytes: not shown]\n</file>')
