"""The interface of tools: a name, arguments that describe themselves, and `run`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from agentcli.errors import ToolError, ToolErrorKind
from agentcli.llm.messages import Document, Image, Text
from agentcli.llm.provider import ToolSpec
from agentcli.tools.command import NO_GRANTS, Access, BackgroundJob, CommandResult, Grants
from agentcli.tools.data_files import DataFiles
from agentcli.tools.dry_run import DryRun
from agentcli.tools.file_ledger import FileLedger
from agentcli.tools.path_names import display_name, parse_name
from agentcli.tools.remembered import Memory, Past
from agentcli.tools.sandbox import PathStatus, Sandbox, SandboxFacts, Use
from agentcli.tools.schemas import problem_with, schema_of
from agentcli.tools.web.web import Web

OutputLevel = Literal["brief", "standard", "full"]

# A tool runs here, is handed to the client that registered it, or is carried out by the session itself.
ToolMode = Literal["server", "client", "session"]

# What a call can do, for the permission step: nothing, look, change files, run a command, ask the web; "foreign" is
# what nobody here knows, "agent" lets another agent make calls, each of which is judged.
Effect = Literal["none", "read", "edit", "command", "web", "foreign", "agent"]

# Puts a question to the person, with answers to choose from; gives None where they do not answer.
Ask = Callable[[str, Sequence[str]], Awaitable[str | None]]

Content = str | tuple[Text | Image | Document, ...]


class LazyResult(Struct, frozen=True):
    """A structured result of over 1 MB: made for who asks for it, since the content is all that most need of it."""

    make: Callable[[], Any]


class ToolOutput(msgspec.Struct, frozen=True):
    """The output of a call: `content` for the model, `structured` for programs, `summary` (one line) for the person.

    `structured` is a `LazyResult` where it is large and there is content. Without content the structured part is
    formatted for the model, as detailed as the output level says. `full` is the whole text where the content is only
    its beginning; read_more finds it. `error_kind` is for an error that still has a result of its own, such as a
    command that timed out. A call that was asked for a dry run gives a `dry_run` instead of all this.
    """

    content: Content | None = None
    structured: Any = None
    summary: str = ""
    is_error: bool = False
    error_kind: ToolErrorKind | None = None
    full: str = ""
    dry_run: DryRunReport | None = None

    def whole(self) -> ToolOutput:
        """The same with a structured part that is made."""
        if not isinstance(self.structured, LazyResult):
            return self
        return msgspec.structs.replace(self, structured=self.structured.make())


class DryRunReport(Struct, frozen=True):
    """A dry run whose changes wait; `output` makes the result of the call once it is settled which are applied.

    As far as its output tells, `needed_host` is a host that it could not reach, and `unread` are paths that it could
    not read, links followed.
    """

    dry_run: DryRun
    result: CommandResult
    output: Callable[[], ToolOutput]
    needed_host: str = ""
    unread: tuple[Path, ...] = ()


@dataclass
class SessionGrants:
    """The exceptions that hold for every call of a session and its subagents, which share this record.

    `exposed` are secret files that the person lets commands read where no sandbox hides them.
    """

    now: Grants = NO_GRANTS
    exposed: set[Path] = field(default_factory=set)


@dataclass
class WorkspaceSettings:
    """The person's home folder, and the charset of files that are not UTF-8 (empty: it is detected)."""

    home: Path = field(default_factory=Path.home)
    charset: str = ""


@dataclass
class SessionResources:
    """The services that a session offers its tools beside files and commands; None stands for one it lacks.

    `data` stores results that are too large to be shown, `past` returns the session's log, and `memory` holds the
    project's memory files.
    """

    data: DataFiles | None = None
    web: Web | None = None
    past: Callable[[], Past] | None = None
    memory: Memory | None = None


