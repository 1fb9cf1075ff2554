"""Defines tools: their names, arguments and results, how they run, and the registry of a session's tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, cast, get_args

import msgspec
from msgspec import Struct

from agentcli.errors import ToolError, ToolErrorKind, UsageError
from agentcli.llm.messages import Document, Image, Text
from agentcli.llm.provider import ToolSpec
from agentcli.tools.command import NO_GRANTS, Access, CommandResult, DryRun, Grants
from agentcli.tools.workspace import Workspace

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Deps = TypeVar("Deps", default=Any)  # the default lets `ToolContext` be used without brackets
else:
    from typing import TypeVar

    Deps = TypeVar("Deps")

# The `deps` of the prompt or the direct call that the running task belongs to; None for those of the agent's options.
CALL_DEPS: ContextVar[Any] = ContextVar("CALL_DEPS", default=None)

OutputLevel = Literal["brief", "standard", "full"]

# A tool runs here ("server"), is handed to the client that registered it, or is carried out by the session itself.
ToolMode = Literal["server", "client", "session"]

# The effect of a call, for the permission step: none, reading, changing files, a command, the web. A "foreign" call
# may do anything; an "agent" call lets another agent make calls, each of which needs its own permission.
Effect = Literal["none", "read", "edit", "command", "web", "foreign", "agent"]

# Asks the person a question with some answers to choose from; returns None if they do not answer.
Ask = Callable[[str, Sequence[str]], Awaitable[str | None]]

Content = str | tuple[Text | Image | Document, ...]


class LazyResult(Struct, frozen=True):
    """A structured result of over 1 MB. Most callers need only the content, so it is made on demand."""

    make: Callable[[], Any]


class ToolOutput(Struct, frozen=True):
    """The output of a call: `content` for the model, `structured` for programs, `summary` (one line) for the person.

    `structured` is a `LazyResult` if it is large and there is content. Without content, the structured part is
    formatted for the model at the output level. `full` is the whole text if the content is only its beginning;
    read_more returns it. `error_kind` is for an error that still has a result of its own, such as a command that timed
    out. A dry run returns only `dry_run`; one that continues as a job returns `later`, which gives the report at its
    end.
    """

    content: Content | None = None
    structured: Any = None
    summary: str = ""
    is_error: bool = False
    error_kind: ToolErrorKind | None = None
    full: str = ""
    dry_run: DryRunReport | None = None
    later: Callable[[], Awaitable[DryRunReport]] | None = None

    def whole(self) -> ToolOutput:
        """Return the output with no `LazyResult` in it."""
        is_lazy = isinstance(self.structured, LazyResult)
        return msgspec.structs.replace(self, structured=self.structured.make()) if is_lazy else self


class DryRunReport(Struct, frozen=True, kw_only=True):
    """A dry run whose changes can be applied."""

    dry_run: DryRun
    result: CommandResult
    output: Callable[[], ToolOutput]  # makes the call's result once the person has decided
    needed_host: str = ""  # that the command could not reach, according to its output
    unread: tuple[Path, ...] = ()  # real paths that it could not read, according to its output


class RunTerms(Struct, frozen=True, kw_only=True):
    """The terms on which a call was permitted."""

    grants: Grants = NO_GRANTS  # of the call alone, in addition to those of the session
    paths: frozenset[Path] | None = None  # the real paths that the permission covers; None if it is not about paths
    only_reads: bool = False  # the sandbox keeps a command from writing
    # A dry run changes nothing yet. A "narrow" one, which nobody allowed, reads only the workspace, the system and
    # granted paths, and reaches only the hosts of its own grants.
    dry_run: Literal["full", "narrow"] | None = None


@dataclass(frozen=True)
class ToolContext(Generic[Deps]):
    """The surroundings of one call. `emit` shows output while the call runs, `publish` an event; neither waits.

    `level` is the detail of the result. Once `detach` is set, a command that the call waits for continues as a
    background job. `ask` is None if nobody can be asked. `ToolContext[MyDeps]` declares the type of `deps`.
    """

    workspace: Workspace
    call_id: str
    emit: Callable[[str], None] = lambda text: None
    detach: asyncio.Event | None = None
    level: OutputLevel = "standard"
    publish: Callable[[Any], None] = lambda event: None
    ask: Ask | None = None
    terms: RunTerms = field(default_factory=RunTerms)

    @property
    def deps(self) -> Deps:
        """The program's own object, from the prompt or the agent's options. It is never sent to a model or logged."""
        own = CALL_DEPS.get()
        return cast("Deps", self.workspace.resources.deps if own is None else own)

    @property
    def grants(self) -> Grants:
        """Permissions granted for this call only."""
        return self.terms.grants

    @property
    def all_grants(self) -> Grants:
        return self.workspace.grants + self.terms.grants

    def readable(self, path: str) -> Path:
        """Return the real path to read. Raises `ToolError`, e.g. if it is not the permitted path."""
        return self._as_permitted(path, "read")

    def writable(self, path: str) -> Path:
        """Return the real path to write. Raises `ToolError`, also if it is not the path that was permitted."""
        return self._as_permitted(path, "write")

    def _as_permitted(self, path: str, access: Access) -> Path:
        real = self.workspace.usable_path(path, access, self.grants)
        if self.terms.paths is not None and real not in self.terms.paths:
            message = f"{path} leads elsewhere since it was looked at: make the call again."
            raise ToolError(message, kind="permission_denied")
        return real


class RetryRule(Struct, frozen=True, kw_only=True):
    """The kinds of error after which a failed call is repeated, how often, and after how many seconds."""

    retry_on: Collection[ToolErrorKind] = frozenset(("timeout", "resource_error"))
    max_retries: int = 3
    first_delay_s: float = 1.0

    def delay(self, retries: int) -> float:
        """Return the seconds to wait before the next try: 1.5 times the last wait, at most 10."""
        return min(self.first_delay_s * 1.5**retries, 10.0)


@dataclass(frozen=True)
class Tool:
    """A tool. `run` raises `ToolError` with a message that tells the model what to do instead.

    A library caller's `run` may be sync, return a `str` and raise anything (see `own_tools.as_session_tool`).

    A `time_limit_s` of None means that the tool has a limit of its own. `dry_run` returns the diff that a call would
    make, and `narrow` returns arguments that make only some hunks of that diff, by index. A tool that `runs_commands`
    follows `terms.dry_run`. `file_arguments` names the arguments that are files it changes, and `lock_keys` returns
    further keys for a call's arguments: calls on one file, or with a common key, wait for each other. `is_idempotent`
    means that running it twice has the effect of running it once. `level` overrides the output level of the settings.
    `show` formats the structured result if `run` returns no content.

    A `client` tool is run by the program that registered it. `schema` describes arguments for which there is no struct.
    A tool that `is_described_when_called` may have been shown to the model only by name: the error about wrong
    arguments contains its description and schema.
    """

    name: str
    description: str
    arguments: type[Struct]
    run: Callable[[Any, ToolContext], Awaitable[ToolOutput | str] | ToolOutput | str]
    effect: Effect
    source: str = "builtin"
    time_limit_s: float | None = 120.0
    dry_run: Callable[[Any, ToolContext], Awaitable[str]] | None = None
    narrow: Callable[[Any, ToolContext, Sequence[int]], Awaitable[Any]] | None = None
    runs_commands: bool = False
    version: str = "1"
    file_arguments: tuple[str, ...] = ()
    lock_keys: Callable[[Any], Iterable[str] | Awaitable[Iterable[str]]] | None = None
    is_idempotent: bool = False
    retry: RetryRule = RetryRule()
    level: OutputLevel | None = None
    show: Callable[[Any, OutputLevel], str] | None = None
    mode: ToolMode = "server"
    schema: dict[str, Any] | None = None
    is_described_when_called: bool = False

    @property
    def server(self) -> str:
        """The MCP server that the tool belongs to; empty for any other tool."""
        kind, _, server = self.source.partition(":")
        return server if kind == "mcp" else ""

    @property
    def may_overlap(self) -> bool:
        """True if its calls of one reply may run at the same time."""
        return self.effect in ("none", "read", "web", "agent")

    @property
    def may_be_repeated(self) -> bool:
        """True if a call that failed halfway may be repeated automatically."""
        return self.effect in ("none", "read", "web") or self.is_idempotent

    async def output(self, arguments: Any, context: ToolContext) -> ToolOutput:
        """Run the tool, and return whatever it returns as a `ToolOutput`."""
        value = self.run(arguments, context)
        output = await value if isinstance(value, Awaitable) else value
        return output if isinstance(output, ToolOutput) else ToolOutput(output)

    async def preview(self, arguments: Any, context: ToolContext) -> str:
        """Return the text that a person approves: the diff of a dry run, else the command or the arguments as they are.

        Raises `ToolError` when the call could not do its work.
        """
        if self.dry_run is not None:
            return await self.dry_run(arguments, context)
        if self.runs_commands and (command := getattr(arguments, "command", None)):
            return str(command)
        return self.arguments_text(arguments)

    def arguments_text(self, arguments: Any) -> str:
        """Return the arguments as JSON for a person."""
        values = msgspec.to_builtins(arguments)
        if self.schema is None:  # in arguments that a schema describes, null is an ordinary value
            values = {name: value for name, value in values.items() if value is not None}
        return msgspec.json.format(msgspec.json.encode(values)).decode()

    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, self.description, self.schema or schema_of(self.arguments))

    def parse(self, input: dict[str, Any]) -> Any:
        """Return the arguments, checked. Unknown keys are ignored because small models add some; null is left out.

        Raises `ToolError` (invalid_parameters) naming the field and what was expected.
        """
        if self.schema is not None:  # no struct describes the arguments, so they stay a dict
            if problem := problem_with(input, self.schema, rejects_others=self.is_described_when_called):
                message = f"Wrong arguments for {self.name}: {problem}."
                if self.is_described_when_called:  # the model may have guessed them from the name alone
                    schema = msgspec.json.encode(self.schema).decode()
                    message += f"\n{self.description}\nIts arguments, as a JSON Schema: {schema}"
                raise ToolError(message, kind="invalid_parameters")
            return input
        fields = msgspec.structs.fields(self.arguments)
        # A required argument may be `X | None`; for others, null means that the argument is left out.
        takes_null = {each.encode_name for each in fields if each.required and type(None) in get_args(each.type)}
        try:
            values = {name: value for name, value in input.items() if value is not None or name in takes_null}
            return msgspec.convert(values, self.arguments, strict=False)
        except msgspec.ValidationError as error:
            names = ", ".join(each.encode_name + ("" if each.required else "?") for each in fields)
            message = f"Wrong arguments for {self.name}: {error}. It takes {names}."
            raise ToolError(message, kind="invalid_parameters") from error


def kind_argument(tool: Tool) -> str:
    """Return the argument that rules about a tool may name in brackets: `Agent(explore)`, `Skill(pdf)`; else empty."""
    return {"create_subagent": "agent", "skill": "name"}.get(tool.name, "")


_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str, "boolean": bool, "integer": int, "number": (int, float), "array": list, "object": dict,
}  # fmt: skip


def problem_with(input: dict[str, Any], schema: dict[str, Any], *, rejects_others: bool) -> str:
    """Describe the first argument that a foreign schema does not allow; empty if all are allowed.

    Only names and plain types are checked: whoever wrote the schema checks the rest. With `rejects_others`, for a model
    that may guess names, one that is not in the schema is a problem, unless the schema allows others.
    """
    properties = schema.get("properties", {})
    allows_others = schema.get("additionalProperties") or "patternProperties" in schema
    takes_any_name = not rejects_others or not properties or allows_others
    for name in schema.get("required", ()):
        if name not in input:
            return f"{name} is missing ({_single_type(properties, name) or 'a value'})"
    for name, value in input.items():
        if name not in properties and not takes_any_name and name != "output_level":  # every tool takes that one
            return f"there is no {name}"
        type_name = _single_type(properties, name)
        types = _JSON_TYPES.get(type_name)
        is_wrong_bool = isinstance(value, bool) and type_name != "boolean"  # in Python a bool is an int
        if types and value is not None and (not isinstance(value, types) or is_wrong_bool):
            return f"{name} must be of type {type_name}"
    return ""


def _single_type(properties: dict[str, Any], name: str) -> str:
    """Return the JSON type of a property; empty if it has none or several, or is not described."""
    match properties.get(name):
        case {"type": str(type_name)}:
            return type_name
    return ""


def schema_of(arguments: type[Struct]) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments, as short as possible: no `$ref`, `title`, `default` or null."""
    (top,), definitions = msgspec.json.schema_components([arguments], ref_template="{name}")
    flat = _flatten(top, definitions)
    return {"type": "object", **{key: flat[key] for key in ("properties", "required") if flat.get(key)}}


