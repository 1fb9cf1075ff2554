"""Holds the MCP servers of a program: starts them behind the prompt, adds their tools to sessions, and has `/mcp`."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from typing import Any

from agentcli.agent.calls.model import SessionCalls
from agentcli.agent.commands.command import AsPrompt, CommandHost, CommandSet, Outcome, SlashCommand
from agentcli.agent.events import Emit, Notice
from agentcli.agent.permissions.rules import Rule
from agentcli.agent.runtime import Turn, TurnStep
from agentcli.agent.state import AgentState
from agentcli.conversation.entries import User
from agentcli.conversation.mentions import foreign_text, typed_blocks
from agentcli.conversation.titles import shortened
from agentcli.errors import ToolError, UsageError, did_you_mean
from agentcli.extensions.mcp.server import Connect, Pins, Server, Status
from agentcli.extensions.mcp.tools import MCPClient, OffersPrompts, RemotePrompt, ServerSpec, remote_tools, tool_name
from agentcli.llm.messages import Text
from agentcli.tools.observation import cut_middle
from agentcli.tools.registry import ToolRegistry
from agentcli.tools.tool import Tool

QUIET_WAIT_S = 1.0  # most servers are there by then
MAX_TEXT = 100_000  # characters of one resource
_MENTION = re.compile(r"(?<!\S)@([\w.-]+):(\S+)")  # a resource in a prompt: `@server:uri`
_PIPED = "\n\n<stdin>\n"  # what was piped in is somebody else's text


class JoinServers(TurnStep):
    """Gives a turn the servers' tools before its first request, and the resources that its prompt names."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def begin(self, turn: Turn) -> None:
        await self._servers.join(turn.runtime.calls)
        await self._servers.attach_named(turn.state, turn.log.prompt_ids, turn.emit)


