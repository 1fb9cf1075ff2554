"""Defines MCP servers as agentcli sees them, and turns their tools into tools of agentcli.

The tools get names and schemas that providers accept, and become stubs if the model's window has no room for more.
"""

import hashlib
import re
import shlex
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from agentcli.errors import ToolError, ToolErrorKind
from agentcli.llm.messages import Document, Image, Text
from agentcli.llm.provider import ToolSpec
from agentcli.tools.tool import Ask, Tool, ToolContext, ToolOutput

# Variables that make an interpreter run a file.
STARTS_FILES = ("BASH_ENV", "ENV", "NODE_OPTIONS", "PYTHONSTARTUP", "LD_PRELOAD", "PERL5OPT", "RUBYOPT")
Scope = Literal["project", "local", "user", "plugin", "flag", "caller"]
STARTUP_TIMEOUT_S = 30.0  # npx and uvx may have to download a server first


class StdioSpec(Struct, frozen=True):
    """The program of a server, as configured: `${VAR}` is replaced only when it is started."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str = ""

    def __str__(self) -> str:
        return " ".join((self.command, *self.args))


class HttpSpec(Struct, frozen=True):
    """The address of a server, as configured: variables are not replaced. docs/mcp.md has the keys of `oauth`."""

    url: str
    type: Literal["http", "sse"] = "http"
    headers: dict[str, str] = {}
    oauth: dict[str, Any] = {}

    def __str__(self) -> str:
        return self.url


class ServerSpec(Struct, frozen=True, kw_only=True):
    """A configured server. `source` names the file that it comes from.

    `timeout_s` limits a call, not counting the time a person takes to answer; `startup_timeout_s` limits connecting. If
    `enabled_tools` is not empty, only the tools in it are offered.
    """

    name: str
    transport: StdioSpec | HttpSpec = StdioSpec()
    scope: Scope = "user"
    source: str = ""
    timeout_s: float = 300.0
    startup_timeout_s: float = STARTUP_TIMEOUT_S
    enabled_tools: tuple[str, ...] = ()
    disabled_tools: tuple[str, ...] = ()

    def offers(self, tool: str) -> bool:
        """Return True if the settings let models use a tool; `tool` is the server's own name for it."""
        return (not self.enabled_tools or tool in self.enabled_tools) and tool not in self.disabled_tools

    @property
    def is_of_project(self) -> bool:
        """Return True if files of the project name the server, so that the person has to approve what it offers."""
        return self.scope in ("project", "local")

    @property
    def start_command(self) -> str:
        """Return a shell command that names every file that starts the server, to pin them; empty for an address."""
        if isinstance(program := self.transport, HttpSpec):
            return ""
        loaded = [value for name, value in program.env.items() if name in STARTS_FILES]
        # A bare name in these variables is a file, not a program on PATH.
        files = [f"./{value}" if re.fullmatch(r"\w[\w.-]*", value) else value for value in loaded]
        folder = [shlex.join(("cd", program.cwd))] if program.cwd else []
        return " && ".join((*folder, *map(shlex.quote, files), shlex.join((program.command, *program.args))))

    @property
    def fingerprint(self) -> str:
        """Return a hash, in hexadecimal digits, of the way to start or reach the server."""
        # Approvals are stored under this hash, so another order of the parts, or more of them, would make them invalid.
        match self.transport:
            case StdioSpec(command, args, env, cwd):
                parts: tuple[Any, ...] = ("stdio", command, args, sorted(env.items()), "", [], *([cwd] if cwd else ()))
            case HttpSpec(url, type, headers):
                parts = (type, "", (), [], url, sorted(headers.items()))
        return hashlib.sha256(msgspec.json.encode((self.name, *parts))).hexdigest()


class RemoteTool(Struct, frozen=True):
    """A tool of a server. `schema` is the server's JSON Schema of its arguments, which may be invalid."""

    name: str
    description: str = ""
    schema: dict[str, Any] = {}


class RemotePrompt(Struct, frozen=True):
    """A prompt that a server offers; `arguments` are names, each with True if it is required."""

    name: str
    description: str = ""
    arguments: tuple[tuple[str, bool], ...] = ()


class Offer(Struct, frozen=True):
    """All that a server offers, in the server's order. `instructions` explain the server to the model."""

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
    """A connection to one server; `AgentOptions(mcp_clients=[…])` takes your own.

    Calls may overlap.

    Raises:
        ToolError: By each method. Its kind is `resource_error` if the connection is lost, `timeout`,
            `invalid_parameters` if the server does not accept the arguments, else `execution_error`.
    """

    @property
    def name(self) -> str:
        """The server's name, as in `mcp__NAME__tool`."""

    async def list_tools(self) -> Sequence[RemoteTool]: ...

    async def call_tool(
        self, name: str, input: dict[str, Any], *, progress: Callable[[str], None], ask: Ask | None
    ) -> RemoteResult:
        """Call a tool; `progress` gets lines, `ask` asks the person. Cancelling it cancels the call on the server."""

    async def close(self) -> None: ...


