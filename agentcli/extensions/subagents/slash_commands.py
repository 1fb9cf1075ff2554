"""Subagents: those of this conversation, what they did, and the kinds there are as slash commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from agentcli.agent.commands.command import AsPrompt, CommandHost, CommandSet, Outcome, SlashCommand
from agentcli.conversation.entries import Assistant, Entry, Result, User
from agentcli.conversation.history import shortened
from agentcli.errors import UsageError
from agentcli.extensions.subagents.definitions import AgentDefinition
from agentcli.extensions.subagents.running import AgentRun, Subagents
from agentcli.llm.messages import Text, ToolUse
from agentcli.tools.summary import call_title

GROUP = "Agents"
_MAX_TASK, _MAX_HELP = 60, 80  # characters
_MARKS = {None: "●", "done": "✓", "stopped": "■", "failed": "✗", "limit": "■"}


def add_agent_commands(commands: CommandSet, definitions: Iterable[AgentDefinition]) -> None:
    """Add `/agents` and a command for each kind; where the name is taken, as `/agent:NAME`."""
    help, forms = "show the subagents, or what one did; end one", ("", "show ID", "stop ID")
    commands.add(SlashCommand("agents", help, _agents, "[show|stop ID]", is_aside=True, forms=forms, group=GROUP))
    for one in definitions:
        name = f"agent:{one.name}" if one.name in commands.names else one.name
        if not any(sign.isspace() or sign == "/" for sign in name):
            help = shortened(one.description, _MAX_HELP)
            commands.add(SlashCommand(name, help, partial(_begin, one.name), "TASK", group=GROUP))


async def _begin(kind: str, host: CommandHost, task: str) -> Outcome:
    if not task:
        raise UsageError(f"Say what the agent {kind} is to do.")
    return AsPrompt(f"Let a subagent do this (create_subagent with agent={kind}), and tell me its answer: {task}")


async def _agents(host: CommandHost, argument: str) -> Outcome:
    agents = host.session.runtime.calls.delegates.open_agents()
    assert isinstance(agents, Subagents), "the session's builder makes no others"
    word, _, id = argument.partition(" ")
    match word:
        case "":
            return await _listed(agents)
        case "stop":
            agents.stop(id.strip())
            return f"{id.strip()} ends; its parent gets what it has."
        case "show":
            return "\n".join(_transcript_lines(await agents.transcript(id.strip())))
        case _:
            raise UsageError("Write /agents, /agents show ID or /agents stop ID.")


async def _listed(agents: Subagents) -> str:
    rows = [*map(_row, agents.runs)]
    known = {run.session_id for run in agents.runs}
    rows += [f"  ✓ {info.name}  {info.id[:13]}" for info in await agents.earlier() if info.id not in known]
    return "\n".join([*(rows or ["No subagent has worked here yet."]), f"Kinds: {', '.join(agents.definitions)}."])


def _row(run: AgentRun) -> str:
    task = shortened(" ".join(run.given.task.split()), _MAX_TASK)
    doing = f"\n    {shortened(run.doing, _MAX_TASK)}" if run.end is None and run.doing else ""
    return f"  {_MARKS[run.end]} {run.id} · {run.spent} · {run.session_id[:13]}\n    {task}{doing}"


def _transcript_lines(entries: Sequence[Entry]) -> Iterator[str]:
    """A conversation in short: what was said, and each call with a line on what came of it."""
    for body in (entry.body for entry in entries):
        match body:
            case User(is_reminder=False):
                yield f"› {body.text}"
            case Assistant(content):
                for block in content:
                    if isinstance(block, Text) and block.text.strip():
                        yield block.text.strip()
                    elif isinstance(block, ToolUse):
                        yield f"• {call_title(block.name, block.input)}"
            case Result(result, summary=summary):
                yield f"  {'✗' if result.is_error else '✓'} {summary}"
            case _:
                pass
