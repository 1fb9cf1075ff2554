"""MCP servers: `/mcp` shows, restarts and approves them, and each of their prompts is a command."""

from __future__ import annotations

import shlex
from functools import partial

from agentcli.agent.commands.command import AsPrompt, CommandHost, CommandSet, Outcome, SlashCommand
from agentcli.conversation.history import shortened
from agentcli.conversation.mentions import foreign_text
from agentcli.errors import ToolError, UsageError
from agentcli.extensions.mcp.client import OffersPrompts, RemotePrompt
from agentcli.extensions.mcp.server import Server, Status
from agentcli.extensions.mcp.servers import Servers
from agentcli.extensions.mcp.tools import tool_name

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
    about = (server.name, status, what, server.spec.scope, server.spec.target)
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
