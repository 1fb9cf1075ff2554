"""Manages the MCP servers of a program: starts them in the background, adds their tools to sessions, runs `/mcp`."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from agentcli.agent.calls.model import SessionCalls
from agentcli.agent.commands.command import AsPrompt, CommandHost, CommandSet, Outcome, SlashCommand
from agentcli.agent.events import Emit, Notice
from agentcli.agent.permissions.rules import Rule
from agentcli.agent.runtime import Turn, TurnStep
from agentcli.agent.session import Session
from agentcli.agent.state import AgentState
from agentcli.background import start_in_background
from agentcli.conversation.entries import User
from agentcli.conversation.history import shorten
from agentcli.conversation.mentions import foreign_text, typed_blocks
from agentcli.errors import ToolError, UsageError, did_you_mean
from agentcli.extensions.mcp import tools as mcp_tools
from agentcli.extensions.mcp.server import Connect, Server, ServerApprovals, Status
from agentcli.llm.messages import Text
from agentcli.tools.observation import cut_middle
from agentcli.tools.tool import Tool, ToolRegistry

MAX_RESOURCE_CHARS = 100_000
_MENTION = re.compile(r"(?<!\S)@([\w.-]+):(\S+)")  # a resource in a prompt: `@server:uri`


class JoinServers(TurnStep):
    """Adds the servers' tools to a session before a turn's first request, and the resources that its prompt names."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def begin(self, turn: Turn) -> None:
        await self._servers.update_tools(turn.runtime.calls)
        await self._servers.attach_mentioned(turn.state, turn.log.prompt_ids, turn.emit)