@runtime_checkable
class OffersPrompts(Protocol):
    """A client whose server may have prompts and resources."""

    async def offer(self) -> Offer: ...

    async def get_prompt(self, name: str, arguments: dict[str, str]) -> str: ...

    async def read_resource(self, uri: str) -> Parts: ...


# Calls a tool of a server by the server's name for it.
CallRemote = Callable[[RemoteTool, dict[str, Any], ToolContext], Awaitable[RemoteResult]]

MAX_NAME_CHARS = 64  # Anthropic's and OpenAI's limit for the name of a tool
_DIGEST_CHARS = 8  # of the hash at the end of shortened names
BYTES_PER_TOKEN = 3.2  # of names and short descriptions in JSON, by the o200k encoding
STUB_WORDS = (12, 8, 5, 0)  # of a description; the largest number that fits is used
STUBS_NOTE = "Tools named mcp__… have short descriptions. Call one with {} to get its arguments."
MAX_DEPTH = 40  # levels of a schema; values below them may be anything
_TYPES = ("string", "integer", "number", "boolean", "object", "array", "null")
_UNIONS = ("anyOf", "oneOf", "allOf")  # no provider takes these at the top level
# The other keywords that are sent, by the type of their values; those with other values are left out.
_TEXTS = ("title", "description", "pattern", "format")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")  # `true` in draft 4
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_REFERENCE = re.compile(r"#(?:/(?:\$defs|definitions|properties)/|\Z)")  # the beginning of one that is resolved


def tool_name(server: str, tool: str) -> str:
    """Return the name of a tool or a prompt; `__` in a server's name becomes `_`, so that rules tell servers apart."""
    return f"mcp__{re.sub('__+', '_', safe_name(server))}__{safe_name(tool)}"


def safe_name(name: str) -> str:
    """Return a name with `_` in place of each character that providers do not accept."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


class NoArguments(Struct, frozen=True):
    """The arguments of a server's tool, which its schema describes instead of a struct."""


def remote_tools(server: str, tools: Sequence[RemoteTool], call: CallRemote, used_names: set[str]) -> Iterator[Tool]:
    """Yield a server's tools under the names that models see, which are added to `used_names`."""
    for tool in tools:
        name = tool_name(server, tool.name)
        if len(name) > MAX_NAME_CHARS or name in used_names:
            digest = hashlib.sha256(f"{server}\0{tool.name}".encode()).hexdigest()[:_DIGEST_CHARS]
            name = f"{name[: MAX_NAME_CHARS - _DIGEST_CHARS - 1]}_{digest}"
        used_names.add(name)
        yield Tool(
            name,
            tool.description.strip() or tool.name,
            NoArguments,
            partial(_run, tool, call),
            effect="foreign",  # a server's hints about a tool (readOnlyHint and the like) prove nothing
            source=f"mcp:{server}",
            time_limit_s=None,  # `Server.call_tool` has its own, which stops while the person is asked something
            schema=provider_schema(tool.schema),
            is_described_when_called=True,
        )