def _flatten(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Resolve a schema's references and drop what a model does not need, because every request contains the schema."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"]]
    branches = [branch for branch in schema.get("anyOf", ()) if branch.get("type") != "null"]
    if len(branches) == 1:  # `X | None`: models leave an optional argument out instead of giving null
        return _flatten({**{key: value for key, value in schema.items() if key != "anyOf"}, **branches[0]}, definitions)
    flat: dict[str, Any] = {}
    for key, value in schema.items():
        match key:
            case "title" | "default":
                continue
            case "minimum" | "exclusiveMinimum" if value in (0, 1):  # models know that counts are not negative
                continue
            case "properties":
                flat[key] = {name: _flatten(part, definitions) for name, part in value.items()}
            case "items" | "additionalProperties" if isinstance(value, dict):
                flat[key] = _flatten(value, definitions)
            case "anyOf":
                flat[key] = [_flatten(part, definitions) for part in branches]
            case _:
                flat[key] = value
    if "enum" in flat:
        flat.pop("type", None)  # the values show it
    if flat.get("required") == []:
        del flat["required"]
    return flat


class ToolRegistry:
    """The tools of a session, by unique names, in the order in which the model sees them in every request."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self.register(tool)

    def register(self, tool: Tool) -> None:
        """Add a tool. Raises `UsageError` if its name is taken."""
        if tool.name in self._tools:
            sources = f"{self._tools[tool.name].source}, {tool.source}"
            raise UsageError(f"There are two tools named {tool.name!r} ({sources}).")
        self._tools[tool.name] = tool

    def get(self, name: str) -> Tool:
        """Return a tool by its name. Raises `ToolError` (not_found) that lists the tools."""
        if name not in self._tools:
            raise ToolError(f"No tool {name!r}; there is {', '.join(self._tools) or 'none'}.", kind="not_found")
        return self._tools[name]

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    def clone(self, *, exclude: Collection[str] = (), only: Collection[str] | None = None) -> ToolRegistry:
        """Return a registry without some tools, or with only some. Raises `UsageError` for an unknown one in `only`."""
        if only is not None and (missing := [name for name in only if name not in self._tools]):
            raise UsageError(f"No tool {missing[0]!r}; there is {', '.join(self._tools)}.")
        return ToolRegistry(tool for tool in self if tool.name not in exclude and (only is None or tool.name in only))

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec() for tool in self)