class Servers:
    """The servers of one program, by name; `clients` are a caller's own. `only` names the tools that are offered.

    The tools that a server offers to models stay the same until the next conversation or compaction, so that the start
    of requests stays in the provider's cache. Only a server whose tools were not known joins at a later prompt.
    """

    def __init__(
        self,
        specs: Sequence[mcp_tools.ServerSpec],
        connect: Connect,
        approvals: ServerApprovals,
        *,
        on_notice: Callable[[str], None],
        clients: Sequence[mcp_tools.MCPClient] = (),
        only: Sequence[str] = (),
    ) -> None:
        self.on_notice = on_notice
        self.on_new_prompts: Callable[[], None] = lambda: None  # called when the servers' prompts may have changed
        self._only = [Rule(name) for name in only]
        # The open session replaces `on_notice`, so it is looked up for each notice.
        make = partial(Server, on_notice=lambda text: self.on_notice(text), on_approval=self._on_approval)  # noqa: PLW0108
        self._servers = {spec.name: make(spec, connect, approvals) for spec in specs}
        for client in clients:
            spec = mcp_tools.ServerSpec(name=client.name, scope="caller")
            self._servers[client.name] = make(spec, partial(_return_client, client), None)
        self._can_skip = False  # True if Enter ends the wait for new servers
        self._starting: set[asyncio.Task[None]] = set()  # the attempts to connect
        self._joining = asyncio.Lock()  # held by `update_tools`
        self._waiting: asyncio.Timeout | None = None  # the wait for new servers, for `stop_waiting`
        self._has_new_offer = False  # an offer was approved that `add_tools` has not used yet

    def __iter__(self) -> Iterator[Server]:
        return iter(self._servers.values())

    def get(self, name: str) -> Server:
        """Return a server by its name. Raises `UsageError` that lists the servers."""
        if name not in self._servers:
            known = ", ".join(self._servers) or "none"
            raise UsageError(f"Unknown MCP server {name!r}{did_you_mean(name, self._servers)}. Known servers: {known}.")
        return self._servers[name]

    def attach(self, session: Session, *, can_skip: bool) -> None:
        session.runtime.calls.delegates.servers = self
        session.runtime.steps.append(partial(JoinServers, self))
        self.on_notice = lambda text: session.publish(Notice(text))
        self._can_skip = can_skip

    def start(self) -> None:
        for server in self:
            self._start_connecting(server)

    def _start_connecting(self, server: Server) -> asyncio.Task[None]:
        return start_in_background(server.try_to_connect(), self._starting)

    async def update_tools(self, calls: SessionCalls) -> None:
        """Add the tools to a session before its first turn, and before a later one if a server answered late."""
        async with self._joining:
            if calls.delegates.unknown_servers is None:  # the session's first turn
                await self._wait_for_new_servers()
                self.add_tools(calls)
                calls.delegates.unknown_servers = {server.name for server in self if server.approved_offer is None}
                return
            # The servers that had not answered before the session's first turn.
            unknown = [server for server in self if server.name in calls.delegates.unknown_servers]
            if late := [server.name for server in unknown if server.approved_offer is not None]:
                calls.delegates.unknown_servers.difference_update(late)
                self.add_tools(calls)
                self.on_notice(f"Starting with this prompt, the model can use the tools of: {', '.join(late)}")
            for server in unknown:
                if server.approved_offer is None:
                    self._start_connecting(server)  # tries again: its downloads may be complete by now

    def stop_waiting(self) -> None:
        """Let sessions begin without the servers that are still connecting."""
        if self._waiting is not None:
            self._waiting.reschedule(0)

    async def _wait_for_new_servers(self) -> None:
        """Wait for the servers whose tools are not known yet, and report those that do not answer."""
        new = [server for server in self if server.approved_offer is None]
        pending = {self._start_connecting(server) for server in new if not server.problem}
        if pending:
            _, pending = await asyncio.wait(pending, timeout=1.0)  # most servers answer by then
        if pending:
            slow = [server for server in new if server.approved_offer is None and not server.problem]
            names = ", ".join(server.name for server in slow)
            max_s = max((server.spec.startup_timeout_s for server in slow), default=0)
            hint = " Press Enter to start without them." if self._can_skip else ""
            self.on_notice(f"Waiting up to {max_s:g} s for new MCP servers: {names}.{hint}")
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(None) as self._waiting:  # ended by `stop_waiting`
                        await asyncio.wait(pending)
            finally:  # also if the turn is interrupted
                self._waiting = None
        for server in [server for server in new if server.approved_offer is None]:
            late = "has not answered yet. Its tools become available with the first prompt after it answers."
            why = f"offers no tools: {server.problem}" if server.problem else late
            self.on_notice(f"The MCP server {server.name} {why}")

    def add_tools(self, calls: SessionCalls) -> None:
        """Set a session's tools to its own and those that the servers have now."""
        self._has_new_offer = False
        tools = list(self.tools())
        before = [tool.spec() for tool in calls.tools if tool.server]
        if [tool.spec() for tool in tools] != before:  # else the registry stays, and with it the provider's cache
            calls.tools = ToolRegistry((*(tool for tool in calls.tools if not tool.server), *tools))

    def switch(self, name: str, calls: SessionCalls, *, is_on: bool) -> None:
        """Turn the tools of a server on or off from the next request on. Raises `UsageError`."""
        self.get(name).is_enabled = is_on
        self.add_tools(calls)

    def refresh(self, calls: SessionCalls) -> None:
        """Update the tools if an offer was approved; called when the beginning of requests changes anyway."""
        if self._has_new_offer:
            self.add_tools(calls)

    def tools(self) -> Iterator[Tool]:
        """Yield the known tools of all enabled servers, under the names that models see."""
        used_names: set[str] = set()
        for server in filter(lambda server: server.is_enabled, self):
            offer = server.approved_offer or mcp_tools.Offer()
            offered = [tool for tool in offer.tools if server.spec.offers(tool.name)]
            for tool in mcp_tools.remote_tools(server.name, offered, server.call_for_model, used_names):
                if not self._only or any(rule.is_about(tool.name) for rule in self._only):
                    yield tool

    async def attach_mentioned(self, state: AgentState, prompt_ids: Container[str], emit: Emit) -> None:
        """Append the resources (`@server:uri`) that the prompts with these ids name; report one that cannot be read."""
        for server, uri in dict.fromkeys(self._mentioned_resources(state, prompt_ids)):
            try:
                client = await self._servers[server].client()
                if not isinstance(client, mcp_tools.OffersPrompts):
                    raise ToolError(f"The MCP server {server} has no resources.", kind="not_found")
                async with asyncio.timeout(self._servers[server].spec.timeout_s):
                    parts = await client.read_resource(uri)
            except (ToolError, TimeoutError) as error:
                reason = str(error) or "timed out"
                emit(Notice(f"Could not read @{server}:{uri}: {reason}"))
                parts = (Text(f"Could not read it: {reason}"),)
            heading = Text(f"The resource {uri} of the MCP server {server}, mentioned in the prompt:")
            limited = (
                Text(cut_middle(part.text, MAX_RESOURCE_CHARS)) if isinstance(part, Text) else part for part in parts
            )
            state.notes.append(User((heading, *limited), is_reminder=True))

    def _mentioned_resources(self, state: AgentState, prompt_ids: Container[str]) -> Iterator[tuple[str, str]]:
        """Yield the server and the URI of each resource that the prompts name, but not in text that was piped in."""
        for entry in state.conversation.path:
            if entry.id in prompt_ids and isinstance(entry.body, User):
                for block in typed_blocks(entry.body.content):
                    typed = block.text.partition("\n\n<stdin>\n")[0] if isinstance(block, Text) else ""
                    yield from ((server, uri) for server, uri in _MENTION.findall(typed) if server in self._servers)

    def listing(self) -> list[dict[str, Any]]:
        return [{"name": server.name, "status": server.status} for server in self]

    async def aclose(self, *, for_good: bool = True) -> None:
        """Disconnect from all servers. If not `for_good`, a later call connects again."""
        for task in list(self._starting):
            task.cancel()
        await asyncio.gather(*(server.aclose(for_good=for_good) for server in self))

    def _on_approval(self) -> None:
        self._has_new_offer = True
        self.on_new_prompts()