class Servers:
    """The servers of one program, by name; `clients` are a caller's own. `only` names the tools that count.

    What models see of a server is fixed until the next conversation or compaction, so that requests begin the same.
    Only a server that was not known before joins at a later prompt. `can_skip`: Enter ends the waiting.
    """

    can_skip = False

    def __init__(
        self,
        specs: Sequence[ServerSpec],
        connect: Connect,
        pins: Pins,
        *,
        tell: Callable[[str], None],
        clients: Sequence[MCPClient] = (),
        only: Sequence[str] = (),
    ) -> None:
        self.tell = tell
        self.on_prompts: Callable[[], None] = lambda: None
        self._only = [Rule(name) for name in only]
        made = partial(Server, tell=lambda text: self.tell(text), updated=self._note_update)  # noqa: PLW0108 - of now
        self._servers = {spec.name: made(spec, connect, pins) for spec in specs}
        for client in clients:
            spec = ServerSpec(name=client.name, scope="caller")
            self._servers[client.name] = made(spec, partial(_connected, client), None)
        self._starting: set[asyncio.Task[None]] = set()
        self._joining = asyncio.Lock()
        self._waiting: asyncio.Timeout | None = None
        self._has_news = False

    def __iter__(self) -> Iterator[Server]:
        return iter(self._servers.values())

    def __contains__(self, name: str) -> bool:
        return name in self._servers

    def get(self, name: str) -> Server:
        """Raises `UsageError` that lists what there is."""
        if name not in self._servers:
            known = ", ".join(self._servers) or "none"
            raise UsageError(f"There is no MCP server {name!r}{did_you_mean(name, self._servers)}; there is {known}.")
        return self._servers[name]

    def start(self) -> None:
        """Begin to connect to all of them, and return at once."""
        for server in self:
            self._begin(server)

    def _begin(self, server: Server) -> asyncio.Task[None]:
        task = asyncio.create_task(server.try_to_connect())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        return task

    async def join(self, calls: SessionCalls) -> None:
        """Let a session have the tools, before its first request, and where a server has come late."""
        async with self._joining:
            if calls.delegates.unknown_servers is None:
                await self._wait_for_new()
                self.add_tools(calls)
                calls.delegates.unknown_servers = {server.name for server in self if server.pinned is None}
                return
            unknown = [server for server in self if server.name in calls.delegates.unknown_servers]
            if late := [server for server in unknown if server.pinned is not None]:
                calls.delegates.unknown_servers.difference_update(server.name for server in late)
                self.add_tools(calls)
                names = ", ".join(server.name for server in late)
                self.tell(f"From this prompt on, the model can use the tools of: {names}")
            for server in unknown:
                if server.pinned is None:
                    self._begin(server)  # it may have downloaded by now what it needs

    def stop_waiting(self) -> None:
        """Have sessions begin without the servers that still connect."""
        if self._waiting is not None:
            self._waiting.reschedule(0)

    async def _wait_for_new(self) -> None:
        new = [server for server in self if server.pinned is None]
        late = {self._begin(server) for server in new if not server.problem}
        if late:
            _, late = await asyncio.wait(late, timeout=QUIET_WAIT_S)
        if late:
            waiting = [server for server in new if server.pinned is None and not server.problem]
            names = ", ".join(server.name for server in waiting)
            most_s = max((server.spec.startup_timeout_s for server in waiting), default=0)
            how = " Press Enter to start without them." if self.can_skip else ""
            self.tell(f"Waiting up to {most_s:g} s for new MCP servers: {names}.{how}")
            try:
                async with asyncio.timeout(None) as self._waiting:
                    await asyncio.wait(late)
            except TimeoutError:
                pass
            finally:  # also where the turn is interrupted
                self._waiting = None
        for server in new:
            if server.pinned is None:
                why = "has not answered yet. Its tools are available from the first prompt after it answers."
                why = f"offers no tools: {server.problem}" if server.problem else why
                self.tell(f"The MCP server {server.name} {why}")

    def add_tools(self, calls: SessionCalls) -> None:
        """Have a session's tools be its own and those of the servers, as they are now."""
        self._has_news = False
        tools = list(self.tools())
        if [tool.spec() for tool in tools] != [tool.spec() for tool in calls.tools if tool.server]:
            calls.tools = ToolRegistry((*(tool for tool in calls.tools if not tool.server), *tools))

    def refresh(self, calls: SessionCalls) -> None:
        """Use what has changed, now that the beginning of requests changes anyway."""
        if self._has_news:
            self.add_tools(calls)

    def tools(self) -> Iterator[Tool]:
        """Yield the tools that are known of all servers."""
        taken: set[str] = set()
        for server in self:
            offered = server.pinned.tools if server.pinned else ()
            wanted = [tool for tool in offered if server.spec.offers(tool.name)]
            for tool in remote_tools(server.name, wanted, server.call, taken):
                if not self._only or any(rule.names(tool.name) for rule in self._only):
                    yield tool

    def prompts(self) -> Iterator[tuple[Server, RemotePrompt]]:
        for server in self:
            for prompt in server.pinned.prompts if server.pinned else ():
                yield server, prompt

    async def attach_named(self, state: AgentState, prompt_ids: Container[str], emit: Emit) -> None:
        """Add the resources that a prompt names to it; the person is told of one that cannot be read."""
        for server, uri in dict.fromkeys(self._named(state, prompt_ids)):
            try:
                client = await self._servers[server].client()
                if not isinstance(client, OffersPrompts):
                    raise ToolError(f"The MCP server {server} has no resources.", kind="not_found")
                async with asyncio.timeout(self._servers[server].spec.timeout_s):
                    parts = await client.read_resource(uri)
            except (ToolError, TimeoutError) as error:
                why = str(error) or "it took too long"
                emit(Notice(f"@{server}:{uri} was not read: {why}"))
                parts = (Text(f"It could not be read: {why}"),)
            cut = (Text(cut_middle(part.text, MAX_TEXT)) if isinstance(part, Text) else part for part in parts)
            head = Text(f"The resource {uri} of the MCP server {server}, which the prompt names:")
            state.notes.append(User((head, *cut), is_reminder=True))

    def _named(self, state: AgentState, prompt_ids: Container[str]) -> Iterator[tuple[str, str]]:
        for entry in state.conversation.path:
            if entry.id in prompt_ids and isinstance(entry.body, User):
                for block in typed_blocks(entry.body.content):
                    typed = block.text.partition(_PIPED)[0] if isinstance(block, Text) else ""
                    yield from ((server, uri) for server, uri in _MENTION.findall(typed) if server in self)

    def listing(self) -> list[dict[str, Any]]:
        """Return each server with its state, for programs."""
        return [{"name": server.name, "status": server.status} for server in self]

    async def aclose(self, *, for_good: bool = True) -> None:
        """Disconnect from all; unless `for_good`, a later call connects again."""
        for task in list(self._starting):
            task.cancel()
        await asyncio.gather(*(server.aclose(for_good=for_good) for server in self))

    def _note_update(self) -> None:
        self._has_news = True
        self.on_prompts()


async def _connected(client: MCPClient, spec: ServerSpec, server: Server) -> MCPClient:
    return client


