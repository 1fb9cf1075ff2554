"""Defines the parts of a client's messages that are read: its requests, and its answers to ours."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class AcpMessage(Struct, frozen=True, rename="camel"):
    """Unknown fields are ignored."""


class FileAccess(AcpMessage, frozen=True):
    read_text_file: bool = False
    write_text_file: bool = False


class Elicitation(AcpMessage, frozen=True):
    form: dict[str, Any] | None = None


class AuthAccess(AcpMessage, frozen=True):
    terminal: bool = False


class ClientCapabilities(AcpMessage, frozen=True):
    fs: FileAccess | None = None
    elicitation: Elicitation | None = None
    auth: AuthAccess | None = None

    @property
    def has_files(self) -> bool:
        """True if files can be read and written through the client: one without the other would split them in two."""
        return self.fs is not None and self.fs.read_text_file and self.fs.write_text_file

    @property
    def has_forms(self) -> bool:
        return self.elicitation is not None and self.elicitation.form is not None

    @property
    def has_terminal_login(self) -> bool:
        return self.auth is not None and self.auth.terminal


class Initialize(AcpMessage, frozen=True):
    protocol_version: int
    client_capabilities: ClientCapabilities | None = None


class Authenticate(AcpMessage, frozen=True):
    method_id: str


class NamedValue(AcpMessage, frozen=True):
    name: str
    value: str


class McpServer(AcpMessage, frozen=True):
    """A server to connect to: by `command`, or with another `type` by `url`."""

    name: str
    type: Literal["stdio", "http", "sse", "acp"] = "stdio"
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[NamedValue, ...] = ()
    url: str = ""
    headers: tuple[NamedValue, ...] = ()

    @property
    def entry(self) -> dict[str, Any]:
        """The server as a file of MCP servers has it."""
        env, headers = ({one.name: one.value for one in named} for named in (self.env, self.headers))
        if self.type == "stdio":
            return {"command": self.command, "args": list(self.args), "env": env}
        return {"type": self.type, "url": self.url, "headers": headers}


class NewSessionRequest(AcpMessage, frozen=True):
    cwd: str
    mcp_servers: tuple[McpServer, ...] | None = None
    additional_directories: tuple[str, ...] | None = None


class StoredSession(NewSessionRequest, frozen=True, kw_only=True):
    session_id: str


class OfSession(AcpMessage, frozen=True):
    session_id: str


class ListSessions(AcpMessage, frozen=True):
    cwd: str | None = None
    cursor: str | None = None


class SetModeRequest(OfSession, frozen=True):
    mode_id: str


class SetOption(OfSession, frozen=True):
    config_id: str
    value: str | bool


class TextContent(AcpMessage, frozen=True, tag="text"):
    text: str


class ImageContent(AcpMessage, frozen=True, tag="image"):
    data: str
    mime_type: str


class LinkContent(AcpMessage, frozen=True, tag="resource_link"):
    uri: str
    name: str = ""


class Resource(AcpMessage, frozen=True):
    """A resource: its `text`, or its bytes in base64."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: str | None = None


class ResourceContent(AcpMessage, frozen=True, tag="resource"):
    resource: Resource


Content = TextContent | ImageContent | LinkContent | ResourceContent


class PromptRequest(OfSession, frozen=True):
    prompt: tuple[Content, ...]


class PermissionOutcome(AcpMessage, frozen=True):
    outcome: Literal["selected", "cancelled"]
    option_id: str = ""


class Permission(AcpMessage, frozen=True):
    """The answer to `session/request_permission`."""

    outcome: PermissionOutcome


class FormAnswer(AcpMessage, frozen=True):
    """The answer to `elicitation/create`."""

    action: str
    content: dict[str, Any] | None = None


class TextFile(AcpMessage, frozen=True):
    """The answer to `fs/read_text_file`."""

    content: str