async def _return_client(client: mcp_tools.MCPClient, *_: object) -> mcp_tools.MCPClient:
    return client  # a caller's own client is connected already


GROUP = "MCP"
NO_SERVERS = "No MCP servers are configured here. To add one: agentcli mcp add NAME -- COMMAND, or NAME URL"
_MAX_HELP_CHARS = 80
_MARKS = {
    "connected": "●", "connecting": "…", "idle": "○", "changed": "!", "needs-auth": "!", "failed": "✗",
    "disabled": "○",
}  # fmt: skip


def add_mcp_commands(commands: CommandSet, servers: Servers | None) -> None:
    """Add `/mcp`, and the servers' prompts as `/mcp__SERVER__PROMPT`, including those that become known later."""
    help, forms = "show the MCP servers, restart or approve one", ("", "NAME", "restart NAME", "approve NAME")
    commands.add(SlashCommand("mcp", help, partial(_mcp, servers), "[NAME]", group=GROUP, forms=forms))
    if servers is not None:
        servers.on_new_prompts = partial(_add_prompts, commands, servers)
        servers.on_new_prompts()


def _add_prompts(commands: CommandSet, servers: Servers) -> None:
    for server in servers:
        for prompt in (server.approved_offer or mcp_tools.Offer()).prompts:
            name = mcp_tools.tool_name(server.name, prompt.name)
            if name not in commands.names:
                help = shorten(prompt.description or f"a prompt of {server.name}", _MAX_HELP_CHARS)
                run, hint = partial(_use_prompt, server, prompt), _argument_hint(prompt)
                commands.add(SlashCommand(name, help, run, hint, group=GROUP))


def _argument_hint(prompt: mcp_tools.RemotePrompt) -> str:
    return " ".join(name.upper() if needed else f"[{name.upper()}]" for name, needed in prompt.arguments)


async def _use_prompt(server: Server, prompt: mcp_tools.RemotePrompt, host: CommandHost, argument: str) -> Outcome:
    try:
        client = await server.client()
        assert isinstance(client, mcp_tools.OffersPrompts), "only those that have prompts are listed"
        text = await client.get_prompt(prompt.name, prompt_arguments(prompt, argument))
    except ToolError as error:
        raise UsageError(str(error)) from error
    if not text.strip():
        raise UsageError(f"The prompt {prompt.name} of the MCP server {server.name} is empty.")
    return AsPrompt(
        f"Follow this prompt of the MCP server {server.name}.", more=(foreign_text(f"prompt {prompt.name}", text),)
    )


def prompt_arguments(prompt: mcp_tools.RemotePrompt, line: str) -> dict[str, str]:
    """Read a prompt's arguments from a line: `name=value`, or values in order (the last takes the rest)."""
    names = [name for name, _ in prompt.arguments]
    try:
        words = shlex.split(line)
    except ValueError as error:  # an open quotation mark
        raise UsageError(f"Could not read the arguments: {error}.") from error
    pairs = (word.partition("=") for word in words)
    named = {name: value for name, equals, value in pairs if equals and name in names}
    values_in_order = [word for word in words if word.partition("=")[0] not in named]
    unnamed = [name for name in names if name not in named]
    if unnamed and len(values_in_order) > len(unnamed):  # the last argument takes the remaining words
        last = len(unnamed) - 1
        values_in_order = [*values_in_order[:last], " ".join(values_in_order[last:])]
    arguments = named | dict(zip(unnamed, values_in_order, strict=False))
    if missing := [name for name, is_required in prompt.arguments if is_required and name not in arguments]:
        raise UsageError(f"{prompt.name} also needs {', '.join(missing)}.")
    return arguments


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
                return f"Approved: {changes}. The model sees it after the next compaction, or in a new session."
            case _:  # the name of a server
                return describe_offer(server := servers.get(argument), server.status)
    except ToolError as error:
        raise UsageError(str(error)) from error


def server_row(server: Server, status: Status) -> str:
    """Return a server as a line of `/mcp`, with its changes and its problem below it."""
    tools = f"{len(server.approved_offer.tools)} tools" if server.approved_offer else "tools not known yet"
    cells = (server.name, status, tools, server.spec.scope, str(server.spec.transport))
    changed = f"\n    changed: {server.describe_changes()}" if server.is_changed else ""
    problem = f"\n    {server.problem}" if server.problem else ""
    return f"  {_MARKS[status]} {' · '.join(cells)}{changed}{problem}"


def describe_offer(server: Server, status: Status) -> str:
    """Describe a server: its line of `/mcp`, then one line for each tool and prompt."""
    offer = server.current_offer or server.approved_offer or mcp_tools.Offer()
    tools = [f"    {tool.name}  {shorten(' '.join(tool.description.split()), _MAX_HELP_CHARS)}" for tool in offer.tools]
    prompts = [
        f"    /{mcp_tools.tool_name(server.name, prompt.name)} {_argument_hint(prompt)}".rstrip()
        for prompt in offer.prompts
    ]
    return "\n".join((server_row(server, status), *tools, *prompts))