@dataclass(kw_only=True)
class Workspace:
    """State shared by all calls of a session.

    `cwd` anchors relative paths, `shell_cwd` is the folder that the last command ended in (None: `cwd`). The sandbox
    may be opened when it is first used; `is_open` returns False until then, and nothing runs in it.
    """

    cwd: Path
    sandbox: Sandbox
    is_open: Callable[[], bool] = lambda: True
    settings: WorkspaceSettings = field(default_factory=WorkspaceSettings)
    session_grants: SessionGrants = field(default_factory=SessionGrants)
    resources: SessionResources = field(default_factory=SessionResources)
    files: FileLedger = field(default_factory=FileLedger)
    shell_cwd: Path | None = None

    @property
    def grants(self) -> Grants:
        return self.session_grants.now

    @grants.setter
    def grants(self, grants: Grants) -> None:
        self.session_grants.now = grants

    @property
    def facts(self) -> SandboxFacts:
        return self.sandbox.facts(self.grants)

    def preload(self) -> None:
        """Open the sandbox ahead of the first call. It imports for some 20 ms, so call it in a thread."""
        _ = self.sandbox.jobs

    def running_jobs(self) -> list[BackgroundJob]:
        return [job for job in self.sandbox.jobs.list() if job.is_running] if self.is_open() else []

    def look(self, path: Path, use: Use = "read", grants: Grants = NO_GRANTS) -> PathStatus:
        return self.sandbox.look(path, use, self.grants + grants)

    def usable_path(self, path: Path, access: Access, grants: Grants = NO_GRANTS) -> Path:
        """The real path of what may be read or written. Raises `ToolError` (permission_denied)."""
        status = self.look(path, access, grants)
        if status.is_usable:
            return status.real
        if status.place == "secret":
            why = "is kept from tools (it may hold secrets, or a rule says so): the user has to grant it."
        else:
            where = ", ".join(map(str, self.facts.roots))
            why = f"is outside the workspace ({where}) and may not be {'written' if access == 'write' else 'read'}."
        raise ToolError(f"{path} {why}", kind="permission_denied")

    def readable(self, path: str, grants: Grants = NO_GRANTS) -> Path:
        return self.usable_path(self.lexical_path(path), "read", grants)

    def writable(self, path: str, grants: Grants = NO_GRANTS) -> Path:
        return self.usable_path(self.lexical_path(path), "write", grants)

    def real_path(self, path: str) -> Path:
        """Where a path leads, wherever that is. Raises `ToolError` (invalid_parameters) for a loop of links."""
        return self.look(self.lexical_path(path)).real

    def lexical_path(self, path: str) -> Path:
        """A path from the working directory on, links not followed. Raises `ToolError` for what is no path."""
        name = parse_name(path)
        if "\0" in name or not name:
            raise ToolError(f"{path!r} is not a path.", kind="invalid_parameters")
        if path == "~" or path.startswith("~/"):
            return self.settings.home / path[2:]
        return self.cwd / name

    def shown(self, path: Path) -> str:
        """A path as the model writes it: relative to the working directory where it lies below it.

        A name that is not UTF-8 is quoted as a shell does it: a request cannot carry it as it is.
        """
        shown = str(path).removeprefix(self._below) if path != self.real_cwd else "."
        return display_name(shown)

    @cached_property
    def real_cwd(self) -> Path:
        return self.look(self.cwd).real

    @cached_property
    def _below(self) -> str:
        return f"{str(self.real_cwd).rstrip(os.sep)}{os.sep}"


class RunTerms(Struct, frozen=True, kw_only=True):
    """The terms on which a call was permitted: with which `grants` beside the session's, and where its `paths` led.

    `paths` is None where nobody decided that. With `only_reads` a command is held to reading. A `dry_run` changes
    nothing yet; a "narrow" one, which nobody allowed, reads only the workspace, the system and what is granted, and
    reaches no host but those of its own grants.
    """

    grants: Grants = NO_GRANTS
    paths: frozenset[Path] | None = None
    only_reads: bool = False
    dry_run: Literal["full", "narrow"] | None = None


@dataclass(frozen=True)
class ToolContext:
    """The surroundings of one call. `emit` shows output while the call runs, `publish` an event; neither waits.

    `level` is how detailed the result is to be. Once `detach` is set, a command the call waits for goes on as a
    background job. `ask` is None where nobody can be asked.
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
    def grants(self) -> Grants:
        """The call's own."""
        return self.terms.grants

    @property
    def all_grants(self) -> Grants:
        """The session's and the call's own."""
        return self.workspace.grants + self.terms.grants

    def readable(self, path: str) -> Path:
        """The real path of what to read. Raises `ToolError`, also when it is not the one that was permitted."""
        return self._as_permitted(path, self.workspace.readable(path, self.grants))

    def writable(self, path: str) -> Path:
        """The same for a file to change."""
        return self._as_permitted(path, self.workspace.writable(path, self.grants))

    def _as_permitted(self, given: str, real: Path) -> Path:
        if self.terms.paths is not None and real not in self.terms.paths:
            raise ToolError(
                f"{given} leads elsewhere since it was looked at: make the call again.", kind="permission_denied"
            )
        return real


class RetryRule(Struct, frozen=True, kw_only=True):
    """When a failed call is made again by itself: for which kinds of error, how often, after how many seconds."""

    retry_on: frozenset[ToolErrorKind] = frozenset(("timeout", "resource_error"))
    most: int = 3
    first_delay_s: float = 1.0
    factor: float = 1.5
    longest_delay_s: float = 10.0

    def delay(self, retries: int) -> float:
        """Seconds to wait before the next try, after so many retries."""
        return min(self.first_delay_s * self.factor**retries, self.longest_delay_s)


