"""Defines how agentcli sees an MCP server: its settings, tools and results, and the client that reaches it."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from agentcli.llm.messages import Document, Image, Text
from agentcli.tools.tool import Ask

# Variables that make an interpreter run a file.
STARTS_FILES = ("BASH_ENV", "ENV", "NODE_OPTIONS", "PYTHONSTARTUP", "LD_PRELOAD", "PERL5OPT", "RUBYOPT")
Scope = Literal["project", "local", "user", "flag", "caller"]
STARTUP_TIMEOUT_S = 30.0  # npx and uvx may have to download a server first


class ServerSpec(Struct, frozen=True, kw_only=True):
    """A configured server. `env`, `headers` and the like are as written: `${VAR}` is expanded when it is started.

    `timeout_s` bounds a call, without the time a person takes to answer, `startup_timeout_s` connecting. Only tools in
    `enabled_tools` count where there are some. `oauth`: see docs/mcp.md. `source` is the file it comes from.
    """

    name: str
    type: Literal["stdio", "http", "sse"] = "stdio"
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}
    timeout_s: float = 300.0
    oauth: dict[str, Any] = {}
    scope: Scope = "user"
    source: str = ""
    cwd: str = ""
    startup_timeout_s: float = STARTUP_TIMEOUT_S
    enabled_tools: tuple[str, ...] = ()
    disabled_tools: tuple[str, ...] = ()

    def offers(self, tool: str) -> bool:
        """True if a tool counts, by the server's own name for it."""
        return (not self.enabled_tools or tool in self.enabled_tools) and tool not in self.disabled_tools

    @property
    def is_of_project(self) -> bool:
        """True if files of the project name it, so that what it offers has to be approved."""
        return self.scope in ("project", "local")

    @property
    def target(self) -> str:
        """The command line or the address, for people."""
        return self.url or " ".join((self.command, *self.args))

    @property
    def start_command(self) -> str:
        """Return the shell command that starts it, after files that variables name for it; empty for an address."""
        started = [value for name, value in self.env.items() if name in STARTS_FILES]
        named = [f"./{value}" if re.fullmatch(r"\w[\w.-]*", value) else value for value in started]
        folder = [shlex.join(("cd", self.cwd))] if self.cwd else []
        steps = (*folder, *map(shlex.quote, named), shlex.join((self.command, *self.args)))
        return "" if self.url else " && ".join(steps)

    @property
    def fingerprint(self) -> str:
        """Tells one way to start a server from another; hexadecimal."""
        parts = (self.name, self.type, self.command, self.args, sorted(self.env.items()), self.url)
        folder = (self.cwd,) if self.cwd else ()  # so that what was approved without one stays approved
        return hashlib.sha256(msgspec.json.encode((*parts, sorted(self.headers.items()), *folder))).hexdigest()


class RemoteTool(Struct, frozen=True):
    """A tool of a server. `schema` is the JSON Schema of its arguments, whatever the server says."""

    name: str
    description: str = ""
    schema: dict[str, Any] = {}


class RemotePrompt(Struct, frozen=True):
    """A prompt that a server offers; `arguments` are names, each with True if it has to be given."""

    name: str
    description: str = ""
    arguments: tuple[tuple[str, bool], ...] = ()


class Offer(Struct, frozen=True):
    """Everything a server offers, in its own order. `instructions` is what it tells the model about itself."""

    tools: tuple[RemoteTool, ...] = ()
    prompts: tuple[RemotePrompt, ...] = ()
    instructions: str = ""


Parts = tuple[Text | Image | Document, ...]


class RemoteResult(Struct, frozen=True):
    """The result of a call. `structured` is any JSON value."""

    content: Parts = ()
    structured: Any = None
    is_error: bool = False


class MCPClient(Protocol):
    """A connection to one server. Bring another one with `Agent(mcp_clients=[…])`.

    Calls may overlap. Each method raises `ToolError`: kind `resource_error` if the connection is lost, `timeout`,
    `invalid_parameters` if the server refuses the arguments, else `execution_error`.
    """

    @property
    def name(self) -> str:
        """The server's name, as in `mcp__NAME__tool`."""

    async def list_tools(self) -> Sequence[RemoteTool]: ...

    async def call_tool(
        self, name: str, input: dict[str, Any], *, progress: Callable[[str], None], ask: Ask | None
    ) -> RemoteResult:
        """Call a tool; `progress` is told lines, `ask` puts questions. Cancelling it cancels it on the server."""

    async def close(self) -> None: ...


@runtime_checkable
class OffersPrompts(Protocol):
    """A client whose server may have prompts and resources."""

    async def offer(self) -> Offer: ...

    async def get_prompt(self, name: str, arguments: dict[str, str]) -> str: ...

    async def read_resource(self, uri: str) -> Parts: ...