async def _run(tool: RemoteTool, call: CallRemote, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
    """Call a tool. Raises `ToolError`, with the schema of the arguments if the server does not accept them."""
    input = dict(arguments)
    if "output_level" not in provider_schema(tool.schema)["properties"]:
        input.pop("output_level", None)  # agentcli's own argument, which it adds to tools that have none
    try:
        return to_tool_output(await call(tool, input, context))
    except ToolError as error:
        if error.kind != "invalid_parameters":
            raise
        schema = msgspec.json.encode(tool.schema).decode()
        raise ToolError(f"{error}\nThe JSON Schema of the arguments: {schema}", kind=error.kind) from error


def to_tool_output(result: RemoteResult) -> ToolOutput:
    """Convert a server's result to that of a tool: texts are joined; structured data is used if there is no text."""
    content: str | Parts = tuple(result.content)
    texts = [part.text for part in result.content if isinstance(part, Text)]
    if len(texts) == len(result.content):  # no images and documents
        content = "\n".join(texts)
        if not content and result.structured is not None:
            content = msgspec.json.format(msgspec.json.encode(result.structured)).decode()
    kind: ToolErrorKind | None = "execution_error" if result.is_error else None
    return ToolOutput(content, result.structured, is_error=result.is_error, error_kind=kind)


def fit_tools(specs: Sequence[ToolSpec], max_tokens: int) -> tuple[ToolSpec, ...]:
    """Return the tools in as much detail as fits: in full, or else as stubs, or else as many stubs as fit."""
    if _tokens(specs) <= max_tokens:
        return tuple(specs)
    stub_tokens = max_tokens - _tokens((ToolSpec("", STUBS_NOTE, {}),))  # the note is sent along with stubs
    for words in STUB_WORDS:
        stubs = [_stub(spec, words) for spec in specs]
        if _tokens(stubs) <= stub_tokens:
            return tuple(stubs)
    # Not even the shortest stubs of all tools fit.
    totals = accumulate(_tokens((stub,)) for stub in stubs)
    return tuple(stub for stub, total in zip(stubs, totals, strict=True) if total <= stub_tokens)


def _stub(spec: ToolSpec, words: int) -> ToolSpec:
    all_words = spec.description.split()
    short = " ".join(all_words[:words]) + (" …" if 0 < words < len(all_words) else "")
    return ToolSpec(spec.name, short, {"type": "object"})


def _tokens(specs: Sequence[ToolSpec]) -> float:
    return sum(len(msgspec.json.encode(spec)) for spec in specs) / BYTES_PER_TOKEN


def provider_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's arguments in a form that all providers accept. It may allow more values.

    At its top it has only properties: those of the unions' branches and of references are merged into it.
    """
    top = dict(schema)
    if isinstance(target := _resolve(top.get("$ref"), schema), Mapping):
        top = {**target, **{key: value for key, value in top.items() if key != "$ref"}}
    normal = _normalize(top, schema)
    properties = normal.get("properties", {})
    branches = [branch for union in _UNIONS for branch in normal.pop(union, ())]
    for branch in branches:
        if isinstance(target := _resolve(branch.get("$ref"), schema), Mapping):
            branch = _normalize(target, schema, depth=1)
        properties = branch.get("properties", {}) | properties  # if two share a name, the first one wins
    for key in ("$ref", "enum", "const"):  # like unions, no provider takes these at the top level
        normal.pop(key, None)
    return {**normal, "type": "object", "properties": properties}


def _normalize(schema: Any, root: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Return a part of the schema `root` for providers: with the keywords that they know, if their values are valid."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:  # true allows anything, as {} does
        return {}
    keywords = ((key, _normalize_keyword(key, value, root, depth + 1)) for key, value in schema.items())
    normal = {key: value for key, value in keywords if value is not None}
    if isinstance(items := schema.get("items"), list):  # a tuple in drafts before 2020-12
        parts = [_normalize(item, root, depth + 1) for item in items]
        normal["items"] = {"anyOf": parts} if parts else {}
    if normal.get("type") == "array":
        normal.setdefault("items", {})
    return normal


def _normalize_keyword(key: str, value: Any, root: Mapping[str, Any], depth: int) -> Any:
    """Return the valid part of a keyword's value; None leaves the keyword out."""
    match key, value:
        case "type", str() if value in _TYPES:  # others, such as "any", are left out, which allows anything
            return value
        case "type", list() if value and all(name in _TYPES for name in value):
            return list(dict.fromkeys(value))
        case "$ref", _:
            return value if isinstance(_resolve(value, root), Mapping | bool) else None
        case (("required" | "enum"), list()):
            items = value if key == "enum" else [name for name in value if isinstance(name, str)]
            return list({msgspec.json.encode(item): item for item in items}.values()) or None  # without duplicates
        case (("items" | "additionalProperties"), Mapping()):
            return _normalize(value, root, depth)
        case (("properties" | "patternProperties" | "$defs" | "definitions"), Mapping()):
            return {name: _normalize(part, root, depth) for name, part in value.items()}
        case (("anyOf" | "oneOf" | "allOf" | "prefixItems"), [_, *_]):
            return [_normalize(part, root, depth) for part in value]
        case (("default" | "const"), _):
            return value
    is_valid = (
        (key in _TEXTS and isinstance(value, str))
        or (key in _NUMBERS and isinstance(value, int | float) and not isinstance(value, bool))
        or (key in _SIZES and type(value) is int and value > 0)  # a minimum of 0 says nothing
        or (key == "additionalProperties" and isinstance(value, bool))
    )
    return value if is_valid else None


def _resolve(reference: Any, root: Mapping[str, Any]) -> Any:
    """Return the part of `root` that a reference such as `#/$defs/A` names; None for one to any other place."""
    if not isinstance(reference, str) or not _REFERENCE.match(reference):
        return None
    part: Any = root
    for name in filter(None, reference[1:].split("/")):
        name = name.replace("~1", "/").replace("~0", "~")  # the escapes of JSON Pointer
        part = part.get(name) if isinstance(part, Mapping) else None
    return part