GROUP = "MCP"
NO_SERVERS = "No MCP server is configured here. Add one: agentcli mcp add NAME -- COMMAND, or with its URL."
_MAX_HELP = 80  # characters
_MARKS = {"connected": "●", "connecting": "…", "idle": "○", "changed": "!", "needs-auth": "!", "failed": "✗"}
_FORMS = ("", "NAME", "restart NAME", "approve NAME")


def add_mcp_commands(commands: CommandSet, servers: Servers | None) -> None:
    """Add `/mcp`, and the prompts of servers as `/mcp__SERVER__PROMPT`, also those that become known later."""
    help = "show the MCP servers; restart or approve one"
    commands.add(SlashCommand("mcp", help, partial(_mcp, servers), "[NAME]", group=GROUP, forms=_FORMS))
    if servers is not None:
        servers.on_prompts = partial(_add_prompts, commands, servers)
        servers.on_prompts()


def _add_prompts(commands: CommandSet, servers: Servers) -> None:
    for server, prompt in servers.prompts():
        if (name := tool_name(server.name, prompt.name)) not in commands.names:
            help = shortened(prompt.description or f"a prompt of {server.name}", _MAX_HELP)
            commands.add(SlashCommand(name, help, partial(_use_prompt, server, prompt), _hint(prompt), group=GROUP))


def _hint(prompt: RemotePrompt) -> str:
    return " ".join(name.upper() if needed else f"[{name.upper()}]" for name, needed in prompt.arguments)


async def _use_prompt(server: Server, prompt: RemotePrompt, host: CommandHost, argument: str) -> Outcome:
    try:
        client = await server.client()
        assert isinstance(client, OffersPrompts), "only those that have prompts are listed"
        text = await client.get_prompt(prompt.name, arguments_of(prompt, argument))
    except ToolError as error:
        raise UsageError(str(error)) from error
    if not text.strip():
        raise UsageError(f"The prompt {prompt.name} of the MCP server {server.name} is empty.")
    told = f"Do what this prompt of the MCP server {server.name} says."
    return AsPrompt(told, more=(foreign_text(f"prompt {prompt.name}", text),))


def arguments_of(prompt: RemotePrompt, given: str) -> dict[str, str]:
    """Return the words as arguments, in order or as `name=value`; the last one takes the rest. Raises `UsageError`."""
    names = [name for name, _ in prompt.arguments]
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise UsageError(f"The arguments cannot be read: {error}.") from error
    named = {key: value for key, equals, value in (word.partition("=") for word in words) if equals and key in names}
    others = [word for word in words if word.partition("=")[0] not in named]
    free = [name for name in names if name not in named]
    if len(others) > len(free) > 0:
        others = [*others[: len(free) - 1], " ".join(others[len(free) - 1 :])]
    found = named | dict(zip(free, others, strict=False))
    if missing := [name for name, needed in prompt.arguments if needed and name not in found]:
        raise UsageError(f"{prompt.name} also needs {', '.join(missing)}.")
    return found


async def _mcp(servers: Servers | None, host: CommandHost, argument: str) -> Outcome:
    if servers is None:
        return NO_SERVERS
    word, _, rest = argument.partition(" ")
    name = rest.strip()
    try:
        match word:
            case "":
                return "\n".join(server_row(server, server.status) for server in servers)
            case "restart" if name:
                await (server := servers.get(name)).restart()
                return server_row(server, server.status)
            case "approve" if name:
                changes = await servers.get(name).approve()
                return f"Approved: {changes}. The model sees it from the next conversation or compaction on."
            case _:
                return describe_offer(server := servers.get(argument), server.status)
    except ToolError as error:
        raise UsageError(str(error)) from error


def server_row(server: Server, status: Status) -> str:
    what = f"{len(server.pinned.tools)} tools" if server.pinned else "its tools are not known yet"
    about = (server.name, status, what, server.spec.scope, str(server.spec.transport))
    row = f"  {_MARKS[status]} {' · '.join(about)}"
    changed = f"\n    changed: {server.changes()}" if server.is_changed else ""
    return row + changed + (f"\n    {server.problem}" if server.problem else "")


def describe_offer(server: Server, status: Status) -> str:
    offer = server.now or server.pinned
    lines = [server_row(server, status)]
    for tool in offer.tools if offer else ():
        lines.append(f"    {tool.name}  {shortened(' '.join(tool.description.split()), _MAX_HELP)}")
    for prompt in offer.prompts if offer else ():
        lines.append(f"    /{tool_name(server.name, prompt.name)} {_hint(prompt)}".rstrip())
    return "\n".join(lines)
