"""Slash commands of subagents: `/agents` shows and stops them, and each kind of subagent is a command."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from agentcli.agent.commands.command import AsPrompt, CommandHost, CommandSet, Outcome, SlashCommand
from agentcli.conversation.history import shorten, transcript_lines
from agentcli.errors import UsageError
from agentcli.extensions.subagents.definitions import AgentDefinition
from agentcli.extensions.subagents.running import AgentRun, Subagents

GROUP = "Agents"
_MAX_TASK, _MAX_HELP = 60, 80  # characters
_MARKS = {None: "●", "done": "✓", "stopped": "■", "failed": "✗", "limit": "■"}


def add_agent_commands(commands: CommandSet, definitions: Iterable[AgentDefinition]) -> None:
    """Add `/agents` and a command for each kind, called `/agent:NAME` if its name is taken."""
    help, forms = "show the subagents, or what one did; end one", ("", "show ID", "stop ID")
    commands.add(SlashCommand("agents", help, _agents, "[show|stop ID]", is_aside=True, forms=forms, group=GROUP))
    for one in definitions:
        name = f"agent:{one.name}" if one.name in commands.names else one.name
        if not any(letter.isspace() or letter == "/" for letter in name):
            help = shorten(one.description, _MAX_HELP)
            commands.add(SlashCommand(name, help, partial(_delegate, one.name), "TASK", group=GROUP))


async def _delegate(kind: str, host: CommandHost, task: str) -> Outcome:
    if not task:
        raise UsageError(f"Say what the agent {kind} is to do.")
    return AsPrompt(f"Let a subagent do this (create_subagent with agent={kind}), and tell me its answer: {task}")


async def _agents(host: CommandHost, argument: str) -> Outcome:
    agents = host.session.runtime.calls.delegates.open_agents()
    assert isinstance(agents, Subagents), "the session's builder makes no others"
    word, _, id = argument.partition(" ")
    match word:
        case "":
            listed = {run.session_id for run in agents.runs}
            earlier = [f"  ✓ {info.name}  {info.id[:13]}" for info in await agents.earlier() if info.id not in listed]
            rows = [*map(_row, agents.runs), *earlier] or ["No subagent has worked here yet."]
            return "\n".join([*rows, f"Kinds: {', '.join(agents.definitions)}."])
        case "stop":
            agents.stop(id.strip())
            return f"{id.strip()} ends; its parent gets what it has."
        case "show":
            return "\n".join(transcript_lines(await agents.transcript(id.strip())))
        case _:
            raise UsageError("Write /agents, /agents show ID or /agents stop ID.")


def _row(run: AgentRun) -> str:
    task, title = shorten(" ".join(run.arguments.task.split()), _MAX_TASK), run.progress.title
    now = f"\n    {shorten(title, _MAX_TASK)}" if run.end is None and title else ""
    return f"  {_MARKS[run.end]} {run.id} · {run.progress.summary} · {run.session_id[:13]}\n    {task}{now}"