@dataclass(frozen=True)
class Tool:
    """A tool. `run` raises `ToolError` with a message that tells the model what to do instead.

    A library caller's `run` may be sync, give a `str` and raise anything: `own_tools.guarded` makes it like ours.

    `may_overlap`: calls of one reply may run together. `time_limit_s` None means that the tool keeps its own.
    `dry_run` gives the diff a call would make; `narrow` arguments that make only some of that diff's hunks, by index.
    One that `runs_commands` obeys `terms.dry_run`.
    `file_arguments` name the arguments that are files it changes: calls on one file queue up. `is_idempotent` says that
    running it twice is running it once. `level` overrides the output level of the settings. `show` formats the
    structured result where `run` gives no content. A `client` tool is run by whoever registered it, not here; `schema`
    is for arguments that no struct describes. A tool that `is_described_when_called` may have been shown to the model
    as a stub: wrong arguments are answered with its description and schema.
    """

    name: str
    description: str
    arguments: type[msgspec.Struct]
    run: Callable[[Any, ToolContext], Awaitable[ToolOutput | str] | ToolOutput | str]
    effect: Effect
    source: str = "builtin"
    time_limit_s: float | None = 120.0
    dry_run: Callable[[Any, ToolContext], Awaitable[str]] | None = None
    narrow: Callable[[Any, ToolContext, Sequence[int]], Awaitable[Any]] | None = None
    runs_commands: bool = False
    version: str = "1"
    file_arguments: tuple[str, ...] = ()
    is_idempotent: bool = False
    retry: RetryRule = RetryRule()
    level: OutputLevel | None = None
    show: Callable[[Any, OutputLevel], str] | None = None
    mode: ToolMode = "server"
    schema: dict[str, Any] | None = None
    is_described_when_called: bool = False

    @property
    def server(self) -> str:
        """The MCP server it belongs to; empty for any other tool."""
        kind, _, server = self.source.partition(":")
        return server if kind == "mcp" else ""

    @property
    def may_overlap(self) -> bool:
        return self.effect in ("none", "read", "web", "agent")

    @property
    def may_be_repeated(self) -> bool:
        """True if a call that failed half way may be repeated automatically."""
        return self.effect in ("none", "read", "web") or self.is_idempotent

    async def output(self, arguments: Any, context: ToolContext) -> ToolOutput:
        """Run the tool and return its output."""
        made = self.run(arguments, context)
        made = await made if isinstance(made, Awaitable) else made
        return made if isinstance(made, ToolOutput) else ToolOutput(made)

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
        given = msgspec.to_builtins(arguments)
        if self.schema is None:  # else a null is an argument like any other
            given = {name: value for name, value in given.items() if value is not None}
        return msgspec.json.format(msgspec.json.encode(given)).decode()

    @property
    def _explained(self) -> str:
        """The schema, for a model that may have seen only a stub."""
        if not self.is_described_when_called:
            return ""
        return f"\n{self.description}\nIts arguments, as a JSON Schema: {msgspec.json.encode(self.schema).decode()}"

    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, self.description, self.schema or schema_of(self.arguments))

    def parse(self, input: dict[str, Any]) -> Any:
        """The arguments, checked. Keys the tool does not know are passed over: small models add some; null is left out.

        Raises `ToolError` (invalid_parameters) naming the field and what was expected.
        """
        if self.schema is not None:
            if problem := problem_with(input, self.schema, is_closed=self.is_described_when_called):
                raise ToolError(
                    f"Wrong arguments for {self.name}: {problem}.{self._explained}", kind="invalid_parameters"
                )
            return input
        try:
            takes_null = {
                field.encode_name
                for field in msgspec.structs.fields(self.arguments)
                if field.required and type(None) in get_args(field.type)
            }
            given = {name: value for name, value in input.items() if value is not None or name in takes_null}
            return msgspec.convert(given, self.arguments, strict=False)
        except msgspec.ValidationError as error:
            fields = ", ".join(_field_note(field) for field in msgspec.structs.fields(self.arguments))
            raise ToolError(
                f"Wrong arguments for {self.name}: {error}. It takes {fields}.", kind="invalid_parameters"
            ) from error


def kind_argument(tool: Tool) -> str:
    """The argument that rules about a tool may name in brackets: `Agent(explore)`, `Skill(pdf)`; empty for others."""
    return {"create_subagent": "agent", "skill": "name"}.get(tool.name, "")


def _field_note(field: msgspec.structs.FieldInfo) -> str:
    return field.encode_name if field.required else f"{field.encode_name}?"
